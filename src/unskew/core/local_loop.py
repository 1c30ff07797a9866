"""The local loop: steps of SGD or another optimiser, whose memory is fresh at every visit, in place on its own copy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unskew.base import tree
from unskew.base.batch import Batch, group_batches
from unskew.base.torch_private import add_in_place, add_lists, run_backward, scale_in_place, scale_list
from unskew.base.tree import Groups, Tree
from unskew.core.checks.faults import Fault
from unskew.core.checks.returned import check_direction, check_loss, refuse_detached
from unskew.core.checks.steps import find_written, hold_step, read_versions, refuse_change, refuse_spoilt, refuse_unused
from unskew.core.checks.watching import show
from unskew.core.optimisers import advance, begin, clip

if TYPE_CHECKING:
    from unskew.base.settings import LocalSettings
    from unskew.core.context import ClientContext, Context, LocalGradient
    from unskew.core.net import Forward

Copy = Callable[[Tree], Tree]


def sgd(
    c: ClientContext,
    params: Tree,
    gradient: LocalGradient,
    *,
    epochs: int | None = None,
    purpose: str = "batches",
    together: int = 1,
) -> Tree:
    """Trains a copy of `params` over the visit's batches; `gradient` may name fewer parameters than there are.

    With `together` above 1 each step takes so many batches, and `gradient` a tuple of them; what is left over at the
    end is not used.
    """
    batches = c.batches(epochs, purpose)
    return c.steps.descend(c, params, gradient, batches if together == 1 else group_batches(batches, together))


def step_gradient(c: Context, gradient: LocalGradient, params: Tree, batch: Any) -> Tree:
    """The direction of one counted step; observers see the parameters before it, and its first batch."""
    c.diagnostics.step(batch)
    if not c.observers:
        return _ask_gradient(c, gradient, params, batch) if c.guarded else gradient(c, params, batch)
    first = batch if isinstance(batch, Batch) else batch[0]
    for observer in c.observers:
        show(observer, "before_step", c, params, first)
    grads = _ask_gradient(c, gradient, params, batch)
    for observer in c.observers:
        show(observer, "step", c, params, first, grads)
    return grads


def _ask_gradient(c: Context, gradient: LocalGradient, params: Tree, batch: Any) -> Tree:
    """The direction: its shapes are looked at in every step, as are parameters; in the first one also the rest."""
    if not c.guarded:
        return gradient(c, params, batch)
    params = tree.copy(params)  # somebody's code may put them aside, and the loop's own change with the step
    guard = hold_step(params, batch, c.closely) if c.diagnostics.steps == 1 else None
    versions = read_versions(params)
    try:
        grads = gradient(c, params, batch)
    finally:  # also where autograd fails because of it
        changed = find_written(params, versions) if guard is None else guard.find_change()
        if changed is not None:
            refuse_change(c, gradient, params, batch, changed)
    check_direction(gradient, grads, params, c.trainable)
    if guard is not None:
        refuse_unused(c, gradient, params, batch, grads)
        refuse_spoilt(c, gradient, params, batch, grads)
    return grads


class OneByOne:
    """Gradients and steps of one client: plain autograd, the update in place."""

    def __init__(self, copy: Copy) -> None:
        self._copy = copy
        self._working: Tree | None = None
        self._leaves: tuple[str, ...] = ()

    def bind(self, forward: Forward) -> Forward:
        """The forward pass as it is."""
        return forward

    def copy(self, params: Tree) -> Tree:
        """A tree whose tensors are free to be changed."""
        return self._copy(params)

    def gradient(self, loss: Callable[[Tree], Tensor], params: Tree, names: Iterable[str]) -> tuple[Tree, Tensor]:
        """The gradient of `loss` at `params` with respect to these names, and the loss (detached)."""
        wanted = list(names)
        known = params is self._working and names is self._leaves
        leaves = params if known or _are_leaves(params, wanted) else _as_leaves(params, wanted)
        with torch.enable_grad():
            value = check_loss(None, "", loss(leaves))
        try:
            grads = backward(value, [leaves[name] for name in wanted])
        except RuntimeError:
            refuse_detached(value)
            raise
        return dict(zip(wanted, grads, strict=True)), value.detach()

    def fold(self, c: Context, step: Callable[[Groups, Any], Groups], start: Groups, batches: Iterable[Any]) -> Groups:
        """`start` after `step(groups, batch)` for each batch."""
        with torch.no_grad():
            for batch in batches:
                c.diagnostics.step(batch)
                start = step(start, batch)
        return start

    def descend(self, c: Context, params: Tree, gradient: LocalGradient, batches: Iterable[Any]) -> Tree:
        """A copy of `params` after one step of the optimiser along `gradient` for each batch."""
        params = self._copy(params)
        for name in c.trainable:
            # the working copy itself is what autograd differentiates by: no new leaves, nothing bound anew per step
            params[name].requires_grad_()
        self._working, self._leaves = params, c.trainable
        with torch.no_grad():
            memory = start_memory(c.settings)
            for batch in batches:
                grads = step_gradient(c, gradient, params, batch)
                memory.move([params[name] for name in grads], grads, c.settings)
        for name in c.trainable:
            params[name].requires_grad_(False)
        self._working = None
        return params


def backward(value: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    """The gradient of a scalar with respect to these leaves; zeros where it does not depend on one.

    What `torch.autograd.grad` does in the end; its own checks cost a third of a tiny network's step.
    """
    grads = run_backward(
        (value,), (_one(value.dtype, value.device),), False, False, tuple(leaves),
        allow_unreachable=True, accumulate_grad=False,
    )  # fmt: skip
    return [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(leaves, grads, strict=True)]


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


def start_memory(settings: LocalSettings) -> Velocity | Memory:
    """What the optimiser remembers when a visit begins."""
    return Velocity() if settings.optimiser is None else Memory()


class Memory:
    """What any optimiser but SGD remembers in a visit."""

    def __init__(self, values: Tree | None = None) -> None:
        self._values = values
        self._names: list[str] = []

    def move(self, weights: list[Tensor], grads: Tree, settings: LocalSettings) -> None:
        """One step in place."""
        params = dict(zip(grads, weights, strict=True))
        if self._values is None:
            self._values = begin(params, settings)
        if self._names and self._names != list(grads):
            raise Fault(settings.optimiser, "step", "needs directions that name the same parameters in all steps of a "
                        f"visit, got {list(grads)} after {self._names}; take sgd")  # fmt: skip
        self._names = list(grads)
        moved, self._values = advance(params, grads, self._values, settings)
        for name, weight in params.items():
            weight.copy_(moved[name])


class Velocity:
    """The momentum of SGD in a visit, kept by name, since a gradient may name other parameters at each step."""

    def __init__(self, values: Tree | None = None) -> None:
        self._values: Tree = dict(values or {})
        self._own = False
        """The first velocity is the gradient itself, which may be somebody else's; later ones are ours to change."""

    def move(self, weights: list[Tensor], grads: Tree, settings: LocalSettings) -> None:
        """One step in place, the direction clipped."""
        self.update(weights, grads if settings.clip is None else clip(grads, settings.clip), settings)

    def update(self, weights: list[Tensor], grads: Tree, settings: LocalSettings) -> None:
        """d = grad + weight_decay * w; velocity = momentum * velocity + d; w = w - lr * velocity.

        With Nesterov's momentum w = w - lr * (d + momentum * velocity). Unlike `move` also for many clients, [K, ...].
        """
        steps = list(grads.values())
        if settings.weight_decay:
            steps = list(add_lists(steps, weights, alpha=settings.weight_decay))
        if settings.momentum:
            velocity = self._advance(grads, steps, settings.momentum)
            steps = list(add_lists(steps, velocity, alpha=settings.momentum)) if settings.nesterov else velocity
        add_in_place(weights, steps, alpha=-settings.lr)

    def _advance(self, grads: Tree, steps: list[Tensor], momentum: float) -> list[Tensor]:
        """momentum * velocity + step, for each of these names."""
        known = self._values
        if known.keys() != grads.keys():
            new = [known[n] * momentum + d if n in known else d for n, d in zip(grads, steps, strict=True)]
            self._own = False
        elif self._own:
            new = [known[name] for name in grads]
            scale_in_place(new, momentum)
            add_in_place(new, steps)
        else:
            new = list(scale_list([known[name] for name in grads], momentum))
            add_in_place(new, steps)
            self._own = True
        known.update(zip(grads, new, strict=True))
        return new
