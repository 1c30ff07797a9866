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
        method = self.task.method
        if method.output == "personal":
            raise InputError(
                f"{method.name} gives every client a model of its own, and nobody uses the one at the server as it is; "
                "take result.client_model(7), the model of client 7 (result.published holds what the server has)"
            )
        with prepare_process(self.config.execution.threads):
            tapped, task = self._tap()
            job = Job("test", self.round, -1, task.device.to_device(self.published))
            c = client_context(task, job, task.federation.common("test", 0, 1))
            found = self._trace(c, job.message["model"], tapped)
            if found is None:  # a stranger has the network alone
                return self._fill(self.published["model"], self.published["buffers"], by_batch=False)
            return self._fill(found.params, found.buffers, found.mode == "eval_batch")

    def build_own(self, client: int) -> Model:
        """The model that a client would use now, ready to use."""
        task, method = self.task, self.task.method
        client = _read_client(client, task.num_clients)
        with prepare_process(self.config.execution.threads), task.device.set_tf32():
            seeds.seed_layers(task.seed, "layers/personal", self.round, client)
            s = task.server_context(self.round, server=self.server).for_tests()
            message = method.download(s, self.server, client)
        return self.build_from(client, message, self.states.get(client))

    def build_from(self, client: int, message: Groups, state: Groups) -> Model:
        """The model that a client makes of a message and of what it remembers."""
        method = self.task.method
        with prepare_process(self.config.execution.threads), self.task.device.set_tf32():
            tapped, task = self._tap()
            seeds.seed_layers(task.seed, "layers/personal", self.round, client)
            to_device = task.device.to_device
            job = Job("personal", self.round, client, to_device(message), to_device(state))
            c = open_visit(task, job, task.federation.train(client))
            c, params = open_personal(c, method.personalise(c))
            found = self._trace(c, params, tapped)
            if found is None:
                raise InputError(
                    f"{method.name} predicts by more than its network (slot predict), so no network alone does what "
                    f"client {client} does; evaluation.local_test tests it as it is"
                )
            return self._fill(found.params, found.buffers, found.mode == "eval_batch")

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


def _read_client(given: Any, clients: int) -> int:
    """A client's number; numpy's and torch's are taken for what they are."""
    truth = isinstance(given, bool) or getattr(given, "dtype", None) is torch.bool
    with suppress(TypeError):
        if not truth and 0 <= (client := operator.index(given)) < clients:
            return client
    raise InputError(f"client_model: expected a client from 0 to {clients - 1}, got {given!r}")


def find_unused(task: Task, server: Groups) -> list[str]:
    """The parameters of the server's model that no client of a personal method uses as they are there."""
    if task.method.output != "personal":
        return []
    model = server["model"]
    shared = task.method.shared(task.server_context(task.rounds, server=server), model)
    return [name for name, value in model.items() if name not in shared or shared[name].shape != value.shape]
