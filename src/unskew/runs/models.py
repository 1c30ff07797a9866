"""The networks that a run leaves: the global one, and each client's own as its test used it."""

from __future__ import annotations

import operator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from unskew.base import seeds
from unskew.base.batch import Output
from unskew.base.errors import InputError
from unskew.base.process import prepare_process
from unskew.base.torch_private import BatchNormBase
from unskew.base.tree import Groups, Tree
from unskew.core.context import ClientContext
from unskew.core.jobs import Job, StateStore
from unskew.core.net import Mode, Net
from unskew.core.task import Task
from unskew.core.visit import client_context, open_personal, open_visit
from unskew.data.dataset import Samples
from unskew.models.base import Model
from unskew.runs.building import build_model
from unskew.runs.config import Run


class Pass(NamedTuple):
    """One pass through the network: what it was asked for and what it gave."""

    params: Tree
    buffers: Tree
    x: Tensor
    mode: Mode
    whole: bool
    """Through the whole network as it is."""
    logits: Tensor


class TappedNet:
    """A network that notes the passes through it."""

    def __init__(self, net: Net) -> None:
        self._net = net
        self.passes: list[Pass] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._net, name)

    def __call__(self, params: Tree, buffers: Tree, x: Tensor, mode: Mode, *options: Any) -> Output:
        """The network's pass."""
        out = self._net(params, buffers, x, mode, *options)
        layers, part = (*options, None, "whole")[:2] if len(options) < 2 else options[:2]
        self.passes.append(Pass(params, buffers, x, mode, not layers and part == "whole", out.logits))
        return out


@dataclass(frozen=True)
class Models:
    """What the networks of a finished run are made of."""

    config: Run
    task: Task
    states: StateStore
    """What clients remember."""
    server: Groups
    published: Groups
    round: int
    """The last one."""

    def build_global(self) -> Model:
        """The final global model, ready to use."""
        self._refuse_personal()
        with prepare_process(self.config.execution.threads):
            tapped, task = self._tap()
            found = self._trace(*self._open_global(task), tapped)
            if found is None:  # a stranger has the network alone
                return self._fill(self.published["model"], self.published["buffers"], by_batch=False)
            return self._fill(found.params, found.buffers, found.mode == "eval_batch")

    def build_own(self, client: int) -> Model:
        """The model that a client would use now, ready to use."""
        client = read_client(client, self.task.num_clients)
        with prepare_process(self.config.execution.threads), self.task.device.set_tf32():
            return self.build_from(client, self._message(self.task, client), self.states.get(client))

    def build_from(self, client: int, message: Groups, state: Groups) -> Model:
        """The model that a client makes of a message and of what it remembers."""
        with prepare_process(self.config.execution.threads), self.task.device.set_tf32():
            tapped, task = self._tap()
            found = self._trace(*self._open_own(task, client, message, state), tapped)
            if found is None:
                raise InputError(
                    f"{task.method.name} predicts by more than its network (slot predict), so no network alone does "
                    f"what client {client} does; evaluation.local_test tests it as it is"
                )
            return self._fill(found.params, found.buffers, found.mode == "eval_batch")

    def predict(self, samples: Samples, client: int | None = None) -> Tensor:
        """Scores [N, C] of samples as the data set holds them: the global model's, or those of a client's own.

        In the batches that the run's own tests take, so that they are the same to the last bit.
        """
        if client is None:
            self._refuse_personal()
        else:
            client = read_client(client, self.task.num_clients)
        task = replace(self.task, profile=None, observers=())
        with prepare_process(self.config.execution.threads), task.device.set_tf32(), torch.no_grad():
            if client is None:
                c, params = self._open_global(task)
            else:
                c, params = self._open_own(task, client, self._message(task, client), self.states.get(client))
            parts = task.federation.as_tests(samples.to(task.device.kind)).passes(task.eval_batch)
            scores = [task.method.predict(c, params, part.x).cpu() for part in parts]
        return torch.cat(scores) if scores else torch.empty(0, task.federation.dataset.num_classes)

    def _refuse_personal(self) -> None:
        if self.task.method.output == "personal":
            raise InputError(
                f"{self.task.method.name} gives every client a model of its own, and nobody uses the one at the server "
                "as it is; take a client's, such as that of client 0: --client 0, in Python run.client(0).model() or "
                "result.client_model(0) (.published holds what the server has)"
            )

    def _open_global(self, task: Task) -> tuple[ClientContext, Tree]:
        """The context and parameters of a test of the global model."""
        job = Job("test", self.round, -1, task.device.to_device(self.published))
        return client_context(task, job, task.federation.common("test", 0, 1)), job.message["model"]

    def _message(self, task: Task, client: int) -> Groups:
        """What the server would send to a client now."""
        seeds.seed_layers(task.seed, "layers/personal", self.round, client)
        s = task.server_context(self.round, server=self.server).for_tests()
        return task.method.download(s, self.server, client)

    def _open_own(self, task: Task, client: int, message: Groups, state: Groups) -> tuple[ClientContext, Tree]:
        """The context and parameters of a test of a client's own model."""
        to_device = task.device.to_device
        seeds.seed_layers(task.seed, "layers/personal", self.round, client)
        job = Job("personal", self.round, client, to_device(message), to_device(state))
        c = open_visit(task, job, task.federation.train(client))
        return open_personal(c, task.method.personalise(c))

    def _tap(self) -> tuple[TappedNet, Task]:
        """The task with a network that notes its passes."""
        tapped = TappedNet(self.task.net)
        return tapped, replace(self.task, net=cast("Net", tapped), profile=None, observers=())

    def _trace(self, c: ClientContext, params: Tree, tapped: TappedNet) -> Pass | None:
        """The one pass that a prediction consists of; None if it is more than that."""
        batch = next(iter(self.task.federation.common("test", 0, 1).passes(1)))
        tapped.passes.clear()
        with torch.no_grad():
            scores = self.task.method.predict(c, params, batch.x)
        if len(tapped.passes) != 1:
            return None
        (found,) = tapped.passes
        same = found.x is batch.x and torch.equal(found.logits.float(), scores.float())
        return found if same and found.whole and found.mode in ("eval", "eval_batch") else None

    def _fill(self, params: Tree, buffers: Tree, by_batch: bool) -> Model:
        """The network with these values; `by_batch`: without running statistics, BatchNorm takes the batch's."""
        model = build_model(self.config, self.task.federation.dataset)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(params[name])
            for name, buffer in model.named_buffers():
                if name in buffers:
                    buffer.copy_(buffers[name])
        for norm in model.modules() if by_batch else ():
            if isinstance(norm, BatchNormBase):
                norm.track_running_stats = False
                norm.running_mean = norm.running_var = norm.num_batches_tracked = None
        return model.eval()


def read_client(given: Any, clients: int) -> int:
    """A client's number; numpy's and torch's are taken for what they are."""
    truth = isinstance(given, bool) or getattr(given, "dtype", None) is torch.bool
    with suppress(TypeError):
        if not truth and 0 <= (client := operator.index(given)) < clients:
            return client
    raise InputError(f"client: expected a client from 0 to {clients - 1}, got {given!r}")


def find_unused(task: Task, server: Groups) -> list[str]:
    """The parameters of the server's model that no client of a personal method uses as they are there."""
    if task.method.output != "personal":
        return []
    model = server["model"]
    shared = task.method.shared(task.server_context(task.rounds, server=server), model)
    return [name for name, value in model.items() if name not in shared or shared[name].shape != value.shape]
