"""The one place where a round is written."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from unskew.base import seeds, tree
from unskew.base.errors import InputError
from unskew.base.tree import Groups
from unskew.core.context import ServerContext
from unskew.core.held import HeldReplies, load
from unskew.core.jobs import Executor, Job, Kind, Reply, Stack, StateStore
from unskew.core.observer import gather_reducers
from unskew.core.reducers import Reducer, Reducers, buffers
from unskew.core.slots import overrides
from unskew.core.task import Task

log = logging.getLogger(__name__)


@dataclass
class Round:
    """A finished round: the server's state after it, and what there is to record of it."""

    number: int
    server: Groups
    record: dict[str, Any]
    clients: list[dict[str, Any]] = field(default_factory=list)
    observed: dict[str, Reducer] = field(default_factory=dict)
    """The observers' reducers, fed with the round's replies."""


def rounds(task: Task, executor: Executor, store: StateStore, server: Groups, first: int, last: int) -> Iterator[Round]:
    """Plays rounds `first` to `last`: sample, send, work, merge, update.

    Observers' reducers see the replies to training, too; their results reach no slot.
    """
    method = task.method
    observing = gather_reducers(task.observers)
    for number in range(first, last + 1):
        began = time.perf_counter()
        s = task.server_context(number, task.sample_cohort(number), server)
        exchange = _Exchange(task, executor, store, s, server)
        if method.survey_reducers:
            surveyed = exchange.merge("survey", method.survey_reducers)
            if exchange.present:
                server = method.digest(exchange.seed_layers_for("digest"), server, surveyed)
            exchange.brief_from(server)
        merged = exchange.merge("train", {"buffers": buffers, **method.reducers}, observing)
        waited = time.perf_counter() - began
        if exchange.used:
            s = replace(exchange.seed_layers_for("update"), replied=tuple(exchange.used))
            server = method.update(s, server, merged)
        whole = time.perf_counter() - began
        record = exchange.record() | {"lr": s.settings.lr}
        if s.record:
            record["method"] = s.record
        record["seconds"] = {
            "clients": sum(row.get("seconds", 0.0) for row in exchange.rows),
            "local": waited - exchange.merging,
            "aggregate": whole - waited + exchange.merging,
        }
        yield Round(number, server, record, [*exchange.rows, *exchange.dropped_rows()], exchange.observed)


class _Exchange:
    """One round's traffic: who was sent what, whose reply counts, and the merged groups."""

    def __init__(self, task: Task, executor: Executor, store: StateStore, s: ServerContext, server: Groups) -> None:
        self.task, self.executor, self.store, self.s = task, executor, store, s
        self._reading = s.read_only()
        self._before = server
        self._surveyed: Groups | None = None
        self.dropped = [client for client in s.cohort if task.drops_out(s.round, client)]
        self.present = dict.fromkeys(client for client in s.cohort if client not in set(self.dropped))
        self.used: list[int] = []
        self.excluded: list[int] = []
        self.rows: list[dict[str, Any]] = []
        self.down: dict[int, int] = {}
        self.up: dict[int, int] = {}
        self.merging = 0.0
        self.observed: dict[str, Reducer] = {}
        self._holds = overrides(task.method, "weigh")
        """Whether weights are known only when the last reply is in."""
        self._weights: dict[int, float] = {}
        """What that rule gave."""
        self._read: set[str] = set()
        """The groups that the method's reducers read."""
        self._decoded: tuple[Stack, Stack, list[bool]] | None = None
        """The newest stack as it was sent and as it reads, and who sent finite numbers."""

    def seed_layers_for(self, slot: str, client: int = -1) -> ServerContext:
        """The server's context, after seeding what layers draw from in this slot."""
        seeds.seed_layers(self.task.seed, f"layers/{slot}", self.s.round, client)
        return self.s if slot in ("digest", "update") else self._reading

    def brief_from(self, server: Groups) -> None:
        """From now on messages hold the brief of the server's state after the survey."""
        self._surveyed = server

    def message(self, client: int) -> Groups:
        """The client's message, made when it is its turn, and its bytes; what a survey sent is not sent again."""
        method = self.task.method
        message = method.download(self.seed_layers_for("download", client), self._before, client)
        if self._surveyed is None:
            self._count(client, message)
            return message
        brief = method.brief(self.seed_layers_for("brief", client), self._surveyed, client)
        self._count(client, brief)
        return {**message, **brief}

    def _count(self, client: int, groups: Groups) -> None:
        self.down[client] = self.down.get(client, 0) + tree.nbytes(groups)

    def dropped_rows(self) -> list[dict[str, Any]]:
        """A row for each client that was sent a message and never replied."""
        common = {"round": self.s.round, "used": False, "dropped": True, "bytes_up": 0}
        return [
            {**common, "client": client, **self._straggler(client), "bytes_down": self.down[client]}
            for client in self.dropped
        ]

    def _straggler(self, client: int) -> dict[str, bool]:
        """Whether the client is a straggler, in runs that have some."""
        return {"straggler": self.task.straggles(client)} if self.task.stragglers else {}

    def _make_reducers(self, reducers: Reducers) -> dict[str, tuple[str, Reducer]]:
        return {
            name: (how[0], how[1](self.s)) if isinstance(how, tuple) else (name, how(self.s))
            for name, how in reducers.items()
        }

    def merge(self, kind: Kind, reducers: Reducers, observing: Reducers | None = None) -> Groups:
        """Sends the jobs and merges the replies as they come, in the sampled order; observers see them too."""
        accumulators, observed = self._make_reducers(reducers), self._make_reducers(observing or {})
        self._read = {group for group, _ in accumulators.values()}
        self.observed = {name: reducer for name, (_, reducer) in observed.items()}
        every = [*accumulators.values(), *observed.values()]
        if self._surveyed is None:
            for client in self.dropped:
                self.message(client)  # it was sent, though nothing comes back
        if self._holds and kind == "train":
            self._merge_at_the_end(kind, every)
        else:
            self._merge_as_they_come(kind, every)
        if kind == "train":
            self._note_shares()
        return {name: reducer.result() for name, (_, reducer) in accumulators.items()}

    def _merge_as_they_come(self, kind: Kind, accumulators: list[tuple[str, Reducer]]) -> None:
        waiting: list[Reply] = []  # for the last one of its stack
        for reply in self.executor.run(self._jobs(kind)):
            began = time.perf_counter()
            if (taken := self._take(kind, reply)) is not None:
                waiting.append(taken)
            if reply.stack is None or reply.place == reply.stack.count - 1:
                _merge(waiting, accumulators)
                waiting = []
            self.merging += time.perf_counter() - began

    def _merge_at_the_end(self, kind: Kind, accumulators: list[tuple[str, Reducer]]) -> None:
        held = HeldReplies()
        try:
            for reply in self.executor.run(self._jobs(kind)):
                if (taken := self._take(kind, reply)) is not None:
                    held.add(taken)
            began = time.perf_counter()
            _merge(self._weigh(held.replies), accumulators)
            self.merging += time.perf_counter() - began
        finally:
            held.close()

    def _weigh(self, replies: list[Reply]) -> list[Reply]:
        """The replies with the weights that the method's own rule gives them."""
        if not replies:
            return []
        whole = [reply if reply.stack is None else replace(reply, groups=reply.stack.take(reply.place))
                 for reply in replies]  # fmt: skip
        given: Any = self.task.method.weigh(self.s.read_only(), whole)
        found = _read_weights(given)
        if found is None or len(found) != len(replies) or not all(0 <= weight < math.inf for weight in found):
            shown = f"{len(found)}: {found}" if found is not None else repr(given)
            raise InputError(
                f"{self.task.method.name}.weigh must give a list of {len(replies)} finite weights, none below 0, "
                f"one for each reply, got {shown[:200]}"
            )
        self._weights = {reply.client: weight for reply, weight in zip(replies, found, strict=True)}
        return [replace(reply, weight=weight) for reply, weight in zip(replies, found, strict=True)]

    def _note_shares(self) -> None:
        """How much each client counts in the merged model."""
        used = [row for row in self.rows if row["used"]]
        weights = [self._weights.get(row["client"], row["weight"]) for row in used]
        whole = sum(weights)
        if used and not whole:
            log.warning("round %d: all weights are 0, so nothing is averaged and the model stays", self.s.round)
        for row, weight in zip(used, weights, strict=True):
            row["share"] = weight / whole if whole else 0.0

    def _jobs(self, kind: Kind) -> Iterator[Job]:
        for client in list(self.present):
            size = self.task.federation.size(client) if self.executor.longest_first else 0
            yield Job(kind, self.s.round, client, self.message(client), self.store.get(client), size=size)

    def _take(self, kind: Kind, reply: Reply) -> Reply | None:
        """The reply as it reads, if it counts; notes who sent what, and what a client remembers."""
        own_weight = 0 if reply.weight == reply.num_samples else 4  # a weight the server cannot know is sent too
        sent = reply.groups if reply.stack is None else reply.stack.groups
        size = tree.nbytes(sent) if reply.stack is None else reply.stack.nbytes
        self.up[reply.client] = self.up.get(reply.client, 0) + size + own_weight
        unread = sent.keys() - self._read
        if unread:
            raise InputError(f"{self.task.method.name} sends {sorted(unread)} but has no reducer for it; add one")
        reply = self._decode(reply) if kind == "train" else reply
        good = tree.all_finite(reply.groups) if reply.finite is None else reply.finite
        if not self._holds:  # else the method's own rule judges it
            good = good and math.isfinite(reply.weight) and reply.weight >= 0
        if not good:
            self.excluded.append(reply.client)
            self.present.pop(reply.client)
            self.rows.append(self._row(reply, used=False))
        elif kind == "train":
            self.used.append(reply.client)
            self.store.put(reply.client, reply.state, self.s.round)
            self.rows.append(self._row(reply, used=True))
        return reply if good else None

    def _decode(self, reply: Reply) -> Reply:
        """The reply as everything at the server reads it; a stack is decoded once for all its clients."""
        wire = self.task.wire
        if wire is None:
            return reply
        if reply.stack is None:
            return replace(reply, groups=wire.decode(reply.groups), finite=None)
        if self._decoded is None or self._decoded[0] is not reply.stack:
            self._decoded = reply.stack, *reply.stack.decode(wire)
        _, stack, finite = self._decoded
        return replace(reply, stack=stack, finite=finite[reply.place])

    def _row(self, reply: Reply, used: bool) -> dict[str, Any]:
        return {
            "round": self.s.round,
            "client": reply.client,
            "samples": reply.num_samples,
            "steps": reply.num_steps,
            "weight": reply.weight,
            "used": used,
            **self._straggler(reply.client),
            "bytes_down": self.down[reply.client],
            "bytes_up": self.up[reply.client],
            **reply.diagnostics,
            "seconds": reply.seconds,
        }

    def record(self) -> dict[str, Any]:
        """What rounds.jsonl holds of this exchange."""
        losses = [row["train_loss"] for row in self.rows if row["used"] and "train_loss" in row]
        return {
            "round": self.s.round,
            "clients": list(self.s.cohort),
            "dropped": self.dropped,
            "excluded": self.excluded,
            "diverged": bool(self.excluded) and not self.used,
            "train_loss": sum(losses) / len(losses) if losses else None,
            "bytes_down": sum(self.down.values()),
            "bytes_up": sum(self.up.values()),
        }


def _read_weights(given: Any) -> list[float] | None:
    """The numbers of a list, tuple or vector; None if it is nothing of the kind."""
    values = given.tolist() if isinstance(given, Tensor) else given
    if not isinstance(values, (list, tuple)):
        return None
    numbers = [value.item() if isinstance(value, Tensor) and value.numel() == 1 else value for value in values]
    plain = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in numbers)
    return [float(value) for value in numbers] if plain else None


def _merge(replies: list[Reply], accumulators: list[tuple[str, Reducer]]) -> None:
    """Feeds the reducers in the sampled order; a whole stack of sound replies in one go."""
    for _, own in itertools.groupby(replies, key=lambda reply: (reply.stack is None, id(reply.stack))):
        some = list(own)
        stack = some[0].stack
        if stack is not None and stack.sound and len(some) == stack.count:
            for group, reducer in accumulators:
                if stack.groups.get(group):
                    reducer.add_stack(stack.groups[group], some)
            continue
        for reply in some:
            whole = load(reply) if stack is None else replace(reply, groups=stack.take(reply.place))
            for group, reducer in accumulators:
                if whole.groups.get(group):
                    reducer.add(whole.groups[group], whole)
