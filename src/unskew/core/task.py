"""A run's fixed part: method, data, model and settings. With a job it is all that a client's work needs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unskew.base import seeds, tree
from unskew.base.errors import InputError
from unskew.base.registry import Component
from unskew.base.settings import LocalSettings
from unskew.base.tree import Groups
from unskew.core import local_loop, visit
from unskew.core.checks.watching import is_foreign
from unskew.core.context import BufferPolicy, ClientContext, Context, ServerContext, Steps
from unskew.core.device import Device
from unskew.core.jobs import Job, Reply, StateStore, Wire
from unskew.core.method import Method
from unskew.core.net import Net
from unskew.core.observer import Observer
from unskew.core.optimisers import Optimiser
from unskew.core.per_client import MemoryStore
from unskew.core.profile import Profile
from unskew.core.schedule import Schedule, read_factor
from unskew.core.slots import NAMES, overrides
from unskew.core.term import NotedTerms, Term
from unskew.core.wrapper import walk_nested

if TYPE_CHECKING:
    from unskew.data.batches import LocalData
    from unskew.data.federation import Federation

_TEST_PART = 1000


@dataclass(frozen=True)
class Task:
    """Everything about a run that does not change from round to round."""

    method: Method
    federation: Federation
    net: Net
    initial: Groups
    seed: int
    local: LocalSettings
    schedule: Schedule
    buffer_policy: BufferPolicy
    cohort_size: int
    dropout: float = 0.0
    stragglers: float = 0.0
    straggler_online: float = 0.5
    eval_batch: int = 1000
    device: Device = field(default_factory=Device)
    profile: Profile | None = None
    observers: tuple[Observer, ...] = ()
    rounds: int = 0
    wire: Wire | None = None
    """What happens to replies between client and server; None: nothing."""
    server_store: StateStore = field(default_factory=MemoryStore)
    """What the server remembers of single clients."""

    @property
    def test_part(self) -> int:
        """Samples of a common test that one job takes: whole test batches, as near to a thousand as that allows."""
        return self.eval_batch * max(1, _TEST_PART // self.eval_batch)

    @property
    def num_clients(self) -> int:
        """How many clients there are."""
        return len(self.federation)

    @cached_property
    def trainable(self) -> tuple[str, ...]:
        """The names that local training changes."""
        frozen = self.net.names.fixed.union(self.net.names.match(self.method.frozen))
        return tuple(name for name in self.net.names.params if name not in frozen)

    @cached_property
    def client_observers(self) -> tuple[Observer, ...]:
        """Those observers that look at clients' work."""
        return tuple(observer for observer in self.observers if observer.sees_clients)

    @cached_property
    def weighs_at_the_end(self) -> bool:
        """Whether the method has a rule of its own for the weights of a round, which sees all replies."""
        return overrides(self.method, "weigh")

    @cached_property
    def own_slots(self) -> frozenset[str]:
        """The slots that are not the defaults."""
        return frozenset(slot for slot in (*NAMES, "receive") if overrides(self.method, slot))

    @cached_property
    def guarded_slots(self) -> frozenset[str]:
        """Slots whose results are checked, and that they change nothing: where code from outside the package runs.

        The package's own methods are known to keep to it (tests/contract), and pay nothing.
        """
        divisions = [method.division for method in walk_nested(self.method)]
        parts = (*walk_nested(self.method), *self.method.used_terms(), *self.client_observers, *divisions,
                 *self._optimiser)  # fmt: skip
        if not is_foreign(parts):
            return frozenset()
        return self.own_slots | {"train"} | ({"download", "upload"} if is_foreign(divisions) else set())

    @cached_property
    def sends_alike(self) -> bool:
        """Whether all clients get the same message: the default one, with nothing said after a survey."""
        return not self.guarded_slots and not self.method.survey_reducers and "download" not in self.own_slots

    @cached_property
    def reads_sent(self) -> bool:
        """Whether a slot may look at what `upload` gave; the defaults do not."""
        return not self.own_slots.isdisjoint({"keep", "weight"})

    @cached_property
    def watched_parts(self) -> tuple[Component, ...]:
        """Methods and terms that nothing may be kept in, where any is from outside the package: it reaches the rest."""
        parts = (*walk_nested(self.method), *self.method.used_terms(), *self._optimiser)
        return parts if is_foreign(parts) else ()

    @property
    def _optimiser(self) -> tuple[Optimiser, ...]:
        """The optimiser of local training, where it is not SGD."""
        return (self.local.optimiser,) if isinstance(self.local.optimiser, Optimiser) else ()

    @cached_property
    def has_foreign_model(self) -> bool:
        """Whether the network has layers from outside the package."""
        return is_foreign(self.net.module.modules())

    @property
    def has_foreign_wire(self) -> bool:
        """Whether a wire processor is from outside the package."""
        return self.wire is not None and self.wire.is_foreign

    @cached_property
    def _begun(self) -> set[str]:
        return set()

    def is_first(self, work: str) -> bool:
        """Whether this kind of work is done for the first time in this process."""
        first = work not in self._begun
        self._begun.add(work)
        return first

    @cached_property
    def loss_terms(self) -> tuple[Term, ...]:
        """The terms of the local loss."""
        found = self.method.loss_terms()
        return NotedTerms(found) if self.given_terms and is_foreign(walk_nested(self.method)) else found

    @cached_property
    def given_terms(self) -> tuple[Term, ...]:
        """Those that the user gave, beside a method's own."""
        return tuple(term for method in walk_nested(self.method) for term in method.terms)

    @cached_property
    def maps(self) -> tuple[str, ...]:
        """Layers whose outputs the terms of a visit want to see."""
        found: dict[str, None] = {}
        for term in self.method.used_terms():
            layers = term.maps(self.net.names)
            if not isinstance(layers, tuple):
                raise InputError(f"term {term.name}: maps must give a tuple of layers' names, got {layers!r}")
            found.update(dict.fromkeys(layers))
        return tuple(found)

    @cached_property
    def needs(self) -> frozenset[str]:
        """What the terms of a visit need beyond the batch."""
        return frozenset(need for term in self.method.used_terms() for need in term.needs)

    @cached_property
    def keeps_previous(self) -> bool:
        """Whether clients remember their model for a term that needs it."""
        return "previous" in self.needs

    @cached_property
    def blanks(self) -> dict[type[Context], Context]:
        """Contexts of each kind with what is the same in every visit, for visit.py to fill in."""
        return {}

    @cached_property
    def steps(self) -> Steps:
        """Gradients and steps of one client at a time."""
        return local_loop.OneByOne(self.net.working_copy)

    @cached_property
    def initial_on_device(self) -> Groups:
        """The initial model and buffers where clients work."""
        return self.device.to_device(self.initial)

    def find_spoilt(self, groups: Groups) -> str | None:
        """The first group that holds NaN or infinite numbers; None: all is well."""
        if tree.all_finite(groups):
            return None
        return next((group for group, own in groups.items() if not tree.all_finite({group: own})), None)

    def settings(self, round_: int) -> LocalSettings:
        """Local settings of a round: the learning rate changes once a round."""
        times = max(0, round_ - 1)
        if times not in self._decayed:
            self._decayed.clear()  # of one round at a time
            self._decayed[times] = replace(self.local, lr=self.local.lr * read_factor(self.schedule, times))
        return self._decayed[times]

    @cached_property
    def _decayed(self) -> dict[int, LocalSettings]:
        return {}

    # ---------------------------------------------------------------------------------- who takes part

    def sample_cohort(self, round_: int) -> tuple[int, ...]:
        """The clients that are sent a message in a round."""
        drawn = tuple(seeds.sample_cohort(self.seed, round_, self.num_clients, self.cohort_size))
        if not self.stragglers:
            return drawn
        online = tuple(client for client in drawn if self._is_online(round_, client))
        return online or drawn[:1]  # a round has at least one client

    def straggles(self, client: int) -> bool:
        """Whether a client is one of those that are often offline, the same ones in all rounds."""
        return bool(self.stragglers) and bool(self._straggling[client])

    @cached_property
    def _straggling(self) -> Tensor:
        """[clients] bool; drawn once, for all methods alike."""
        order = torch.randperm(self.num_clients, generator=seeds.generator(self.seed, "stragglers"))
        return order < int(self.stragglers * self.num_clients + 1e-9)

    def _is_online(self, round_: int, client: int) -> bool:
        if not self.straggles(client):
            return True
        drawn = torch.rand((), generator=seeds.generator(self.seed, "straggler", round_, client))
        return bool(drawn < self.straggler_online)

    def drops_out(self, round_: int, client: int) -> bool:
        """Whether a sampled client fails to reply in this round."""
        if self.dropout == 0:
            return False
        return bool(torch.rand((), generator=seeds.generator(self.seed, "dropout", round_, client)) < self.dropout)

    # ------------------------------------------------------------------------- what is done with it: visit.py

    def work(self, job: Job) -> Reply:
        """Does one job."""
        return visit.work(self, job)

    def visit(self, job: Job, data: LocalData) -> ClientContext:
        """What the client's slots may use in a visit, as the method prepared it."""
        return visit.open_visit(self, job, data)

    def client_context(self, job: Job, data: LocalData) -> ClientContext:
        """The same before the method prepared it."""
        return visit.client_context(self, job, data)

    def server_context(self, round_: int, cohort: tuple[int, ...] = (), server: Groups | None = None) -> ServerContext:
        """What the server's slots may use in a round."""
        return visit.server_context(self, round_, cohort, server)
