"""A run's fixed part: method, data, model and settings. With a job it is all that a client's work needs."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from unskew.base import seeds
from unskew.base.batch import cross_entropy
from unskew.base.settings import LocalSettings
from unskew.base.tree import Groups, Tree
from unskew.core import local_loop
from unskew.core.context import BufferPolicy, ClientContext, Observer, ServerContext, Steps, bound_forward
from unskew.core.device import Device
from unskew.core.jobs import Job, Reply
from unskew.core.method import Method
from unskew.core.net import Net
from unskew.core.profile import Profile, ProfiledSteps
from unskew.data.batches import LocalData

if TYPE_CHECKING:
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
    def steps(self) -> Steps:
        """Gradients and steps of one client at a time."""
        return self.charged(local_loop.OneByOne(self.net.working_copy))

    def charged(self, steps: Steps) -> Steps:
        """Steps that are charged to the profile, if there is one."""
        return ProfiledSteps(steps, self.profile) if self.profile else steps

    def part(self, name: str) -> AbstractContextManager[None]:
        """Charges a while to a part of the profile, if there is one."""
        return self.profile.part(name) if self.profile else nullcontext()

    @cached_property
    def _initial_there(self) -> Groups:
        return self.device.there(self.initial)

    def settings(self, round_: int) -> LocalSettings:
        """Local settings of a round: the learning rate decays once a round."""
        return _decayed(self.local, self.lr_decay, max(0, round_ - 1))

    def cohort(self, round_: int) -> tuple[int, ...]:
        """The clients that are sent a message in a round."""
        drawn = tuple(seeds.cohort(self.seed, round_, self.num_clients, self.cohort_size))
        if not self.stragglers:
            return drawn
        online = tuple(client for client in drawn if self._online(round_, client))
        return online or drawn[:1]  # a round has at least one client

    def straggles(self, client: int) -> bool:
        """Whether a client is one of those that are often offline, the same ones in all rounds."""
        return bool(self.stragglers) and bool(self._straggling[client])

    @cached_property
    def _straggling(self) -> Tensor:
        """[clients] bool; drawn once, for all methods alike."""
        order = torch.randperm(self.num_clients, generator=seeds.generator(self.seed, "stragglers"))
        return order < int(self.stragglers * self.num_clients + 1e-9)

    def _online(self, round_: int, client: int) -> bool:
        if not self.straggles(client):
            return True
        drawn = torch.rand((), generator=seeds.generator(self.seed, "straggler", round_, client))
        return bool(drawn < self.straggler_online)

    def drops_out(self, round_: int, client: int) -> bool:
        """Whether a sampled client fails to reply in this round."""
        if self.dropout == 0:
            return False
        return bool(torch.rand((), generator=seeds.generator(self.seed, "dropout", round_, client)) < self.dropout)

    def server_context(self, round_: int, cohort: tuple[int, ...] = (), server: Groups | None = None) -> ServerContext:
        """What the server's slots may use in a round; its passes use the buffers of the server's state."""
        seeds.seed_layers(self.seed, "layers/server", round_)
        own = self.steps.copy((server or self.initial).get("buffers", {}))
        return ServerContext(
            **self._common(round_, own, self.buffer_policy != "average", self.steps), initial=self.initial,
            num_clients=self.num_clients, cohort=cohort, buffers=own, has_batchnorm=self.net.has_batchnorm,
        )  # fmt: skip

    def visit(self, job: Job, data: LocalData, steps: Steps | None = None, **more: Any) -> ClientContext:
        """What the client's slots may use in a visit, as the method prepared it; `more`: other fields of the context.

        `job` may stand for many clients at once: then its tensors are batched, and `steps` and `more` fit to that.
        """
        c = self.client_context(job, data, steps, **more)
        if not c.state:
            object.__setattr__(c, "state", self.method.init_client(c))  # still ours: no slot has seen it
        received = {"model": self.method.overlaid(c), "buffers": self._start_buffers(job)}
        object.__setattr__(c, "received", received)
        return self.method.prepare(c)

    def client_context(self, job: Job, data: LocalData, steps: Steps | None = None, **more: Any) -> ClientContext:
        """The context of a visit before the method prepared it; for job `test`, the global model's."""
        steps = steps or self.steps
        own = steps.copy(self._start_buffers(job))
        # clients that keep their statistics leave the global model without any
        none = self.buffer_policy == "reset" or (self.buffer_policy == "local" and job.kind in ("test", "validate"))
        kind = more.pop("context", ClientContext)
        context: ClientContext = kind(
            **self._common(job.round, own, none, steps), initial=self._initial_there, client=job.client,
            message=job.message, state=job.state, buffers=own, data=data, has_batchnorm=self.net.has_batchnorm,
            terms=self.method.outer_terms(), observers=self.observers if job.kind == "train" else (), **more,
        )  # fmt: skip
        return context

    def _common(self, round_: int, own: Tree, batch_statistics: bool, steps: Steps) -> dict[str, Any]:
        forward = self.device.cast(bound_forward(self.net, own, batch_statistics))
        return {
            "round": round_, "seed": self.seed, "num_classes": self.federation.dataset.num_classes,
            "settings": self.settings(round_), "names": self.net.names, "trainable": self.trainable, "steps": steps,
            "forward": self.profile.charged("forward", forward) if self.profile else forward,
            "buffer_policy": self.buffer_policy, "fresh": partial(self.net.fresh, self._initial_there),
            "constants": self.net.constants,
        }  # fmt: skip

    def _start_buffers(self, job: Job) -> Tree:
        if self.buffer_policy == "local" and "buffers" in job.state:
            return job.state["buffers"]
        if self.buffer_policy == "reset":
            return self._initial_there["buffers"]
        return job.message.get("buffers", self._initial_there["buffers"])

    # -------------------------------------------------------------------------------------- the work

    def work(self, job: Job) -> Reply:
        """Does one job: the same function in every executor that takes clients one by one."""
        seeds.seed_layers(self.seed, f"layers/{job.kind}", job.round, job.client)
        began = time.perf_counter()
        with self.part("evaluation" if job.kind in ("test", "validate", "personal") else "rest"):
            if not self.device.is_cpu:
                with self.part("transfer"):
                    job = replace(job, message=self.device.there(job.message), state=self.device.there(job.state))
            data, own = self._data(job)
            c = self.client_context(job, data) if own is None else self.visit(job, own)
            work = perform(self.method, job, c, data, self.eval_batch)
            groups, state = work.groups, work.state
            if not self.device.is_cpu:
                with self.part("transfer"):
                    groups, state = self.device.back(groups), self.device.back(state)
        return Reply(
            client=job.client,
            groups=groups,
            state=state,
            weight=float(work.weight) if work.weight is not None else float(len(data)),
            num_samples=len(data),
            num_steps=c.diagnostics.steps,
            diagnostics=c.diagnostics.means(),
            seconds=time.perf_counter() - began,
        )

    def _data(self, job: Job) -> tuple[LocalData, LocalData | None]:
        """The data that the job is about, and the data that a visit's slots see (None: there is no visit)."""
        with self.part("data"):
            if job.client < 0:
                return self.data(job), None
            own = self.training_data(job)
            return (self.data(job) if job.kind == "personal" else own), own

    def training_data(self, job: Job) -> LocalData:
        """The data that a visit's slots see."""
        return self.federation.train(job.client)

    def data(self, job: Job) -> LocalData:
        """The data that a job is about."""
        if job.kind in ("test", "validate"):
            return self.federation.common(job.kind, *job.part)
        return self.federation.local_test(job.client) if job.kind == "personal" else self.training_data(job)


class Work(NamedTuple):
    """What a job brought, before it is packed into a reply."""

    groups: Groups
    state: Groups
    weight: Tensor | None = None


def perform(method: Method, job: Job, c: ClientContext, data: LocalData, eval_batch: int) -> Work:
    """The work of a prepared visit; the same slots in the same order for one client and for many at once."""
    if job.kind == "train":
        return run_client(method, c)
    if job.kind == "survey":
        return Work(method.survey(c), {})
    params = method.personalise(c) if job.kind == "personal" else job.message["model"]
    return Work({"score": score(method, c, params, data, eval_batch)}, {})


def run_client(method: Method, c: ClientContext) -> Work:
    """A client's visit, from the prepared context to the reply."""
    params = method.train(c, method.start(c))
    if params.keys() >= set(c.trainable):  # some methods train something else than the model: condensed data
        for observer in c.observers:
            observer.trained(c, params)
    return Work(method.upload(c, params), method.keep(c, params), method.weight(c, params))


def score(method: Method, c: ClientContext, params: Tree, data: LocalData, batch: int) -> Tree:
    """For each sample, whether it is predicted right and its loss."""
    right, loss = [], []
    with torch.no_grad():
        for part in data.passes(batch):
            logits = method.predict(c, params, part.x)
            right.append(logits.argmax(1) == part.y)
            loss.append(cross_entropy(logits, part.y).float())
    if not right:
        return {"right": torch.empty(0, dtype=torch.bool), "loss": torch.empty(0)}
    return {"right": torch.cat(right), "loss": torch.cat(loss)}


@lru_cache(maxsize=4)
def _decayed(settings: LocalSettings, decay: float, times: int) -> LocalSettings:
    return replace(settings, lr=settings.lr * decay**times)
