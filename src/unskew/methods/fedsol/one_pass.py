"""The two passes of FedSOL's step over one batch: at w, for the proximal gradient, and at w + eps."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from typing_extensions import Unpack

from unskew.base.batch import Batch, Output
from unskew.base.tree import Tree
from unskew.core.context import ClientContext
from unskew.core.net import Mode, PassOptions

Pass = Callable[[Tree], Output]
"""A pass over a batch with these parameters."""


class Passes:
    """BatchNorm's running statistics are those of the pass at w; the one at w + eps leaves them alone.

    `body_once`: only the head is moved, so the body's features serve both passes; the proximal gradient, which is
    the head's alone, takes them as constants.
    """

    def __init__(self, c: ClientContext, w: Tree, batch: Batch, body_once: bool) -> None:
        self._c, self._x = c, batch.x
        self._body: Output | None = None
        if body_once and all(layer.startswith("body.") for layer in c.maps):
            self._body = c.forward(w, batch.x, part="body", maps=c.maps)

    def at_w(self, params: Tree) -> Output:
        """The pass before the move."""
        if self._body is None:
            return self._c.forward(params, self._x, maps=self._c.maps)
        features = self._body.features.detach()
        maps = {name: value.detach() for name, value in self._body.maps.items()}
        return Output(self._c.classify(params, features), features).with_maps(maps)

    def at_moved(self) -> ClientContext:
        """The visit in which this batch is passed after the move."""
        still = keep_statistics(self._c)
        if (body := self._body) is None:
            return still

        def forward(params: Tree, x: Tensor, mode: Mode = "train", **options: Unpack[PassOptions]) -> Output:
            if x is self._x and mode == "train" and options.keys() <= {"maps"}:
                logits = self._c.classify(params, body.features, "batch")
                return Output(logits, body.features).with_maps(body.maps)
            return still.forward(params, x, mode, **options)

        return still.with_forward(forward)


def keep_statistics(c: ClientContext) -> ClientContext:
    """The same visit, whose passes in mode `train` leave BatchNorm's running statistics alone."""

    def forward(params: Tree, x: Tensor, mode: Mode = "train", **options: Unpack[PassOptions]) -> Output:
        return c.forward(params, x, "batch" if mode == "train" else mode, **options)

    return c.with_forward(forward)
