"""From a job to a reply: what a client does with a message, and what its slots may use meanwhile.

    prepare    the context that all later slots of the visit see
    start      the parameters to train from
    train      local training
    upload     the reply to the server
    keep       what the client remembers
    weight     how much the client counts in means
    (wire)     the reply is encoded

What a slot hands on beside its parameters (`Outcome`) is `c.made` for those after it, what `upload` gave is `c.sent`.
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
from unskew.core.context import ClientContext, Fixed, Outcome, ServerContext, Steps
from unskew.core.jobs import WIRE, Job, Reply, Wire, split_state
from unskew.core.net import Forward, Layer, Mode, Net, Part
from unskew.core.per_client import PerClient

if TYPE_CHECKING:
    from unskew.core.method import Method
    from unskew.core.task import Task
    from unskew.data.batches import LocalData


PREVIOUS = "previous/"
"""Begins the names of groups of a client's state that the visit keeps for terms, unseen by the method."""


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
    done = perform(task, job, c, data)
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
    own, kept = split_state(job.state, WIRE, PREVIOUS)  # the method sees its own groups only
    job = replace(job, state=own) if kept else job
    c = _receive(task, job, client_context(task, job, data, steps, kind, **more))
    if not c.state and (first := method.init_client(c)):
        c = _receive(task, job, replace(c, state=first))
    previous = {}
    if task.keeps_previous:
        previous = {what: kept.get(f"{PREVIOUS}{what}", c.initial[what]) for what in ("model", "buffers")}
    return method.prepare(replace(c, previous=previous))


def _receive(task: Task, job: Job, c: ClientContext) -> ClientContext:
    """The visit with the model that it starts from."""
    return replace(c, received={"model": task.method.receive(c), "buffers": _pick_buffers(task, job)})


def first_state(task: Task, job: Job, data: LocalData) -> Groups:
    """What a client's state would be before its first visit, whole: also what the visit keeps for terms."""
    c = _receive(task, job, client_context(task, job, data))
    return {**task.method.init_client(c), **_keep_previous(task, c.initial["model"], c.initial["buffers"])}


def _keep_previous(task: Task, params: Tree, buffers: Tree) -> Groups:
    """What a client's state has for terms that need its model of now at its next visit."""
    groups = {f"{PREVIOUS}model": params, f"{PREVIOUS}buffers": buffers} if task.keeps_previous else {}
    return {name: group for name, group in groups.items() if group}


def perform(task: Task, job: Job, c: ClientContext, data: LocalData) -> Work:
    """The work of a prepared visit; the same slots in the same order for one client and for many at once."""
    method = task.method
    if job.kind == "train":
        done = run_client(task, c)
        return done if task.wire is None else encode(task.wire, job, c, done)
    if job.kind == "survey":
        return Work(method.survey(c), {})
    if job.kind != "personal":
        return Work({"score": score(method, c, job.message["model"], data, task.eval_batch)}, {})
    c, params = _open(c, method.personalise(c))
    return Work({"score": score(method, c, params, data, task.eval_batch)}, {})


def run_client(task: Task, c: ClientContext) -> Work:
    """A training visit, from the prepared context to what is sent and kept."""
    method = task.method
    c, params = _open(c, method.start(c))
    for need, which in _FIXED.items():
        if need in task.needs:
            c = c.with_seen(which)
    c, params = _open(c, method.train(c, params))
    if params.keys() >= set(c.trainable):  # some methods train something else than the model: condensed data
        for observer in c.observers:
            observer.trained(c, params)
    c = replace(c, sent=method.upload(c, params))
    state = {**method.keep(c, params), **_keep_previous(task, params, c.buffers)}
    return Work(groups=c.sent, state=state, weight=method.weight(c, params))


_FIXED: dict[str, Fixed] = {"teacher": "received", "previous": "previous"}
"""Which model a term wants to ask."""


def _open(c: ClientContext, found: Tree | Outcome) -> tuple[ClientContext, Tree]:
    """What a slot gave: its parameters, and the visit with what else it made."""
    if not isinstance(found, Outcome):
        return c, found
    return replace(c, made={**c.made, **found.made}), found.params


def encode(wire: Wire, job: Job, c: ClientContext, done: Work) -> Work:
    """The work with its reply as it travels, and what the wire keeps beside the method's state."""
    sent, kept = wire.encode(c, done.groups, split_state(job.state, WIRE)[1])
    return done._replace(groups=sent, state={**done.state, **kept})


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
        terms=task.loss_terms, maps=task.maps, observers=task.client_observers if job.kind == "train" else (), **more,
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
    forward: Forward = steps.bind(task.device.cast(bind_forward(task.net, buffers, batch_statistics)))
    if task.profile:
        forward, steps = task.profile.wrap(forward, steps)
    return {
        "round": round_, "seed": task.seed, "num_classes": task.federation.dataset.num_classes,
        "settings": task.settings(round_), "names": task.net.names, "trainable": task.trainable, "steps": steps,
        "forward": forward, "buffer_policy": task.buffer_policy, "constants": task.net.constants,
        "fresh": partial(task.net.fresh, task.initial_on_device), "rounds": task.rounds,
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
        maps: tuple[str, ...] = (),
    ) -> Output:
        mode = "eval_batch" if mode == "eval" and batch_statistics else mode
        return network(params, own if buffers is None else buffers, x, mode, layers, part, maps)

    return forward
