"""The local loop: SGD with momentum and weight decay, fresh momentum at every visit, in place on its own copy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unskew.core.tree import Tree

if TYPE_CHECKING:
    from unskew.core.context import ClientContext, Context, LocalGradient, LocalSettings
    from unskew.data.local import Batch

Copy = Callable[[Tree], Tree]


def sgd(
    c: ClientContext, params: Tree, gradient: LocalGradient, *, epochs: int | None = None, purpose: str = "batches"
) -> Tree:
    """Trains a copy of `params` over the visit's batches; `gradient` may name fewer parameters than there are."""
    return c.steps.descend(c, params, gradient, c.batches(epochs, purpose))


def step_gradient(c: Context, gradient: LocalGradient, params: Tree, batch: Batch) -> Tree:
    """The direction of one counted step; whoever watches is told of the parameters before it."""
    for watch in c.before_step:
        watch(params)
    c.diagnostics.step(batch)
    return gradient(c, params, batch)


class OneByOne:
    """Gradients and steps of one client: plain autograd, the update in place."""

    def __init__(self, copy: Copy) -> None:
        self._copy = copy

    def copy(self, params: Tree) -> Tree:
        """A tree whose tensors are free to be changed."""
        return self._copy(params)

    def gradient(self, loss: Callable[[Tree], Tensor], params: Tree, names: Iterable[str]) -> tuple[Tree, Tensor]:
        """The gradient of `loss` at `params` with respect to these names, and the loss (detached)."""
        wanted = list(names)
        leaves = params if _are_leaves(params, wanted) else _as_leaves(params, wanted)
        with torch.enable_grad():
            value = loss(leaves)
        return dict(zip(wanted, backward(value, [leaves[name] for name in wanted]), strict=True)), value.detach()

    def descend(self, c: Context, params: Tree, gradient: LocalGradient, batches: Iterable[Batch]) -> Tree:
        """A copy of `params` after one step of SGD along `gradient` for each batch."""
        params = self._copy(params)
        for name in c.trainable:
            # the working copy itself is what autograd differentiates by: no new leaves, nothing bound anew per step
            params[name].requires_grad_()
        with torch.no_grad():
            momentum: Tree = {}
            for batch in batches:
                grads = step_gradient(c, gradient, params, batch)
                update([params[name] for name in grads], grads, momentum, c.settings)
        return {name: value.detach() for name, value in params.items()}


def backward(value: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    """The gradient of a scalar with respect to these leaves; zeros where it does not depend on one.

    What `torch.autograd.grad` does in the end; its own checks cost a third of a tiny network's step.
    """
    grads = _engine.run_backward(
        (value,), (_one(value.dtype, value.device),), False, False, tuple(leaves),
        allow_unreachable=True, accumulate_grad=False,
    )  # fmt: skip
    return [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(leaves, grads, strict=True)]


_engine: Any = torch.autograd.Variable._execution_engine


@lru_cache(maxsize=8)
def _one(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.ones((), dtype=dtype, device=device)


def _are_leaves(params: Tree, wanted: list[str]) -> bool:
    """Whether exactly these are leaves that autograd differentiates by: no graph for what is not asked for."""
    traced = [name for name, value in params.items() if value.requires_grad]
    return traced == wanted and all(params[name].is_leaf for name in wanted)


def _as_leaves(params: Tree, wanted: list[str]) -> Tree:
    leaves = {name: value.detach() for name, value in params.items()}
    for name in wanted:
        leaves[name].requires_grad_()
    return leaves


def update(weights: list[Tensor], grads: Tree, velocity: Tree, settings: LocalSettings) -> None:
    """One step in place: d = grad + weight_decay * w; velocity = momentum * velocity + d; w = w - lr * velocity.

    Velocity is kept by name, since a gradient may name other parameters at each step.
    """
    steps = list(grads.values())
    if settings.weight_decay:
        steps = list(torch._foreach_add(steps, weights, alpha=settings.weight_decay))
    if settings.momentum:
        fresh = [name not in velocity for name in grads]
        if not any(fresh):
            moving = [velocity[name] for name in grads]
            torch._foreach_mul_(moving, settings.momentum)
            torch._foreach_add_(moving, steps)
        else:
            for name, new, value in zip(grads, fresh, steps, strict=True):
                velocity[name] = value.clone() if new else velocity[name].mul_(settings.momentum).add_(value)
        steps = [velocity[name] for name in grads]
    torch._foreach_add_(weights, steps, alpha=-settings.lr)
