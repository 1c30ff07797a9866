"""Where a run's seconds go: each moment is charged to one part, the innermost that is open.

Parts are opened at five places: the engine (`rest`, `server` around the rounds, `evaluation`), the executor as a whole,
the forward pass and the steps of a context, and a worker's job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from torch import Tensor

from unskew.base.tree import Groups, Tree
from unskew.core.context import Context, LocalGradient, Steps
from unskew.core.jobs import Executor, Job, Reply
from unskew.core.net import Forward

if TYPE_CHECKING:
    from unskew.core.task import Task

PARTS = {
    "data": "gathering, normalising, augmenting batches",
    "forward": "passes and losses of local training",
    "backward": "gradients of local training",
    "update": "local steps beside their gradients; compiled steps whole",
    "server": "sampling, messages, merging replies, the server's update",
    "evaluation": "tests and measures, all of it",
    "rest": "all else: clients' work beside their steps, records, checkpoints",
    "waiting": "the main process, for its workers; tensors to and from them",
}
"""What each part stands for."""

P = ParamSpec("P")
R = TypeVar("R")


class Profile:
    """A stopwatch that always charges exactly one part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = 0.0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Charges this while to a part, save what parts inside it take; evaluation keeps all but `waiting`."""
        if "evaluation" in self._open and name != "waiting":
            name = "evaluation"
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

    def each(self, name: str, items: Iterable[R]) -> Iterator[R]:
        """The items; making each of them is charged to a part."""
        source = iter(items)
        while True:
            with self.part(name):
                item = next(source, None)
            if item is None:
                return
            yield item

    def call(self, name: str, function: Callable[P, R]) -> Callable[P, R]:
        """A function that does the same, charged to a part."""

        def charged(*args: P.args, **options: P.kwargs) -> R:
            with self.part(name):
                return function(*args, **options)

        return charged

    def wrap(self, forward: Forward, steps: Steps) -> tuple[Forward, Steps]:
        """A context's forward pass and steps, charged to their parts."""
        return self.call("forward", forward), ProfiledSteps(steps, self)

    def work(self, task: Task, job: Job) -> Reply:
        """A worker's job: the reply carries the seconds that were counted in the worker."""
        self.seconds, self._open = {}, []  # the worker was forked in the middle of something else
        with self.part("evaluation" if job.kind in ("test", "validate", "personal") else "rest"):
            reply = task.work(job)
        return reply._replace(profile=self.seconds)

    def add(self, seconds: Mapping[str, float]) -> None:
        """Adds what a worker has counted."""
        for name, value in seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + value


def open_part(profile: Profile | None, name: str) -> AbstractContextManager[None]:
    """Charges a while to a part, if there is a profile."""
    return profile.part(name) if profile else nullcontext()


def charge_each(profile: Profile | None, name: str, items: Iterable[R]) -> Iterable[R]:
    """The items, whose making is charged to a part, if there is a profile."""
    return profile.each(name, items) if profile else items


class ProfiledSteps:
    """Gradients and steps that are charged to their parts."""

    def __init__(self, inner: Steps, profile: Profile) -> None:
        self._inner, self._profile = inner, profile

    def bind(self, forward: Forward) -> Forward:
        """The forward pass of a visit whose steps these are."""
        return self._inner.bind(forward)

    def copy(self, params: Tree) -> Tree:
        """A tree whose tensors are free to be changed."""
        return self._inner.copy(params)

    def gradient(self, loss: Callable[[Tree], Tensor], params: Tree, names: Iterable[str]) -> tuple[Tree, Tensor]:
        """The gradient and the loss."""
        with self._profile.part("backward"):
            return self._inner.gradient(self._profile.call("forward", loss), params, names)

    def fold(self, c: Context, step: Callable[[Groups, Any], Groups], start: Groups, batches: Iterable[Any]) -> Groups:
        """A loop of a slot's own."""
        with self._profile.part("update"):
            return self._inner.fold(c, step, start, self._profile.each("data", batches))

    def descend(self, c: Context, params: Tree, gradient: LocalGradient, batches: Iterable[Any]) -> Tree:
        """The steps of a visit."""
        with self._profile.part("update"):
            return self._inner.descend(c, params, gradient, self._profile.each("data", batches))


class ProfiledExecutor:
    """An executor whose time is charged to a part, and the making of its jobs to the server."""

    def __init__(self, inner: Executor, profile: Profile, part: str) -> None:
        self._inner, self._profile, self._part = inner, profile, part
        self.longest_first = inner.longest_first

    def run(self, jobs: Iterable[Job]) -> Iterator[Reply]:
        """A reply for each job, in order; what workers counted is added."""
        for reply in self._profile.each(self._part, self._inner.run(self._profile.each("server", jobs))):
            self._profile.add(reply.profile)
            yield reply

    def close(self) -> None:
        """Ends whatever the executor started."""
        self._inner.close()
