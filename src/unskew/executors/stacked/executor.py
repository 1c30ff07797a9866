"""A chunk of clients as one batch, for many small clients: slots run once for all of them under `vmap`.

Results equal those of `serial` up to rounding: sums are taken in another order. docs/design.md says how
close, docs/performance.md when it pays.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from unskew.base import seeds, tree
from unskew.base.errors import one_line
from unskew.base.tree import Groups
from unskew.core.jobs import WIRE, Job, Reply, Stack, split_state
from unskew.core.task import Task
from unskew.core.visit import Work, first_state, open_visit, perform
from unskew.data.batches import LocalData
from unskew.data.stacked_batches import StackedData
from unskew.executors.serial import Serial
from unskew.executors.stacked.context import LaneData, StackedContext
from unskew.executors.stacked.lanes import LaneDiagnostics, Lanes
from unskew.executors.stacked.layers import StackedLayers

log = logging.getLogger(__name__)


class Stacked:
    """Runs jobs of clients in chunks, each chunk at once; replies come in the order of the jobs."""

    longest_first = False
    context: ClassVar[type[StackedContext]] = StackedContext
    """What slots see."""

    def __init__(self, task: Task, chunk: int) -> None:
        self.task, self.chunk = task, chunk
        self._layers = StackedLayers(task)
        self._serial = Serial(task)
        self._one_by_one: set[str] = set()
        if not task.method.stackable:
            log.warning("%s says that its clients cannot be stacked; they work one by one", task.method.name)
            self._one_by_one = {"train", "survey", "personal"}

    @property
    def fell_back(self) -> bool:
        """Whether any kind of work turned out to be possible one by one only."""
        return bool(self._one_by_one)

    def run(self, jobs: Iterable[Job]) -> Iterator[Reply]:
        """A reply for each job, in order."""
        waiting = iter(jobs)
        while chunk := list(itertools.islice(waiting, self.chunk)):
            yield from self._run_chunk(chunk)

    def close(self) -> None:
        """Nothing to end."""

    def lanes(self, count: int) -> Lanes:
        """So many clients side by side."""
        return Lanes(count, self.task.device.kind)

    def fill(self, jobs: list[Job]) -> list[Job]:
        """The jobs that run at once; more than were asked for, if the work needs a fixed number."""
        return jobs

    def _run_chunk(self, jobs: list[Job]) -> Iterable[Reply]:
        kind = jobs[0].kind
        if jobs[0].client < 0 or kind in self._one_by_one:
            return self._serial.run(jobs)
        try:
            return self._run_at_once(jobs)
        except Exception as error:
            # a real fault of a client shows itself again there, with the client's name
            replies = list(self._serial.run(jobs))
            log.warning(
                "%s of %s cannot run for many clients at once (%s: %s); clients work one by one",
                kind, self.task.method.name, type(error).__name__, one_line(error),
            )  # fmt: skip
            self._one_by_one.add(kind)
            return replies

    def _run_at_once(self, jobs: list[Job]) -> list[Reply]:
        began, real = time.perf_counter(), len(jobs)
        jobs, task, device = self.fill(jobs), self.task, self.task.device.kind
        lanes = self.lanes(len(jobs))
        clients = tuple(job.client for job in jobs)
        own = [task.federation.train(client) for client in clients]
        tested = [task.federation.local_test(client) for client in clients] if jobs[0].kind == "personal" else own
        states = self._states(jobs, own)
        diagnostics = LaneDiagnostics(lanes)
        with lanes, self._layers.replace(lanes, jobs):
            job = replace(
                jobs[0],
                client=cast("int", lanes.wrap(torch.tensor(clients, device=device))),
                message=task.device.to_device(lanes.wrap_groups([job.message for job in jobs])),
                state=task.device.to_device(lanes.wrap_groups(states)),
            )
            data = cast("LocalData", LaneData(StackedData(own), lanes))
            c = open_visit(task, job, data, lanes, self.context, diagnostics=diagnostics, clients=clients, lanes=lanes)
            about = data if tested is own else cast("LocalData", LaneData(StackedData(tested), lanes))
            work = _unwrap(lanes, perform(task, job, c, about), real)
        jobs = jobs[:real]
        seconds = (time.perf_counter() - began) / len(jobs)
        lengths = [len(part) for part in tested[:real]]
        if jobs[0].kind == "personal":
            return self._pack_scores(jobs, work, lengths, seconds)
        return self._pack(jobs, work, diagnostics, lengths, seconds)

    def _states(self, jobs: list[Job], own: list[LocalData]) -> list[Groups]:
        """Each client's state; who comes for the first time gets its initial one, as if it were alone."""
        states, memories = (list(parts) for parts in zip(*(split_state(job.state, WIRE) for job in jobs), strict=True))
        if any(states) and not all(states):
            for place, (job, data) in enumerate(zip(jobs, own, strict=True)):
                if not states[place]:
                    seeds.seed_layers(self.task.seed, f"layers/{job.kind}", job.round, job.client)
                    states[place] = first_state(self.task, replace(job, state={}), data)
        known: Groups = next((memory for memory in memories if memory), {})
        nothing = {group: tree.zeros_like(kept) for group, kept in known.items()}
        return [{**state, **(memory or nothing)} for state, memory in zip(states, memories, strict=True)]

    def _pack(
        self, jobs: list[Job], work: Work, diagnostics: LaneDiagnostics, lengths: list[int], seconds: float
    ) -> list[Reply]:
        device, count = self.task.device, len(jobs)
        groups, state = device.to_cpu(work.groups), _split(device.to_cpu(work.state), count)
        finite = tree.find_finite(groups, count)
        weights = [float(n) for n in lengths] if work.weight is None else work.weight.tolist()
        stack = Stack(groups, count, all(finite))
        counted, means = diagnostics.counted.tolist()[:count], diagnostics.means_by_client()[:count]
        rows = zip(jobs, state, weights, lengths, counted, means, finite, strict=True)
        return [
            Reply(
                client=job.client, weight=weight, num_samples=length, num_steps=int(steps), seconds=seconds,
                state=kept, diagnostics=noted, finite=is_finite, stack=stack, place=place,
            )
            for place, (job, kept, weight, length, steps, noted, is_finite) in enumerate(rows)
        ]  # fmt: skip

    def _pack_scores(self, jobs: list[Job], work: Work, lengths: list[int], seconds: float) -> list[Reply]:
        """Scores of each client's samples; padding is no sample."""
        each = _split(self.task.device.to_cpu(work.groups), len(jobs))
        return [
            Reply(job.client, {"score": {key: value[:n] for key, value in own["score"].items()}}, seconds=seconds,
                  num_samples=n, weight=float(n))
            for job, own, n in zip(jobs, each, lengths, strict=True)
        ]  # fmt: skip


def _unwrap(lanes: Lanes, work: Work, real: int) -> Work:
    """The work's tensors [K, ...], no longer wrapped, of the real clients: the first ones."""

    def unwrap(value: Tensor) -> Tensor:
        found = lanes.unwrap(value)
        return found if real == lanes.count else found[:real]

    def every(groups: Groups) -> Groups:
        return {group: {name: unwrap(value) for name, value in own.items()} for group, own in groups.items()}

    weight = None if work.weight is None else unwrap(torch.as_tensor(work.weight))
    return Work(every(work.groups), every(work.state), weight)


_unbind_copy: Any = torch.unbind_copy  # its stub forgets what it returns


def _split(groups: Groups, count: int) -> list[Groups]:
    """Each client's part of stacked groups, copied: what is kept of one client must not keep the others in memory."""
    parts: list[dict[str, Any]] = [{group: {} for group in groups} for _ in range(count)]
    for group, stacked in groups.items():
        for name, value in stacked.items():
            for own, part in zip(parts, _unbind_copy(value), strict=True):
                own[group][name] = part
    return parts
