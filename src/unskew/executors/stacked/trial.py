"""Does somebody else's code give the same for many clients at once as one by one? A few clients are tried both ways.

What a slot may do wrong without failing: a plain mean counts padding, `len(batch.y)` is not the number of samples. A
method may begin with that in any round, so that every round tries it, on the first stack and on the first whose
clients hold different numbers of samples. Rounds 1, 2, 4, 8 … take the two smallest and the two largest clients as they
are; others two, which train on three batches in each epoch, the last of one of them short. The rule looks at nothing
but the round and its clients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from unskew.base.tree import Groups, Tree
from unskew.core.jobs import Job, Reply
from unskew.core.task import Task
from unskew.data.batches import batch_bounds

TOLERANCE = 1e-3
"""How far apart the two may be, as a share of what the visit changed; rounding gives a millionth."""
_NOISE = 1e-6
"""A number smaller than this is rounding."""
ADVICE = "short batches are padded: take means by batch.mean(values), and count samples by batch.mask"


class Trial(NamedTuple):
    """Clients that are to work both ways."""

    task: Task
    jobs: list[Job]
    cut: bool
    """Whether they hold only a part of their data, which may be too little for them."""


class Trials:
    """Which stacks are tried."""

    def __init__(self, task: Task) -> None:
        # what is tried is neither measured nor sent
        self._task, self._foreign = (
            replace(task, wire=None, observers=()),
            bool(task.guarded_slots) or task.has_foreign_model,
        )
        self._done: set[tuple[str, bool]] = set()
        self._round = 0

    def pick(self, jobs: list[Job]) -> Trial | None:
        """What of a stack is tried now; None if it is not due."""
        if not self._foreign or len(jobs) < 2:
            return None
        kind, number = jobs[0].kind, jobs[0].round
        if number != self._round:
            self._round, self._done = number, set()
        sizes = [self._task.federation.size(job.client) for job in jobs]
        about = kind, len(set(sizes)) > 1
        if about in self._done:
            return None
        self._done.add(about)
        order = sorted(range(len(jobs)), key=lambda place: (sizes[place], place))
        if number & (number - 1) == 0:
            return Trial(self._task, [jobs[place] for place in sorted({*order[:2], *order[-2:]})], False)
        if kind != "train":
            other = next((place for place in order if sizes[place] > sizes[order[0]]), order[1])
            return Trial(self._task, [jobs[place] for place in sorted((order[0], other))], False)
        return self._cut(jobs)

    def _cut(self, jobs: list[Job]) -> Trial | None:
        """A client whose last batch is about half of a full one, two before it, and one beside which it is padded."""
        federation, local = self._task.federation, self._task.local

        def list_batches(size: int) -> list[int]:
            lengths = [stop - start for start, stop in batch_bounds(size, local.batch, local.drop_last)]
            return lengths * local.epochs if local.steps is None else (lengths * local.steps)[: local.steps]

        sizes = {job.client: len(federation.train(job.client)) for job in jobs}
        full = min(max(sizes.values()), local.batch)
        tails: dict[int, Job] = {}
        for job in jobs:
            tail = sizes[job.client] % local.batch
            if tail in list_batches(sizes[job.client]) and tail < full:
                tails.setdefault(tail, job)
        for tail in sorted(tails, key=lambda length: (abs(2 * length - full), length)):
            padded = tails[tail]
            length = min(sizes[padded.client] // local.batch, 2) * local.batch + tail
            for partner in sorted(jobs, key=lambda job: -sizes[job.client]):
                beside = min(sizes[partner.client], 3 * local.batch)
                # where both have a batch, they differ in length at least once
                if any(one != other for one, other in zip(list_batches(length), list_batches(beside), strict=False)):
                    short = federation.shorten({partner.client: beside, padded.client: length})
                    return Trial(replace(self._task, federation=short), [partner, padded], True)
        return None  # nothing is padded


def find_gap(task: Task, jobs: list[Job], stacked: list[Reply], alone: list[Reply]) -> str | None:
    """Where replies differ by more than rounding; None if nowhere."""
    for job, many, one in zip(jobs, stacked, alone, strict=True):
        whole = many.groups if many.stack is None else many.stack.take(many.place)
        for what, share in _compare(task, job, (whole, many.state), (one.groups, one.state)):
            if share > TOLERANCE:
                return f"{what} of client {job.client} differs by {100 * share:.2g} %"
        if abs(many.weight - one.weight) > TOLERANCE * abs(one.weight):
            return f"the weight of client {job.client} is {many.weight:g} instead of {one.weight:g}"
        if job.kind != "personal" and many.num_steps != one.num_steps:  # of a test nobody counts them
            return f"client {job.client} takes {many.num_steps} steps instead of {one.num_steps}"
        if job.kind == "train":
            for name, noted in one.diagnostics.items():
                ours = many.diagnostics.get(name, math.inf)
                if abs(ours - noted) > TOLERANCE * max(abs(noted), 0.01):
                    return f"'{name}' of client {job.client}, which it notes, is {ours:.4g} where {noted:.4g} comes"
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
            yield what, _share(ours[group], theirs[group], before, job.kind == "personal")


def _before(task: Task, job: Job, group: str) -> Tree:
    """What a group of the state was before the visit, or would have been."""
    return {**task.initial["model"], **job.message.get("model", {}), **job.state.get(group, {})}


def _share(ours: Tree, theirs: Tree, before: Tree, scores: bool) -> float:
    if ours.keys() != theirs.keys() or any(ours[name].shape != theirs[name].shape for name in theirs):
        return 1.0
    apart, moved, count = 0.0, 0.0, 0
    for name, value in theirs.items():
        if value.dtype.is_floating_point or not scores:  # not who was right, which turns on ties
            start = before.get(name)
            start = start if start is not None and start.shape == value.shape else value * 0
            apart += _square(ours[name].double() - value.double())
            moved += _square(value.double() - start.double())
            count += value.numel()
    if not (apart < float("inf") and moved < float("inf")):
        return 0.0  # a visit that diverges is no measure
    return float(apart**0.5 / max(moved**0.5, _NOISE * max(1, count) ** 0.5))


def _square(value: Tensor) -> float:
    return float(value.square().sum())
