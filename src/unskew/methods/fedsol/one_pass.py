"""The two passes of FedSOL's step over one batch: at w, for the proximal gradient, and at w + eps."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from unskew.base.batch import Batch, Output
from unskew.base.tree import Tree
from unskew.core.context import ClientContext
from unskew.core.net import Layer, Mode, Part

Pass = Callable[[Tree], Output]
"""A pass over a batch with these parameters."""


class Passes:
    """BatchNorm's running statistics are those of the pass at w; the one at w + eps leaves them alone.

    `body_once`: only the head is moved, so the body's features serve both passes; the proximal gradient, which is
    the head's alone, takes them as constants.
    """

    def __init__(self, c: ClientContext, w: Tree, batch: Batch, body_once: bool) -> None:
        self._c, self._x = c, batch.x
        self._features = c.features(w, batch.x) if body_once else None

    def at_w(self, params: Tree) -> Output:
        """The pass before the move."""
        if self._features is None:
            return self._c.forward(params, self._x)
        constant = self._features.detach()
        return Output(self._c.classify(params, constant), constant)

    def at_moved(self, params: Tree) -> Output:
        """The pass after the move."""
        if self._features is None:
            return self._c.forward(params, self._x, "batch")
        return Output(self._c.classify(params, self._features, "batch"), self._features)


def keep_statistics(c: ClientContext) -> ClientContext:
    """The same visit, whose passes in mode `train` leave BatchNorm's running statistics alone."""

    def forward(
        params: Tree,
        x: Tensor,
        mode: Mode = "train",
        buffers: Tree | None = None,
        layers: Mapping[str, Layer] | None = None,
        part: Part = "whole",
    ) -> Output:
        return c.forward(params, x, "batch" if mode == "train" else mode, buffers, layers, part)

    return c.with_forward(forward)
