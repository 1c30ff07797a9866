"""The local loop: SGD with momentum and weight decay, fresh momentum at every visit, in place on its own copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from unskew.core import tree
from unskew.core.tree import Tree

if TYPE_CHECKING:
    from unskew.core.context import ClientContext
    from unskew.data.local import Batch

Gradient = Callable[["ClientContext", Tree, "Batch"], Tree]


def sgd(
    c: ClientContext, params: Tree, gradient: Gradient, *, epochs: int | None = None, purpose: str = "batches"
) -> Tree:
    """Trains a copy of `params` over the visit's batches; `gradient` may name fewer parameters than there are.

    The rule is torch's: d = gradient + weight_decay * w; buffer = momentum * buffer + d; w = w - lr * buffer.
    """
    lr, momentum, decay = c.settings.lr, c.settings.momentum, c.settings.weight_decay
    params = tree.copy(params)
    velocity: list[torch.Tensor] = []
    for batch in c.batches(epochs, purpose):
        grads = gradient(c, params, batch)
        weights, steps = [params[name] for name in grads], list(grads.values())
        if decay:
            steps = list(torch._foreach_add(steps, weights, alpha=decay))
        if momentum:
            if velocity:
                torch._foreach_mul_(velocity, momentum)
                torch._foreach_add_(velocity, steps)
            else:
                velocity = [step.clone() for step in steps]
            steps = velocity
        torch._foreach_add_(weights, steps, alpha=-lr)
    return params
