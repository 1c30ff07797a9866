"""A run's fixed part: method, data, model and settings. With a job it is all that a client's work needs."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from unskew.core import seeds, tree
from unskew.core.context import BufferPolicy, ClientContext, LocalSettings, ServerContext, bound_forward
from unskew.core.jobs import Job, Reply
from unskew.core.method import Method
from unskew.core.net import Net
from unskew.core.tree import Groups, Tree
from unskew.data.local import LocalData

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
    eval_batch: int = 1000

    @property
    def num_clients(self) -> int:
        """How many clients there are."""
        return len(self.federation)

    @property
    def trainable(self) -> tuple[str, ...]:
        """The names that local training changes."""
        frozen = set(self.net.names.match(self.method.frozen))
        return tuple(name for name in self.net.names.params if name not in frozen)

    def settings(self, round_: int) -> LocalSettings:
        """Local settings of a round: the learning rate decays once a round."""
        return replace(self.local, lr=self.local.lr * self.lr_decay ** max(0, round_ - 1))

    def cohort(self, round_: int) -> tuple[int, ...]:
        """The clients that are sent a message in a round."""
        return tuple(seeds.cohort(self.seed, round_, self.num_clients, self.cohort_size))

    def drops_out(self, round_: int, client: int) -> bool:
        """Whether a sampled client fails to reply in this round."""
        if self.dropout == 0:
            return False
        return bool(torch.rand((), generator=seeds.generator(self.seed, "dropout", round_, client)) < self.dropout)

    def server_context(self, round_: int, cohort: tuple[int, ...] = (), server: Groups | None = None) -> ServerContext:
        """What the server's slots may use in a round; its passes use the buffers of the server's state."""
        seeds.seed_layers(self.seed, "layers/server", round_)
        own = tree.copy((server or self.initial).get("buffers", {}))
        return ServerContext(
            **self._common(round_, own, self.buffer_policy != "average"), num_clients=self.num_clients,
            cohort=cohort, buffers=own, has_batchnorm=self.net.has_batchnorm,
        )  # fmt: skip

    def client_context(self, job: Job, data: LocalData) -> ClientContext:
        """What the client's slots may use in a visit; for job `test`, the global model's."""
        own = tree.copy(self._start_buffers(job))
        # clients that keep their statistics leave the global model without any
        none = self.buffer_policy == "reset" or (self.buffer_policy == "local" and job.client < 0)
        return ClientContext(
            **self._common(job.round, own, none), client=job.client, message=job.message, state=job.state, buffers=own,
            data=data, has_batchnorm=self.net.has_batchnorm,
        )  # fmt: skip

    def _common(self, round_: int, own: Tree, batch_statistics: bool) -> dict:  # type: ignore[type-arg]
        return {
            "round": round_, "seed": self.seed, "num_classes": self.federation.dataset.num_classes,
            "settings": self.settings(round_), "forward": bound_forward(self.net, own, batch_statistics),
            "names": self.net.names, "trainable": self.trainable, "initial": self.initial,
            "buffer_policy": self.buffer_policy,
        }  # fmt: skip

    def _start_buffers(self, job: Job) -> Tree:
        if self.buffer_policy == "local" and "buffers" in job.state:
            return job.state["buffers"]
        if self.buffer_policy == "reset":
            return self.initial["buffers"]
        return job.message.get("buffers", self.initial["buffers"])

    # -------------------------------------------------------------------------------------- the work

    def work(self, job: Job) -> Reply:
        """Does one job: the same function in every executor."""
        seeds.seed_layers(self.seed, f"layers/{job.kind}", job.round, job.client)
        began = time.perf_counter()
        reply: Reply = getattr(self, f"_{job.kind}")(job)
        return replace(reply, seconds=time.perf_counter() - began)

    def _visit(self, job: Job) -> ClientContext:
        c = self.client_context(job, self.federation.train(job.client))
        c = replace(c, terms=self.method.outer_terms(), state=c.state or self.method.init_client(c))
        received = {"model": self.method.overlaid(c), "buffers": self._start_buffers(job)}
        return self.method.prepare(replace(c, received=received))

    def _train(self, job: Job) -> Reply:
        return run_client(self.method, self._visit(job))

    def _survey(self, job: Job) -> Reply:
        c = self._visit(job)
        groups = self.method.survey(c)
        return Reply(job.client, groups, weight=float(c.num_samples), num_samples=c.num_samples)

    def _test(self, job: Job) -> Reply:
        data = self.federation.common(job.kind, *job.part)
        c = self.client_context(job, data)
        return Reply(-1, {"score": score(self.method, c, job.message["model"], data, self.eval_batch)})

    _validate = _test

    def _personal(self, job: Job) -> Reply:
        c = self._visit(job)
        params = self.method.personalise(c)
        data = self.federation.local_test(job.client)
        return Reply(job.client, {"score": score(self.method, c, params, data, self.eval_batch)})


def run_client(method: Method, c: ClientContext) -> Reply:
    """A client's visit, from the prepared context to the reply."""
    params = method.train(c, method.start(c))
    return Reply(
        client=c.client,
        groups=method.upload(c, params),
        state=method.keep(c, params),
        weight=float(method.weight(c, params)),
        num_samples=c.num_samples,
        num_steps=c.num_steps,
        diagnostics=c.diagnostics.means(),
    )


def score(method: Method, c: ClientContext, params: Tree, data: LocalData, batch: int) -> Tree:
    """For each sample, whether it is predicted right and its loss."""
    right, loss = [torch.empty(0, dtype=torch.bool)], [torch.empty(0)]
    with torch.no_grad():
        for part in data.passes(batch):
            logits = method.predict(c, params, part.x)
            right.append(logits.argmax(1) == part.y)
            loss.append(F.cross_entropy(logits, part.y, reduction="none").float())
    return {"right": torch.cat(right), "loss": torch.cat(loss)}
