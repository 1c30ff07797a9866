"""From a job to a reply: what a client does with a message, and what its slots may use meanwhile.

    prepare    the context that all later slots of the visit see
    start      the parameters to train from
    train      local training
    upload     the reply to the server
    keep       what the client remembers
    weight     how much the client counts in means

After `prepare`, a survey calls `survey` alone, and a client's test `personalise` and `predict`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from unskew.base import seeds
from unskew.base.batch import Output, cross_entropy
from unskew.base.tree import Groups, Tree
from unskew.core.context import ClientContext, ServerContext, Steps
from unskew.core.jobs import Job, Reply
from unskew.core.net import Forward, Layer, Mode, Net, Part
from unskew.core.per_client import PerClient

if TYPE_CHECKING:
    from unskew.core.method import Method
    from unskew.core.task import Task
    from unskew.data.batches import LocalData


class Work(NamedTuple):
    """What a job brought, before it is packed into a reply."""

    groups: Groups
    state: Groups
    weight: Tensor | None = None


# ------------------------------------------------------------------------------------------- the work


def work(task: Task, job: Job) -> Reply:
    """Does one job: the same function in every executor that takes clients one by one."""
    seeds.seed_layers(task.seed, f"layers/{job.kind}", job.round, job.client)
    began = time.perf_counter()
    device, federation = task.device, task.federation
    if not device.is_cpu:
        job = replace(job, message=device.to_device(job.message), state=device.to_device(job.state))
    if job.client < 0:  # nobody's visit: the global model on a part of the common test or validation set
        data = federation.common(job.kind, *job.part)
        c = client_context(task, job, data)
    else:
        own = federation.train(job.client)
        data = federation.local_test(job.client) if job.kind == "personal" else own
        c = open_visit(task, job, own)
    done = perform(task.method, job, c, data, task.eval_batch)
    return Reply(
        client=job.client,
        groups=device.to_cpu(done.groups),
        state=device.to_cpu(done.state),
        weight=float(done.weight) if done.weight is not None else float(len(data)),
        num_samples=len(data),
        num_steps=c.diagnostics.steps,
        diagnostics=c.diagnostics.means(),
        seconds=time.perf_counter() - began,
    )


def open_visit(
    task: Task,
    job: Job,
    data: LocalData,
    steps: Steps | None = None,
    kind: type[ClientContext] = ClientContext,
    **more: Any,
) -> ClientContext:
    """What the client's slots may use in a visit, as the method prepared it.

    `job` may stand for many clients at once: then its tensors are batched, and `steps`, the `kind` of context and
    `more` of its fields fit to that.
    """
    method = task.method
    c = client_context(task, job, data, steps, kind, **more)
    if not c.state and (first := method.init_client(c)):
        c = replace(c, state=first)
    received = {"model": method.merge_personal(c), "buffers": _pick_buffers(task, job)}
    return method.prepare(replace(c, received=received))


def perform(method: Method, job: Job, c: ClientContext, data: LocalData, eval_batch: int) -> Work:
    """The work of a prepared visit; the same slots in the same order for one client and for many at once."""
    if job.kind == "train":
        return run_client(method, c)
    if job.kind == "survey":
        return Work(method.survey(c), {})
    params = method.personalise(c) if job.kind == "personal" else job.message["model"]
    return Work({"score": score(method, c, params, data, eval_batch)}, {})


def run_client(method: Method, c: ClientContext) -> Work:
    """A training visit, from the prepared context to what is sent and kept."""
    params = method.train(c, method.start(c))
    if params.keys() >= set(c.trainable):  # some methods train something else than the model: condensed data
        for observer in c.observers:
            observer.trained(c, params)
    return Work(groups=method.upload(c, params), state=method.keep(c, params), weight=method.weight(c, params))


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


# ------------------------------------------------------------------------------------------ the contexts


def client_context(
    task: Task,
    job: Job,
    data: LocalData,
    steps: Steps | None = None,
    kind: type[ClientContext] = ClientContext,
    **more: Any,
) -> ClientContext:
    """The context of a visit before the method prepared it; for jobs `test` and `validate`, the global model's."""
    steps = steps or task.steps
    own = steps.copy(_pick_buffers(task, job))
    policy = task.buffer_policy
    # clients that keep their statistics leave the global model without any
    none = policy == "reset" or (policy == "local" and job.kind in ("test", "validate"))
    return kind(
        **_common_fields(task, job.round, own, none, steps), initial=task.initial_on_device, client=job.client,
        message=job.message, state=job.state, buffers=own, data=data, has_batchnorm=task.net.has_batchnorm,
        terms=task.method.outer_terms(), observers=task.observers if job.kind == "train" else (), **more,
    )  # fmt: skip


def server_context(
    task: Task, round_: int, cohort: tuple[int, ...] = (), server: Groups | None = None
) -> ServerContext:
    """What the server's slots may use in a round; its passes use the buffers of the server's state."""
    seeds.seed_layers(task.seed, "layers/server", round_)
    own = task.steps.copy((server or task.initial).get("buffers", {}))
    return ServerContext(
        **_common_fields(task, round_, own, task.buffer_policy != "average", task.steps), initial=task.initial,
        num_clients=task.num_clients, cohort=cohort, buffers=own, has_batchnorm=task.net.has_batchnorm,
        per_client=PerClient(task.server_store, round_),
    )  # fmt: skip


def _common_fields(task: Task, round_: int, buffers: Tree, batch_statistics: bool, steps: Steps) -> dict[str, Any]:
    forward: Forward = task.device.cast(bind_forward(task.net, buffers, batch_statistics))
    if task.profile:
        forward, steps = task.profile.wrap(forward, steps)
    return {
        "round": round_, "seed": task.seed, "num_classes": task.federation.dataset.num_classes,
        "settings": task.settings(round_), "names": task.net.names, "trainable": task.trainable, "steps": steps,
        "forward": forward, "buffer_policy": task.buffer_policy, "constants": task.net.constants,
        "fresh": partial(task.net.fresh, task.initial_on_device),
    }  # fmt: skip


def _pick_buffers(task: Task, job: Job) -> Tree:
    """The buffers that a visit starts from."""
    if task.buffer_policy == "local" and "buffers" in job.state:
        return job.state["buffers"]
    if task.buffer_policy == "reset":
        return task.initial_on_device["buffers"]
    return job.message.get("buffers", task.initial_on_device["buffers"])


def bind_forward(network: Net, own: Tree, batch_statistics: bool) -> Forward:
    """The plain forward pass of a context: the worker's module with the context's buffers.

    With `batch_statistics`, evaluation uses those of the batch: there are no running ones that mean anything.
    """

    def forward(
        params: Tree,
        x: Tensor,
        mode: Mode = "train",
        buffers: Tree | None = None,
        layers: Mapping[str, Layer] | None = None,
        part: Part = "whole",
    ) -> Output:
        mode = "eval_batch" if mode == "eval" and batch_statistics else mode
        return network(params, own if buffers is None else buffers, x, mode, layers, part)

    return forward
