"""The one place where a round is written."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from unskew.core import tree
from unskew.core.context import ServerContext
from unskew.core.jobs import Executor, Job, Kind, Reply
from unskew.core.reducers import Reducer, Reducers
from unskew.core.store import StateStore
from unskew.core.task import Task
from unskew.core.tree import Groups


@dataclass
class Round:
    """A finished round: the server's state after it, and what there is to record of it."""

    number: int
    server: Groups
    record: dict[str, Any]
    clients: list[dict[str, Any]] = field(default_factory=list)


def rounds(task: Task, executor: Executor, store: StateStore, server: Groups, first: int, last: int) -> Iterator[Round]:
    """Plays rounds `first` to `last`: sample, send, work, merge, update."""
    method = task.method
    for number in range(first, last + 1):
        began = time.perf_counter()
        s = task.server_context(number, task.cohort(number))
        exchange = _Exchange(task, executor, store, s)
        messages = {client: method.download(s, server, client) for client in s.cohort}
        exchange.sent(messages)
        if method.survey_reducers:
            surveyed = exchange.merge("survey", messages, method.survey_reducers)
            if exchange.present:
                server = method.digest(s, server, surveyed)
            briefs = {client: method.brief(s, server, client) for client in exchange.present}
            exchange.sent(briefs)
            messages = {client: {**messages[client], **briefs[client]} for client in exchange.present}
        merged = exchange.merge("train", messages, method.reducers)
        waited = time.perf_counter() - began
        if exchange.used:
            server = method.update(s, server, merged)
        whole = time.perf_counter() - began
        record = exchange.record() | {"lr": s.settings.lr}
        record["seconds"] = {"local": waited - exchange.merging, "aggregate": whole - waited + exchange.merging}
        yield Round(number, server, record, [*exchange.rows, *exchange.dropped_rows()])


class _Exchange:
    """One round's traffic: who was sent what, whose reply counts, and the merged groups."""

    def __init__(self, task: Task, executor: Executor, store: StateStore, s: ServerContext) -> None:
        self.task, self.executor, self.store, self.s = task, executor, store, s
        self.dropped = [client for client in s.cohort if task.drops_out(s.round, client)]
        self.present = [client for client in s.cohort if client not in self.dropped]
        self.used: list[int] = []
        self.excluded: list[int] = []
        self.rows: list[dict[str, Any]] = []
        self.down: dict[int, int] = {}
        self.up: dict[int, int] = {}
        self.merging = 0.0

    def sent(self, messages: dict[int, Groups]) -> None:
        for client, message in messages.items():
            self.down[client] = self.down.get(client, 0) + tree.nbytes(message)

    def dropped_rows(self) -> list[dict[str, Any]]:
        """A row for each client that was sent a message and never replied."""
        common = {"round": self.s.round, "used": False, "dropped": True, "bytes_up": 0}
        return [{**common, "client": client, "bytes_down": self.down[client]} for client in self.dropped]

    def merge(self, kind: Kind, messages: dict[int, Groups], reducers: Reducers) -> Groups:
        """Sends the jobs and merges the replies as they come, in the sampled order."""
        accumulators = {
            name: (how[0], how[1](self.s)) if isinstance(how, tuple) else (name, how(self.s))
            for name, how in reducers.items()
        }
        for reply in self.executor.run(self._jobs(kind, messages)):
            began = time.perf_counter()
            self._take(kind, reply, accumulators.values())
            self.merging += time.perf_counter() - began
        return {name: reducer.result() for name, (_, reducer) in accumulators.items()}

    def _jobs(self, kind: Kind, messages: dict[int, Groups]) -> Iterator[Job]:
        for client in list(self.present):
            yield Job(kind, self.s.round, client, messages[client], self.store.get(client))

    def _take(self, kind: Kind, reply: Reply, accumulators: Iterable[tuple[str, Reducer]]) -> None:
        own_weight = 0 if reply.weight == reply.num_samples else 4  # a weight the server cannot know is sent too
        self.up[reply.client] = self.up.get(reply.client, 0) + tree.nbytes(reply.groups) + own_weight
        finite = tree.all_finite(reply.groups)
        if not finite:
            self.excluded.append(reply.client)
            self.present.remove(reply.client)
        else:
            for group, reducer in accumulators:
                if group in reply.groups:
                    reducer.add(reply.groups[group], reply.weight, reply.client)
        if kind == "train":
            if finite:
                self.used.append(reply.client)
                self.store.put(reply.client, reply.state, self.s.round)
            self.rows.append(self._row(reply, finite))

    def _row(self, reply: Reply, finite: bool) -> dict[str, Any]:
        return {
            "round": self.s.round,
            "client": reply.client,
            "samples": reply.num_samples,
            "steps": reply.num_steps,
            "weight": reply.weight,
            "used": finite,
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
