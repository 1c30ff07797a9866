"""The one place where a round is written."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from torch import Tensor

from unskew.base import seeds, tree
from unskew.base.errors import InputError, is_from_signal
from unskew.base.tree import Groups
from unskew.core.checks.asking import USABLE, ask_server, ask_weigh, is_usable_weight
from unskew.core.checks.faults import CAUGHT, Fault, client_error, server_error
from unskew.core.checks.plain import to_plain
from unskew.core.checks.returned import Wrong, check_alike, check_merged
from unskew.core.checks.watching import WatchedReducer, is_foreign, make_reducer
from unskew.core.context import ServerContext
from unskew.core.held import HeldReplies, load
from unskew.core.jobs import Executor, Job, Kind, Reply, Stack, StateStore, Wire
from unskew.core.observer import gather_reducers
from unskew.core.reducers import Reducer, Reducers, buffers
from unskew.core.slots import owner_of
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
    failed: str = ""
    """Why the run ends here: which slot gave the server numbers that are not finite. The state is the one before."""


def rounds(task: Task, executor: Executor, store: StateStore, server: Groups, first: int, last: int) -> Iterator[Round]:
    """Plays rounds `first` to `last`: sample, send, work, merge, update.

    Observers' reducers see the replies to training, too; their results reach no slot. A round after which the server's
    state is not finite is the last one, and leaves the state as it was.
    """
    method = task.method
    observing = gather_reducers(task.observers)
    seen = _find_earlier_clients(task, first)
    for number in range(first, last + 1):
        began, before = time.perf_counter(), server
        s = task.server_context(number, task.sample_cohort(number), server)
        exchange = _Exchange(task, executor, store, s, server, seen)
        if method.survey_reducers:
            surveyed = exchange.merge("survey", method.survey_reducers)
            if number == first and "survey" in task.guarded_slots:
                exchange.warn_unsent(method.survey_reducers, exchange.present)
            if exchange.present:
                surveyed_by = exchange.seed_layers_for("digest")
                server = exchange.check("digest", ask_server(task, "digest", surveyed_by, server, surveyed))
            exchange.brief_from(server)
        if not exchange.failed:
            merged = exchange.merge("train", {"buffers": buffers, **method.reducers}, observing)
            if number == first:
                exchange.warn_unsent(method.reducers, exchange.used)
        waited = time.perf_counter() - began
        if exchange.used:
            s = exchange.seed_layers_for("update").with_fields(replied=tuple(exchange.used))
            server = exchange.check("update", ask_server(task, "update", s, server, merged))
        whole = time.perf_counter() - began
        record = exchange.record() | {"lr": s.settings.lr}
        if s.record:
            record["method"] = _read_record(task, s.record)
        record["seconds"] = {
            "clients": sum(row.get("seconds", 0.0) for row in exchange.rows),
            "local": waited - exchange.merging,
            "aggregate": whole - waited + exchange.merging,
        }
        clients = [*exchange.rows, *exchange.dropped_rows()]
        server = before if exchange.failed else server
        yield Round(number, server, record, clients, exchange.observed, exchange.failed)
        if exchange.failed:
            return


def _find_earlier_clients(task: Task, first: int) -> set[int]:
    """Who was sent a message before this round; only asked where the network froze parameters, which are sent once."""
    if not task.net.names.fixed:
        return set()
    return {client for number in range(1, first) for client in task.sample_cohort(number)}


class _Exchange:
    """One round's traffic: who was sent what, whose reply counts, and the merged groups."""

    def __init__(
        self, task: Task, executor: Executor, store: StateStore, s: ServerContext, server: Groups, seen: set[int]
    ) -> None:
        self.task, self.executor, self.store, self.s = task, executor, store, s
        self._reading = s.read_only()
        self._seen = seen
        """Clients that have had a message, and with it what the network froze."""
        self._before = server
        self._surveyed: Groups | None = None
        self._common: Groups | None = None
        """The message, where all clients get the same one."""
        self._common_size = 0
        self.dropped = [client for client in s.cohort if task.drops_out(s.round, client)]
        self.present = dict.fromkeys(client for client in s.cohort if client not in set(self.dropped))
        self.used: list[int] = []
        self.excluded: list[int] = []
        self.faults: dict[str, str] = {}
        """What was wrong with the replies of excluded clients."""
        self.rows: list[dict[str, Any]] = []
        self.down: dict[int, int] = {}
        self.up: dict[int, int] = {}
        self.merging = 0.0
        self.failed = ""
        """Which slot gave the server numbers that are not finite."""
        self.observed: dict[str, Reducer] = {}
        self._holds = task.weighs_at_the_end
        """Whether weights are known only when the last reply is in."""
        self._weights: dict[int, float] = {}
        """What that rule gave."""
        self._read: set[str] = set()
        """The groups that the method's reducers read."""
        self._sent: set[str] = set()
        """Those that clients sent."""
        self._shapes: Groups = {}
        """A tensor of each name that was sent, where somebody's method sends them."""
        self._alike: dict[str, int] = {}
        """The groups whose tensors must be alike, and from which dimension on."""
        self._decoded: tuple[Stack, Stack, list[bool]] | None = None
        """The newest stack as it was sent and as it reads, and who sent finite numbers."""

    def seed_layers_for(self, slot: str, client: int = -1) -> ServerContext:
        """The server's context, after seeding what layers draw from in this slot; the defaults draw nothing."""
        if slot in self.task.own_slots:
            seeds.seed_layers(self.task.seed, f"layers/{slot}", self.s.round, client)
        return self.s if slot in ("digest", "update") else self._reading

    def check(self, slot: str, server: Groups) -> Groups:
        """The state that a slot gave, as a checkpoint would give it back; notes if it is not finite."""
        self.failed = find_failure(self.task, slot, server, self.s)
        return tree.settle(server) if self.task.guarded_slots else server

    def brief_from(self, server: Groups) -> None:
        """From now on messages hold the brief of the server's state after the survey."""
        self._surveyed = server

    def message(self, client: int) -> Groups:
        """The client's message, made when it is its turn, and its bytes; what a survey sent is not sent again."""
        if self._common is not None:
            self.down[client] = self._common_size
            self._count_fixed(client, self._common)
            return self._common
        s = self.seed_layers_for("download", client)
        message: Groups = ask_server(self.task, "download", s, self._before, client, client=client)
        message = self._make_own("download", message, self._before, client)
        if self._surveyed is None:
            self._count(client, message)
            if self.task.sends_alike:
                self._common, self._common_size = message, self.down[client]
            self._count_fixed(client, message)
            return message
        s = self.seed_layers_for("brief", client)
        brief: Groups = ask_server(self.task, "brief", s, self._surveyed, client, client=client)
        brief = self._make_own("brief", brief, self._surveyed, client)
        if twice := brief.keys() & message.keys():
            what = f"sends group '{min(twice)}', which download has sent already; give it another name"
            fault = Fault(owner_of(self.task.method, "brief"), "brief", what)
            raise server_error(fault, self.s.round, client) from fault
        self._count(client, brief)
        return {**message, **brief}

    def _make_own(self, slot: str, message: Groups, server: Groups, client: int) -> Groups:
        """The message; what somebody's slot made for it as copies, as the slot may use its tensors again.

        A fault where they are NaN or infinite; those of the server's state are finite, and stay as they are.
        """
        if slot not in self.task.guarded_slots:
            return message
        made = {group: {n: v.clone() for n, v in own.items() if v is not server.get(group, {}).get(n)}
                for group, own in message.items()}  # fmt: skip
        if (group := self.task.find_spoilt(made)) is not None:
            fault = Fault(owner_of(self.task.method, slot), slot, f"sends NaN or infinite numbers (group '{group}')")
            raise server_error(fault, self.s.round, client) from fault
        return {group: {name: made[group].get(name, value) for name, value in own.items()}
                for group, own in message.items()}  # fmt: skip

    def warn_unsent(self, reducers: Reducers, senders: Collection[int]) -> None:
        """Says which groups a method merges though nobody sends them, but for those that every method merges."""
        read = {how[0] if isinstance(how, tuple) else name for name, how in reducers.items()}
        missing = sorted(read - self._sent - {"delta", "buffers"})
        if senders and missing:
            log.warning(
                "%s has a reducer for '%s', which no client sent in round %d; they sent %s",
                self.task.method.name, missing[0], self.s.round, ", ".join(sorted(self._sent)) or "nothing",
            )  # fmt: skip

    def _count(self, client: int, groups: Groups) -> None:
        self.down[client] = self.down.get(client, 0) + tree.nbytes(groups)

    def _count_fixed(self, client: int, message: Groups) -> None:
        """What the network froze is sent once, with the first message; what is the client's own not even then."""
        fixed = self.s.names.fixed
        if not fixed or client in self._seen:
            return
        self._seen.add(client)
        travels = self.task.method.division.shared(self.s, tree.select(self.s.initial["model"], fixed))
        self._count(client, {"fixed": tree.without(travels, message.get("model", {}))})

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
        pairs = {name: how if isinstance(how, tuple) else (name, how) for name, how in reducers.items()}
        return {name: (group, make_reducer(how, self.s)) for name, (group, how) in pairs.items()}

    def merge(self, kind: Kind, reducers: Reducers, observing: Reducers | None = None) -> Groups:
        """Sends the jobs and merges the replies as they come, in the sampled order; observers see them too."""
        accumulators, observed = self._make_reducers(reducers), self._make_reducers(observing or {})
        self._read = {group for group, _ in accumulators.values()}
        self.observed = {name: reducer for name, (_, reducer) in observed.items()}
        self._shapes, self._alike = {}, _find_alike([*accumulators.values(), *observed.values()])
        every = self._watch([*accumulators.values(), *observed.values()])
        if self._surveyed is None:
            for client in self.dropped:
                self.message(client)  # it was sent, though nothing comes back
        if self._holds and kind == "train":
            self._merge_at_the_end(kind, every)
        else:
            self._merge_as_they_come(kind, every)
        if kind == "train":
            self._note_shares()
        merged = {name: reducer.result() for name, reducer in zip(accumulators, (r for _, r in every), strict=False)}
        if kind == "train" and self.task.guarded_slots and "update" not in self.task.own_slots:
            self._check_merged(accumulators, merged)
        return merged

    def _check_merged(self, accumulators: dict[str, tuple[str, Reducer]], merged: Groups) -> None:
        """Refuses what the default `update` could not add to the model; weights that are all 0 have no mean."""
        if any(row.get("share") for row in self.rows):
            for name in merged.keys() & {"delta", "buffers"}:
                group, reducer = accumulators[name]
                check_merged(reducer, merged[name], self._shapes.get(group, {}))

    def _watch(self, accumulators: list[tuple[str, Reducer]]) -> list[tuple[str, Reducer]]:
        """Reducers from outside the package are looked at while they work."""
        return [
            (group, cast("Reducer", self._watch_one(f"{group} {place}", reducer)))
            if is_foreign([reducer])
            else (group, reducer)
            for place, (group, reducer) in enumerate(accumulators)
        ]

    def _watch_one(self, purpose: str, reducer: Reducer) -> WatchedReducer:
        """It draws the same numbers whoever works between its calls."""

        def seed(client: int) -> None:
            seeds.seed_layers(self.task.seed, f"layers/reducer {purpose}", self.s.round, client)

        return WatchedReducer(reducer, self.task.is_first(f"reducer {type(reducer).__name__}"), seed)

    def _merge_as_they_come(self, kind: Kind, accumulators: list[tuple[str, Reducer]]) -> None:
        waiting: list[Reply] = []  # for the last one of its stack
        for reply in self.executor.run(self._jobs(kind)):
            began = time.perf_counter()
            taken = self._take(kind, reply)
            if reply.stack is None:
                if taken is not None:
                    _add(taken, accumulators)
            else:
                if taken is not None:
                    waiting.append(taken)
                if reply.place == reply.stack.count - 1:
                    _merge(waiting, accumulators)
                    waiting = []
            self.merging += time.perf_counter() - began

    def _merge_at_the_end(self, kind: Kind, accumulators: list[tuple[str, Reducer]]) -> None:
        held = HeldReplies()
        try:
            for reply in self.executor.run(self._jobs(kind)):
                if (taken := self._take(kind, reply)) is not None:
                    held.add(self._keep(taken))
            began = time.perf_counter()
            _merge(self._weigh(held.replies), accumulators)
            self.merging += time.perf_counter() - began
        finally:
            held.close()

    def _keep(self, reply: Reply) -> Reply:
        """A reply that waits for the others; of somebody's slot as a copy, as the slot may use its tensors again."""
        if "upload" not in self.task.guarded_slots or reply.stack is not None or not isinstance(reply.groups, dict):
            return reply
        return reply._replace(groups=tree.copy_groups(reply.groups))

    def _weigh(self, replies: list[Reply]) -> list[Reply]:
        """The replies with the weights that the method's own rule gives them."""
        if not replies:
            return []
        whole = [reply if reply.stack is None else reply._replace(groups=reply.stack.take(reply.place))
                 for reply in replies]  # fmt: skip
        self.seed_layers_for("weigh")
        given: Any = ask_weigh(self.task, self.s.read_only(), whole)
        found = _read_weights(given)
        if found is None or len(found) != len(replies) or not all(map(is_usable_weight, found)):
            shown = f"{len(found)}: {found}" if found is not None else repr(given)
            fault = Fault(
                owner_of(self.task.method, "weigh"), "weigh",
                f"must return a list of {len(replies)} weights, one for each reply, {USABLE}, got {shown[:200]}",
            )  # fmt: skip
            raise server_error(fault, self.s.round) from fault
        self._weights = {reply.client: weight for reply, weight in zip(replies, found, strict=True)}
        return [reply._replace(weight=weight) for reply, weight in zip(replies, found, strict=True)]

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
        if reply.place == 0:  # those of a stack send the same groups
            self._refuse_unread(kind, sent)
        reply = self._decode(reply) if kind == "train" else reply
        good = tree.all_finite(reply.groups) if reply.finite is None else reply.finite
        if not self._holds:  # else the method's own rule judges it
            good = good and math.isfinite(reply.weight) and reply.weight >= 0
        if kind == "train" and good:  # what it keeps it would send next time
            sound = reply.state_finite
            good = self.task.find_spoilt(reply.state) is None if sound is None else sound
        if reply.fault or not good:
            self.excluded.append(reply.client)
            self.faults[str(reply.client)] = _find_fault(reply)
            self.present.pop(reply.client)
            self.rows.append(self._row(reply, used=False))
            return None
        if self.task.guarded_slots:
            self._compare_shapes("upload" if kind == "train" else "survey", reply)
        if kind == "train":
            self.used.append(reply.client)
            self.store.put(reply.client, reply.state, self.s.round)
            self.rows.append(self._row(reply, used=True))
        return reply

    def _refuse_unread(self, kind: Kind, sent: Groups) -> None:
        """A fault where a method sends what it has no reducer for; notes what is sent."""
        self._sent.update(sent)
        if unread := sent.keys() - self._read:
            slot = "survey" if kind == "survey" else "upload"
            said = f"sends {sorted(unread)} but has no reducer for it; add one"
            fault = Fault(owner_of(self.task.method, slot), slot, said)
            raise server_error(fault, self.s.round) from fault

    def _compare_shapes(self, slot: str, reply: Reply) -> None:
        """Refuses a reply whose tensors are not like those before it, where a reducer would broadcast or convert."""
        own = reply.groups if reply.stack is None else reply.stack.take(reply.place)
        for group, value in own.items():
            known = self._shapes.get(group, {})
            if group in self._alike:
                try:
                    check_alike(group, value, known, self._alike[group])
                except Wrong as wrong:
                    fault = Fault(owner_of(self.task.method, slot), slot, str(wrong))
                    raise client_error(fault, reply.client, self.s.round) from None
            self._shapes[group] = {**value, **known}

    def _decode(self, reply: Reply) -> Reply:
        """The reply as everything at the server reads it; a stack is decoded once for all its clients."""
        wire = self.task.wire
        if wire is None:
            return reply
        if wire.is_foreign:
            groups = reply.groups if reply.stack is None else reply.stack.take(reply.place)
            return reply._replace(groups=self._ask_wire(wire, reply.client, groups), stack=None, place=0, finite=None)
        if reply.stack is None:
            return reply._replace(groups=wire.decode(reply.groups), finite=None)
        if self._decoded is None or self._decoded[0] is not reply.stack:
            self._decoded = reply.stack, *reply.stack.decode(wire)
        _, stack, finite = self._decoded
        return reply._replace(stack=stack, finite=finite[reply.place])

    def _ask_wire(self, wire: Wire, client: int, groups: Groups) -> Groups:
        """What somebody's processors read; they draw the same numbers whoever works between their calls."""
        seeds.seed_layers(self.task.seed, "layers/decode", self.s.round, client)
        try:
            return wire.decode(groups)
        except InputError:
            raise
        except CAUGHT as error:
            if is_from_signal(error):
                raise
            raise server_error(error, self.s.round, client) from error

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
            **({"faults": self.faults} if self.faults else {}),
            "diverged": bool(self.failed) or (bool(self.excluded) and not self.used),
            **({"stopped": self.failed} if self.failed else {}),
            "train_loss": sum(losses) / len(losses) if losses else None,
            "bytes_down": sum(self.down.values()),
            "bytes_up": sum(self.up.values()),
        }


def find_failure(task: Task, slot: str, server: Groups, s: ServerContext) -> str:
    """What is not finite of all that a slot of the server gave; empty: nothing."""
    group = task.find_spoilt(server)
    if group is None and not s.per_client.spoilt:
        return ""
    where = f"group '{group}'" if group is not None else f"s.per_client of client {s.per_client.spoilt[0]}"
    return f"{task.method.name}.{slot} gave the server NaN or infinite numbers ({where})"


def _read_record(task: Task, said: Any) -> dict[str, Any]:
    """What the server had to say of the round (`s.record`), in plain values."""
    try:
        return to_plain(said, "number, text, list or dict of such", text=True)
    except Wrong as wrong:
        raise Fault(owner_of(task.method, "update"), "update", f"gives a record (s.record) {wrong}") from None


def _find_fault(reply: Reply) -> str:
    """Why a reply cannot be used."""
    if reply.fault:
        return reply.fault
    groups = reply.groups if reply.stack is None else reply.stack.take(reply.place)
    spoilt = [group for group, own in groups.items() if not tree.all_finite({group: own})]
    if spoilt:
        return f"NaN or infinite values in group {', '.join(spoilt)}"
    if not (math.isfinite(reply.weight) and reply.weight >= 0):
        return f"a weight of {reply.weight:g}, where only finite ones from 0 up count"
    return "NaN or infinite values in what it keeps"


def _find_alike(accumulators: list[tuple[str, Reducer]]) -> dict[str, int]:
    """The groups whose tensors must be alike, and from which dimension on; the strictest reader counts."""
    found: dict[str, int] = {}
    for group, reducer in accumulators:
        if reducer.alike is not None:
            found[group] = min(reducer.alike, found.get(group, reducer.alike))
    return found


def _read_weights(given: Any) -> list[float] | None:
    """The numbers of a list, tuple or vector; None if it is nothing of the kind."""
    every = (given, *given) if isinstance(given, (list, tuple)) else (given,)
    if any(isinstance(value, Tensor) and value.is_meta for value in every):
        return None  # of which nobody knows the value
    values = given.tolist() if isinstance(given, Tensor) else given
    if not isinstance(values, (list, tuple)):
        return None
    numbers = [value.item() if isinstance(value, Tensor) and value.numel() == 1 else value for value in values]
    plain = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in numbers)
    return [float(value) for value in numbers] if plain else None


def _merge(replies: list[Reply], accumulators: list[tuple[str, Reducer]]) -> None:
    """Feeds the reducers in the sampled order; a whole stack of sound replies in one go."""
    for _, own in itertools.groupby(replies, key=lambda reply: id(reply.stack)):  # id(None): came alone
        some = list(own)
        stack = some[0].stack
        if stack is None:
            for reply in some:
                _add(load(reply), accumulators)
        elif stack.sound and len(some) == stack.count:
            for group, reducer in accumulators:
                if stack.groups.get(group):
                    reducer.add_stack(stack.groups[group], some)
        else:
            for reply in some:
                _add(reply._replace(groups=stack.take(reply.place)), accumulators)


def _add(reply: Reply, accumulators: list[tuple[str, Reducer]]) -> None:
    for group, reducer in accumulators:
        if value := reply.groups.get(group):
            reducer.add(value, reply)
