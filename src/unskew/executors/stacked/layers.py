"""Layers that must know the clients in a stack: BatchNorm leaves padding out, dropout draws from own streams."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from unskew.base import seeds
from unskew.base.torch_private import BatchNormBase, DropoutBase
from unskew.core.jobs import Job
from unskew.core.net import Net
from unskew.core.task import Task
from unskew.executors.stacked.lanes import Lanes, NotStackable

_PER_CHANNEL = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


class StackedLayers:
    """The layers of a module that are replaced while clients are stacked."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._norms = [module for module in task.net.module.modules() if isinstance(module, BatchNormBase)]
        self._drops = [module for module in task.net.module.modules() if isinstance(module, DropoutBase)]

    @contextmanager
    def replace(self, lanes: Lanes, jobs: list[Job]) -> Iterator[None]:
        """For a while, BatchNorm and dropout of the task's module work on many clients."""
        if not (self._norms or self._drops):
            yield
            return
        streams = self._streams(jobs) if self._drops else []
        before = {module: module.__dict__.get("forward") for module in (*self._norms, *self._drops)}
        try:
            for norm in self._norms:
                norm.forward = functools.partial(apply_batchnorm, lanes, norm, self._task.net)  # type: ignore[method-assign]
            for drop in self._drops:
                drop.forward = functools.partial(apply_dropout, lanes, streams, drop)  # type: ignore[method-assign]
            yield
        finally:
            for module, own in before.items():
                module.__dict__.pop("forward", None)
                if own is not None:
                    module.forward = own

    def _streams(self, jobs: list[Job]) -> list[torch.Generator]:
        """The stream that a client's layers would draw from if it were alone."""
        seed = self._task.seed
        return [seeds.generator(seed, f"layers/{job.kind}", job.round, job.client) for job in jobs]


def apply_batchnorm(lanes: Lanes, layer: BatchNormBase, net: Net, x: Tensor) -> Tensor:
    """BatchNorm whose statistics leave padded samples out; clients without a batch keep their running ones."""
    mask = lanes.mask
    if not layer.training or mask is None:
        return BatchNormBase.forward(layer, x)
    if len(x) != len(mask):
        raise NotStackable(
            f"BatchNorm gets {len(x)} samples of a batch of {len(mask)}, and cannot tell which of them are padding"
        )
    others = [dim for dim in range(x.dim()) if dim != 1]
    shape = [1, -1, *(1,) * (x.dim() - 2)]
    weights = mask.to(x.dtype).view(-1, *(1,) * (x.dim() - 1))
    count = (mask.sum() * (x[0, 0].numel())).to(x.dtype)
    safe = count.clamp(min=1)
    mean = (x * weights).sum(others) / safe
    centred = x - mean.view(shape)
    var = (centred.square() * weights).sum(others) / safe
    if net.mode == "eval_batch" and layer.running_mean is not None and layer.running_var is not None:
        alone = mask.sum() == 1  # as `Net` does: one sample has no statistics of its own
        mean, var = torch.where(alone, layer.running_mean, mean), torch.where(alone, layer.running_var, var)
        centred = x - mean.view(shape)
    if layer.track_running_stats and layer.running_mean is not None:
        with torch.no_grad():
            _track(layer, mean, var, count)
    y = centred * torch.rsqrt(var + layer.eps).view(shape)
    return y * layer.weight.view(shape) + layer.bias.view(shape) if layer.affine else y


def _track(layer: BatchNormBase, mean: Tensor, var: Tensor, count: Tensor) -> None:
    assert layer.running_mean is not None and layer.running_var is not None and layer.num_batches_tracked is not None
    took_part = count > 0
    layer.num_batches_tracked.add_(took_part)
    share = 1.0 / layer.num_batches_tracked.float() if layer.momentum is None else layer.momentum
    unbiased = var * (count / (count - 1).clamp(min=1))
    for running, new in ((layer.running_mean, mean), (layer.running_var, unbiased)):
        running.copy_(torch.where(took_part, running + share * (new - running), running))


def apply_dropout(lanes: Lanes, streams: list[torch.Generator], layer: DropoutBase, x: Tensor) -> Tensor:
    """Dropout with each client's own stream: the same masks as if it were alone."""
    if not layer.training or layer.p == 0:
        return x
    if lanes.sizes is None:
        raise NotStackable("dropout draws random numbers in the local step")
    if not isinstance(layer, (nn.Dropout, *_PER_CHANNEL)):
        raise NotStackable(f"{type(layer).__name__} has no form for many clients")
    shape = tuple(x.shape) if isinstance(layer, nn.Dropout) else (*x.shape[:2], *(1,) * (x.dim() - 2))
    with lanes.leave():
        noise = torch.zeros(lanes.count, *shape, dtype=x.dtype)
        for own, size, stream in zip(noise, lanes.sizes, streams, strict=True):
            own[:size] = torch.empty(size, *shape[1:], dtype=x.dtype).bernoulli_(1 - layer.p, generator=stream)
    return x * lanes.wrap(noise.div_(1 - layer.p).to(x.device))
