"""Sparsification: only the largest entries travel, and what was left out is added to the next reply.

Stich, Cordonnier, Jaggi, "Sparsified SGD with Memory", NeurIPS 2018.

    paper          here
    comp_k         the `share` largest entries of each tensor
    m_t            memory, kept at the client

The paper compresses every gradient of SGD; here it is what a client sends after its local training.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unskew.base.errors import InputError
from unskew.base.registry import param
from unskew.base.tree import Tree
from unskew.core.context import ClientContext
from unskew.wire.base import TensorProcessor, processors


@processors.register("topk")
class TopK(TensorProcessor):
    """The entries of each tensor that are largest by absolute value; the rest waits at the client for its next turn."""

    share: float = param(default=0.1, gt=0, le=1, doc="share of a tensor's entries, at least one", source="our choice")
    error_feedback: bool = param(
        default=True, doc="keep what is left out at the client and add it next time", source="paper, alg. 1"
    )

    parts = ("indices", "values")

    stacked_tolerance = 0.1  # of two nearly equal entries rounding may choose the other one

    def pack(
        self, c: ClientContext, name: str, value: Tensor, memory: Tensor | None, stream: str
    ) -> tuple[Tree, Tensor | None]:
        """Places and values of the largest entries of value + memory; the others are the new memory."""
        if memory is not None:
            _check_shape(name, memory, value)
            value = value + memory
        flat = value.reshape(-1)
        count = max(1, int(self.share * flat.numel() + 1e-9))  # 1e-9: 0.29 * 100 is 28.999… in binary
        # in the tensor's order: that of nearly equal entries would depend on rounding
        indices = flat.abs().topk(count).indices.sort().values
        parts = {"indices": indices.to(torch.int32), "values": flat.gather(0, indices)}
        return parts, flat.scatter(0, indices, 0.0).reshape(value.shape) if self.error_feedback else None

    def unpack(self, parts: Tree, shape: tuple[int, ...]) -> Tensor:
        """The values at their places, zeros elsewhere."""
        values = parts["values"]
        empty = torch.zeros(math.prod(shape), dtype=values.dtype, device=values.device)
        return empty.scatter(0, parts["indices"].long(), values).reshape(shape)


def _check_shape(name: str, memory: Tensor, value: Tensor) -> None:
    if memory.shape != value.shape:
        raise InputError(
            f"wire: topk keeps what it left out of '{name}', and its shape changed from {list(memory.shape)} to "
            f"{list(value.shape)}; use topk(error_feedback=false)"
        )
