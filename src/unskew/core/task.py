"""A run's fixed part: method, data, model and settings. With a job it is all that a client's work needs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unskew.base import seeds
from unskew.base.errors import InputError
from unskew.base.settings import LocalSettings
from unskew.base.tree import Groups
from unskew.core import local_loop, visit
from unskew.core.context import BufferPolicy, ClientContext, ServerContext, Steps
from unskew.core.device import Device
from unskew.core.jobs import Job, Reply, StateStore, Wire
from unskew.core.method import Method
from unskew.core.net import Net
from unskew.core.observer import Observer
from unskew.core.per_client import MemoryStore
from unskew.core.profile import Profile
from unskew.core.term import Term

if TYPE_CHECKING:
    from unskew.data.batches import LocalData
    from unskew.data.federation import Federation


@dataclass(frozen=True)
class Task:
    """Everything about a run that does not change from round to round."""

    method: Method
    federation: Federation
    net: Net
    initial: Groups
    seed: int
    local: LocalSettings
    lr_decay: float
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
    def num_clients(self) -> int:
        """How many clients there are."""
        return len(self.federation)

    @cached_property
    def trainable(self) -> tuple[str, ...]:
        """The names that local training changes."""
        frozen = set(self.net.names.match(self.method.frozen))
        return tuple(name for name in self.net.names.params if name not in frozen)

    @cached_property
    def client_observers(self) -> tuple[Observer, ...]:
        """Those observers that look at clients' work."""
        return tuple(observer for observer in self.observers if observer.sees_clients)

    @cached_property
    def loss_terms(self) -> tuple[Term, ...]:
        """The terms of the local loss."""
        return self.method.loss_terms()

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

    @property
    def keeps_previous(self) -> bool:
        """Whether clients remember their model for a term that needs it."""
        return "previous" in self.needs

    @cached_property
    def steps(self) -> Steps:
        """Gradients and steps of one client at a time."""
        return local_loop.OneByOne(self.net.working_copy)

    @cached_property
    def initial_on_device(self) -> Groups:
        """The initial model and buffers where clients work."""
        return self.device.to_device(self.initial)

    def settings(self, round_: int) -> LocalSettings:
        """Local settings of a round: the learning rate decays once a round."""
        return _decay(self.local, self.lr_decay, max(0, round_ - 1))

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


@lru_cache(maxsize=4)
def _decay(settings: LocalSettings, decay: float, times: int) -> LocalSettings:
    return replace(settings, lr=settings.lr * decay**times)
