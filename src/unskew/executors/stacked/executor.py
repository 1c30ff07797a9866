"""A chunk of clients as one batch, for many small clients: slots run once for all of them under `vmap`.

Results equal those of `serial` up to rounding: sums are taken in another order. docs/design.md says how
close, docs/performance.md when it pays.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from unskew.base import seeds, tree
from unskew.base.errors import SlotError, is_from_signal, one_line
from unskew.base.tree import Groups
from unskew.core.checks.asking import refuse_unusable
from unskew.core.checks.faults import CAUGHT, Fault, client_error, find_spoiler
from unskew.core.checks.guard import Guard
from unskew.core.jobs import WIRE, Job, Reply, Stack, split_state
from unskew.core.task import Task
from unskew.core.visit import Work, first_state, open_visit, perform, refuse_draws
from unskew.data.batches import LocalData
from unskew.data.stacked_batches import StackedData
from unskew.executors.serial import Serial
from unskew.executors.stacked.context import LaneData, StackedContext
from unskew.executors.stacked.lanes import CheckedLaneDiagnostics, LaneDiagnostics, Lanes, NotStackable
from unskew.executors.stacked.layers import StackedLayers
from unskew.executors.stacked.trial import ADVICE, Trial, Trials, find_gap

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
        self._trials = Trials(task)
        self.one_by_one: set[str] = set()
        """Kinds of work that turned out not to stack; rows keep them for a resumed run."""
        if not task.method.stackable:
            log.warning("%s says that its clients cannot be stacked; they work one by one", task.method.name)

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
        kind, number = jobs[0].kind, jobs[0].round
        if jobs[0].client < 0 or not self.task.method.stackable or kind in self.one_by_one:
            return self._serial.run(jobs)
        try:
            self._try_both_ways(self._trials.pick(jobs))
            return self._run_at_once(jobs)
        except CAUGHT as error:
            if is_from_signal(error) or (isinstance(error, SlotError) and error.spoilt):
                raise
            # what the clients were sent is no longer what it was; or it would not fail again
            fault = find_spoiler(error) or (error if isinstance(error, Fault) and error.final else None)
            if fault is not None:
                raise client_error(fault, jobs[0].client, number) from error
            # a real fault of a client shows itself again there, with the client's name
            replies = list(self._serial.run(jobs))
            log.warning(
                "%s of %s cannot run for many clients at once (%s: %s); clients work one by one",
                kind, self.task.method.name, type(error).__name__, one_line(error),
            )  # fmt: skip
            self.one_by_one.add(kind)
            return replies

    def _try_both_ways(self, trial: Trial | None) -> None:
        """Lets some clients work at once and alone, and refuses to stack where that makes a difference."""
        if trial is None:
            return
        task, jobs = trial.task, trial.jobs
        with seeds.preserve_global_generator():
            try:
                many: Any = Stacked(task, len(jobs))._run_at_once(jobs)
            except CAUGHT as error:
                if not trial.cut or is_from_signal(error):
                    raise
                many = error
            try:
                alone = list(Serial(task).run(jobs))
            except CAUGHT as error:
                if trial.cut and not is_from_signal(error):
                    return  # so little data are too little
                raise
        if isinstance(many, BaseException):
            raise many
        gap = find_gap(task, jobs, many, alone)
        if gap is not None:
            raise NotStackable(f"{gap} from working alone; {ADVICE}")

    def _run_at_once(self, jobs: list[Job]) -> list[Reply]:
        """A stack of all; where newcomers hold other groups than those who were here before, one of each kind."""
        parts = self._split_by_groups(jobs)
        if len(parts) == 1:
            return self._run_stack(jobs)
        found: dict[int, Reply] = {}
        for places in parts:
            found.update(zip(places, self._run_stack([jobs[place] for place in places]), strict=True))
        return [found[place] for place in range(len(jobs))]

    def _split_by_groups(self, jobs: list[Job]) -> list[list[int]]:
        """The places of jobs whose clients have the same groups in their states."""
        given = [split_state(job.state, WIRE)[0] for job in jobs] if any(job.state for job in jobs) else [{}]
        if len({tuple(state) for state in given}) == 1:
            return [list(range(len(jobs)))]
        kinds: dict[tuple[str, ...], list[int]] = {}
        for place, state in enumerate(self._states(jobs, [self.task.federation.train(job.client) for job in jobs])):
            kinds.setdefault(tuple(state), []).append(place)
        return list(kinds.values())

    def _run_stack(self, jobs: list[Job]) -> list[Reply]:
        began, real = time.perf_counter(), len(jobs)
        jobs, task, device = self.fill(jobs), self.task, self.task.device.kind
        lanes = self.lanes(len(jobs))
        clients = tuple(job.client for job in jobs)
        own = [task.federation.train(client) for client in clients]
        tested = [task.federation.local_test(client) for client in clients] if jobs[0].kind == "personal" else own
        states = self._states(jobs, own)
        diagnostics = (CheckedLaneDiagnostics if task.guarded_slots else LaneDiagnostics)(lanes)
        # the package's own methods, layers and wire processors are known not to draw from it
        foreign = task.guarded_slots or task.has_foreign_model or task.has_foreign_wire
        drawn = torch.default_generator.get_state() if foreign else None
        guard = Guard() if task.has_foreign_model else None
        with lanes, self._layers.replace(lanes, jobs):
            job = jobs[0]._replace(
                client=cast("int", lanes.wrap(torch.tensor(clients, device=device))),
                message=task.device.to_device(lanes.wrap_groups([job.message for job in jobs])),
                state=task.device.to_device(lanes.wrap_groups(states)),
            )
            data = cast("LocalData", LaneData(StackedData(own), lanes))
            c = open_visit(task, job, data, lanes, self.context, diagnostics=diagnostics, clients=clients, lanes=lanes)
            about = data if tested is own else cast("LocalData", LaneData(StackedData(tested), lanes))
            work = _unwrap(lanes, perform(task, job, c, about), real)
        if drawn is not None and not torch.equal(drawn, torch.default_generator.get_state()):
            raise NotStackable("a slot, layer or wire processor draws from torch's global generator; c.draw(purpose, "
                               "make) gives each client the numbers that it draws alone")  # fmt: skip
        if guard is not None:
            refuse_draws(task, guard)
        jobs = jobs[:real]
        seconds = (time.perf_counter() - began) / len(jobs)
        lengths = [len(part) for part in tested[:real]]
        if jobs[0].kind == "personal":
            return self._pack_scores(jobs, work, lengths, seconds)
        return self._pack(jobs, work, diagnostics, lengths, seconds)

    def _states(self, jobs: list[Job], own: list[LocalData]) -> list[Groups]:
        """Each client's state; who comes for the first time gets its initial one, as if it were alone."""
        if not any(job.state for job in jobs):
            return [{} for _ in jobs]
        states, memories = (list(parts) for parts in zip(*(split_state(job.state, WIRE) for job in jobs), strict=True))
        if any(states) and not all(states):
            for place, (job, data) in enumerate(zip(jobs, own, strict=True)):
                if not states[place]:
                    seeds.seed_layers(self.task.seed, f"layers/{job.kind}", job.round, job.client)
                    states[place] = first_state(self.task, job._replace(state={}), data)
        known: Groups = next((memory for memory in memories if memory), {})
        nothing = {group: tree.zeros_like(kept) for group, kept in known.items()}
        return [{**state, **(memory or nothing)} for state, memory in zip(states, memories, strict=True)]

    def _pack(
        self, jobs: list[Job], work: Work, diagnostics: LaneDiagnostics, lengths: list[int], seconds: float
    ) -> list[Reply]:
        device, count = self.task.device, len(jobs)
        groups, stacked_state = device.to_cpu(work.groups), device.to_cpu(work.state)
        finite, state, sound = tree.find_finite(groups, count), _split(stacked_state, count), [True] * count
        if not all(tree.find_finite(stacked_state, count)):
            sound = [self.task.find_spoilt(own) is None for own in state]
        weights = [float(n) for n in lengths] if work.weight is None else work.weight.tolist()
        refuse_unusable(self.task, weights)
        stack = Stack(groups, count, all(finite))
        counted, means = diagnostics.counted.tolist()[:count], diagnostics.means_by_client()[:count]
        rows = zip(jobs, state, weights, lengths, counted, means, finite, sound, strict=True)
        return [
            Reply(
                client=job.client, weight=weight, num_samples=length, num_steps=int(steps), seconds=seconds,
                state=kept, diagnostics=noted, finite=is_finite, state_finite=is_sound, stack=stack, place=place,
            )
            for place, (job, kept, weight, length, steps, noted, is_finite, is_sound) in enumerate(rows)
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
