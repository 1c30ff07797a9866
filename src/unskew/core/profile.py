"""Where a run's seconds go: each moment is charged to one part, the innermost that is open."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from torch import Tensor

from unskew.base.batch import Batch
from unskew.base.tree import Tree
from unskew.core.context import Context, LocalGradient, Steps

PARTS = {
    "data": "gathering, normalising, augmenting batches",
    "forward": "passes and losses of local training",
    "backward": "gradients of local training",
    "update": "local steps beside their gradients; compiled steps whole",
    "transfer": "tensors to and from workers or devices",
    "merge": "replies into the server's next state",
    "evaluation": "tests, all of it",
    "rest": "all else: records, checkpoints, sampling, Python",
    "waiting": "the main process, for its workers",
}
"""What each part stands for."""

Seconds = dict[str, float]
P = ParamSpec("P")
R = TypeVar("R")


class Profile:
    """A stopwatch that always charges exactly one part."""

    def __init__(self) -> None:
        self.seconds: Seconds = {}
        self._open: list[str] = []
        self._since = 0.0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Charges this while to a part, save what parts inside it take; evaluation keeps all that is inside it."""
        if "evaluation" in self._open and name != "waiting":
            yield
            return
        self._charge()
        self._open.append(name)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def _charge(self) -> None:
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] = self.seconds.get(self._open[-1], 0.0) + now - self._since
        self._since = now

    def taken(self) -> Seconds:
        """The seconds so far, after which counting begins anew: what a worker sends with a reply."""
        self._charge()
        seconds, self.seconds = self.seconds, {}
        return seconds

    def add(self, seconds: Mapping[str, float]) -> None:
        """Adds what a worker has counted."""
        for name, value in seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + value

    def charged(self, name: str, work: Callable[P, R]) -> Callable[P, R]:
        """The same work, charged to a part."""

        def inside(*args: P.args, **options: P.kwargs) -> R:
            with self.part(name):
                return work(*args, **options)

        return inside


class ProfiledSteps:
    """Gradients and steps that are charged to their parts."""

    def __init__(self, inner: Steps, profile: Profile) -> None:
        self._inner, self._profile = inner, profile

    def copy(self, params: Tree) -> Tree:
        """A tree whose tensors are free to be changed."""
        return self._inner.copy(params)

    def gradient(self, loss: Callable[[Tree], Tensor], params: Tree, names: Iterable[str]) -> tuple[Tree, Tensor]:
        """The gradient and the loss."""
        with self._profile.part("backward"):
            return self._inner.gradient(self._profile.charged("forward", loss), params, names)

    def descend(self, c: Context, params: Tree, gradient: LocalGradient, batches: Iterable[Batch]) -> Tree:
        """The steps of a visit."""
        with self._profile.part("update"):
            return self._inner.descend(c, params, gradient, self._charged(batches))

    def _charged(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        source = iter(batches)
        while True:
            with self._profile.part("data"):
                batch = next(source, None)
            if batch is None:
                return
            yield batch
