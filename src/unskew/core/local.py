"""The local loop: SGD with momentum and weight decay, fresh momentum at every visit, in place on its own copy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch

from unskew.core import tree
from unskew.core.tree import Tree

if TYPE_CHECKING:
    from unskew.core.context import ClientContext, LocalSettings
    from unskew.data.local import Batch

Gradient = Callable[["ClientContext", Tree, "Batch"], Tree]


def sgd(
    c: ClientContext, params: Tree, gradient: Gradient, *, epochs: int | None = None, purpose: str = "batches"
) -> Tree:
    """Trains a copy of `params` over the visit's batches; `gradient` may name fewer parameters than there are."""

    def step(current: Tree, batch: Batch) -> Tree:
        for watch in c.before_step:
            watch(current)
        c.diagnostics.steps += 1
        return gradient(c, current, batch)

    return descend(params, step, c.batches(epochs, purpose), c.settings)


def descend(
    params: Tree, gradient: Callable[[Tree, Batch], Tree], batches: Iterable[Batch], settings: LocalSettings
) -> Tree:
    """A copy of `params` after a step along `gradient` for each batch, at a client or at the server.

    The rule is torch's: d = gradient + weight_decay * w; buffer = momentum * buffer + d; w = w - lr * buffer.
    """
    params = tree.copy(params)
    velocity: Tree = {}
    for batch in batches:
        grads = gradient(params, batch)
        weights, steps = [params[name] for name in grads], list(grads.values())
        if settings.weight_decay:
            steps = list(torch._foreach_add(steps, weights, alpha=settings.weight_decay))
        if settings.momentum:
            steps = _with_momentum(velocity, dict(zip(grads, steps, strict=True)), settings.momentum)
        torch._foreach_add_(weights, steps, alpha=-settings.lr)
    return params


def _with_momentum(velocity: Tree, steps: Tree, momentum: float) -> list[torch.Tensor]:
    """The steps after momentum, which is kept by name: a gradient may name other parameters at each step."""
    moving = [name for name in steps if name in velocity]
    if moving:
        buffers = [velocity[name] for name in moving]
        torch._foreach_mul_(buffers, momentum)
        torch._foreach_add_(buffers, [steps[name] for name in moving])
    for name in steps.keys() - velocity.keys():
        velocity[name] = steps[name].clone()
    return [velocity[name] for name in steps]
