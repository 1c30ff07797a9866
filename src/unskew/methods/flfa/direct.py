"""FLFA's ablation: direct feedback alignment, which hands a layer the error at the logits through a random matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from unskew.base import seeds
from unskew.base.batch import Output
from unskew.base.tree import Tree
from unskew.core.context import ClientContext
from unskew.core.net import Layer, Mode, PassOptions
from unskew.core.observer import Observer


class DirectFeedback(Observer):
    """Direct feedback alignment: the error signal of a layer is (R e) * f'(z), e the gradient at the logits.

    The pass above the layer sees a constant; what makes up for it is added to the logits as a value of zero whose
    gradient is R e. f is taken for a ReLU at the layer's own output z.
    """

    def __init__(self, random: Mapping[str, Callable[[int], Tensor]]) -> None:
        """`random`: layer → what gives R_l, [outputs per sample, classes], for a number of outputs."""
        self._random = random

    def within(self, c: ClientContext) -> ClientContext:
        """The visit with direct feedback in every whole pass; passes of the body or the head alone are ordinary."""

        def forward(params: Tree, x: Tensor, mode: Mode = "train", **options: Unpack[PassOptions]) -> Output:
            if not (self._random and options.get("part", "whole") == "whole" and torch.is_grad_enabled()):
                return c.forward(params, x, mode, **options)
            seen: Tree = {}
            own: dict[str, Layer] = {layer: partial(_cut, seen, layer) for layer in self._random}
            options["layers"] = {**own, **(options.get("layers") or {})}
            out = c.forward(params, x, mode, **options)
            carriers = [self._carry(layer, z) for layer, z in seen.items()]
            return out._replace(logits=sum(carriers, out.logits))

        # an observer like `Feedback`: a compiled step would not notice that other layers were chosen
        return c.with_fields(forward=forward, observers=(*c.observers, self))

    def _carry(self, layer: str, z: Tensor) -> Tensor:
        active = (z * (z.detach() > 0)).flatten(1)
        carrier = active @ self._random[layer](active.shape[1]).to(z)
        return carrier - carrier.detach()


def _cut(seen: Tree, name: str, layer: nn.Module, x: Tensor) -> Tensor:
    seen[name] = type(layer).forward(layer, x)
    return seen[name].detach()


@lru_cache(maxsize=8)
def draw_projection(seed: int, layer: str, classes: int, outputs: int) -> Tensor:
    """R of a layer, [outputs, classes], standard deviation 1/sqrt(classes): the same for all clients and rounds."""
    # numpy's generator: inside a stack of clients torch's would draw for each of them
    draws = np.random.default_rng(seeds.derive(seed, f"flfa/dfa/{layer}")).standard_normal((outputs, classes))
    return torch.from_numpy(draws.astype(np.float32) / classes**0.5)
