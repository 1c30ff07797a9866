"""Figures that no training gives: the bytes of a message, the time of a loss."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

import torch
from torch import Tensor

from unskew.base.batch import Batch, Output
from unskew.base.process import neutral_torch
from unskew.core.context import ClientContext
from unskew.core.jobs import Job
from unskew.core.task import Task
from unskew.core.term import terms
from unskew.data.partition.splits import splits
from unskew.data.sources.base import sources
from unskew.recipes.base import Scale
from unskew.runs import building
from unskew.runs.config import Run


def count_group_bytes(run: Run, group: str, tensor: str) -> float:
    """Bytes of one tensor of the message that the server of this run sends a client."""
    task = _prepare(run, 2)
    message = _first_message(task)
    value = message[group][tensor]
    return float(value.numel() * value.element_size())


@neutral_torch()
def time_loss(run: Run, loss: str, scale: Scale) -> float:
    """Milliseconds of value and gradient of one of FedBlade's losses on a batch's features: the median of many."""
    task = _prepare(run, run.local.batch)
    message = _first_message(task)
    means = torch.randn_like(message["prototypes"]["means"])
    known = {"means": means, "available": torch.ones_like(message["prototypes"]["available"])}
    c = task.visit(Job("train", 1, 0, {**message, "prototypes": known}), task.federation.train(0))
    batch = next(iter(c.batches()))
    params = {name: value.clone().requires_grad_() for name, value in c.received["model"].items()}
    with torch.no_grad():
        features = c.forward(params, batch.x, "eval").features
    times = []
    for _ in range(5 if scale == "smoke" else 200):
        z = features.clone().requires_grad_()
        start = time.perf_counter()
        value = _value(task, c, loss, params, batch, z)
        torch.autograd.grad(
            value, [z, *(params[name] for name in params if name.startswith("head."))], allow_unused=True
        )
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def _value(task: Task, c: ClientContext, loss: str, params: dict[str, Tensor], batch: Batch, z: Tensor) -> Tensor:
    head = {name.removeprefix("head."): value for name, value in params.items() if name.startswith("head.")}
    if loss == "sup":
        logits = torch.func.functional_call(task.net.module.head, head, (z,))
        return task.method.criterion(c, Output(logits, z), batch)
    term = terms.build({"FA": "feature_alignment", "PA": "projector_alignment", "LDDecorr": "lddecorr"}[loss])
    return term(c, params, batch, Output(z[:, :1], z))


def _prepare(run: Run, each: int) -> Task:
    """The task of two clients with so many generated samples each, but network, method and batch of the run."""
    data = sources.build({"name": "stand_in", "like": run.data, "train": 2 * each, "test": 2 * each})
    small = replace(run, data=data, split=splits.build("iid"), clients=2, sample=1.0, split_seed=None)
    return building.prepare(small).task


def _first_message(task: Task) -> dict[str, dict[str, Tensor]]:
    server = task.method.init(task.server_context(0))
    return task.method.download(task.server_context(1), server, 0)
