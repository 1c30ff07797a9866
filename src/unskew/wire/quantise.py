"""Quantisation: each tensor as whole numbers of a few bits and one scale, rounded at random so that means stay true.

Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding", NIPS 2017, with the largest
absolute value as the scale.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unskew.base.registry import param
from unskew.base.tree import Tree
from unskew.core.context import ClientContext
from unskew.core.tolerance import USUAL
from unskew.wire.base import TensorProcessor, processors

_WHOLE = {8: torch.int8, 16: torch.int16}
"""Numbers of bits that a type of torch has; others travel as planes, a byte for one bit of eight entries."""


@processors.register("quantise")
class Quantise(TensorProcessor):
    """Each tensor in this many bits an entry: levels between plus and minus its largest value, rounded without bias."""

    bits: int = param(default=8, ge=2, le=16, doc="bits of an entry", source="our choice")

    last = True
    parts = ("codes", "scale")

    @property
    def levels(self) -> int:
        """Steps between zero and the largest value; as many below zero, so that zero itself is one."""
        return int(2 ** (self.bits - 1) - 1)

    @property
    def stacked_tolerance(self) -> float:  # type: ignore[override]
        """By nature: a rounding that falls to the other side is a whole level of the code."""
        return max(USUAL, 2.5 / self.levels)

    def pack(
        self, c: ClientContext, name: str, value: Tensor, memory: Tensor | None, stream: str
    ) -> tuple[Tree, Tensor | None]:
        """Codes and scale; what is not finite makes the scale so, and by it all that is decoded."""
        scale = value.abs().amax()
        exact = _widen(value) / _widen(torch.where(scale > 0, scale, torch.ones_like(scale))) * self.levels
        below = exact.floor()
        drawn = c.draw(stream, lambda rng: torch.rand(value.shape, generator=rng))
        codes = torch.nan_to_num(below + (drawn < exact - below), nan=0.0).clamp(-self.levels, self.levels)
        return {"codes": self._pack_codes(codes.reshape(-1).to(torch.int32)), "scale": scale}, None

    def unpack(self, parts: Tree, shape: tuple[int, ...]) -> Tensor:
        """code / levels * scale."""
        codes, scale = self._unpack_codes(parts["codes"], math.prod(shape)), parts["scale"]
        unit = _widen(scale)
        return (codes.to(unit.dtype) / self.levels * unit).to(scale.dtype).reshape(shape)

    def _pack_codes(self, codes: Tensor) -> Tensor:
        if self.bits in _WHOLE:
            return codes.to(_WHOLE[self.bits])
        codes = torch.cat([codes + self.levels, codes.new_zeros(-len(codes) % 8)]).reshape(-1, 8)
        places = torch.arange(8, device=codes.device)
        planes = [(((codes >> bit) & 1) << places).sum(1) for bit in range(self.bits)]
        return torch.stack(planes).to(torch.uint8)

    def _unpack_codes(self, packed: Tensor, count: int) -> Tensor:
        if self.bits in _WHOLE:
            return packed
        places = torch.arange(8, device=packed.device)
        entries = (packed.to(torch.int32).unsqueeze(2) >> places) & 1
        weights = 2 ** torch.arange(self.bits, device=packed.device)
        return (entries.reshape(self.bits, -1)[:, :count] * weights.unsqueeze(1)).sum(0) - self.levels


def _widen(value: Tensor) -> Tensor:
    """At least single precision: with fewer bits, levels would be rounded away."""
    return value if value.dtype == torch.float64 else value.float()
