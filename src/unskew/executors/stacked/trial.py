"""Does somebody else's code give the same for many clients at once as one by one? A few clients are tried both ways.

What a slot may do wrong without failing: a plain mean counts padding, `len(batch.y)` is not the number of samples. The
rule looks at nothing but clients and rounds: the first stack of each kind of work, and the first whose clients hold
different numbers of samples, is tried with its two smallest and its two largest clients; again from rounds 2, 4, 8 …
on, as a method may do something else later.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from unskew.base.tree import Groups, Tree
from unskew.core.jobs import Job, Reply
from unskew.core.task import Task

TOLERANCE = 1e-3
"""How far apart the two may be, as a share of what the visit changed; rounding gives a millionth."""
_NOISE = 1e-6
"""A number smaller than this is rounding."""
ADVICE = "short batches are padded: take means by batch.mean(values), and count samples by batch.mask"


class Trials:
    """Which stacks are tried."""

    def __init__(self, task: Task) -> None:
        self._task, self._foreign = task, bool(task.guarded_slots) or task.has_foreign_model
        self._done: set[tuple[str, bool, int]] = set()

    def pick(self, jobs: list[Job]) -> list[Job]:
        """The clients of a stack that are tried now; none if it is not due."""
        if not self._foreign or len(jobs) < 2:
            return []
        sizes = [self._task.federation.size(job.client) for job in jobs]
        about = (jobs[0].kind, len(set(sizes)) > 1, jobs[0].round.bit_length())
        if about in self._done:
            return []
        self._done.add(about)
        order = sorted(range(len(jobs)), key=lambda place: (sizes[place], place))
        return [jobs[place] for place in sorted({*order[:2], *order[-2:]})]


def find_gap(task: Task, jobs: list[Job], stacked: list[Reply], alone: list[Reply]) -> str | None:
    """Where replies differ by more than rounding; None if nowhere."""
    for job, many, one in zip(jobs, stacked, alone, strict=True):
        whole = many.groups if many.stack is None else many.stack.take(many.place)
        for what, share in _compare(task, job, (whole, many.state), (one.groups, one.state)):
            if share > TOLERANCE:
                return f"{what} of client {job.client} differs by {100 * share:.2g} %"
        if abs(many.weight - one.weight) > TOLERANCE * abs(one.weight):
            return f"the weight of client {job.client} is {many.weight:g} instead of {one.weight:g}"
        if many.num_steps != one.num_steps:
            return f"client {job.client} takes {many.num_steps} steps instead of {one.num_steps}"
    return None


def _compare(
    task: Task, job: Job, many: tuple[Groups, Groups], one: tuple[Groups, Groups]
) -> Iterator[tuple[str, float]]:
    """How far each group is off, as a share of itself; in the state, of how far it moved."""
    for which, (ours, theirs) in enumerate(zip(many, one, strict=True)):
        if ours.keys() != theirs.keys():
            yield f"the list of groups ({sorted(ours.keys() ^ theirs.keys())})", 1.0
            continue
        for group in theirs:
            if job.kind == "personal" and not len(theirs[group]["right"]):
                continue  # nothing was tested
            before = _before(task, job, group) if which else {}
            what = f"what it {'keeps' if which else 'sends'} as '{group}'" if job.kind != "personal" else "the test"
            yield what, _share(ours[group], theirs[group], before)


def _before(task: Task, job: Job, group: str) -> Tree:
    """What a group of the state was before the visit, or would have been."""
    return {**task.initial["model"], **job.message.get("model", {}), **job.state.get(group, {})}


def _share(ours: Tree, theirs: Tree, before: Tree) -> float:
    if ours.keys() != theirs.keys() or any(ours[name].shape != theirs[name].shape for name in theirs):
        return 1.0
    apart, moved, count = 0.0, 0.0, 0
    for name, value in theirs.items():
        if value.dtype.is_floating_point:  # not who was right, which turns on ties
            start = before.get(name)
            start = start if start is not None and start.shape == value.shape else value * 0
            apart += _square(ours[name] - value)
            moved += _square(value - start)
            count += value.numel()
    if not (apart < float("inf") and moved < float("inf")):
        return 0.0  # a visit that diverges is no measure
    return float(apart**0.5 / max(moved**0.5, _NOISE * max(1, count) ** 0.5))


def _square(value: Tensor) -> float:
    return float(value.double().square().sum())
