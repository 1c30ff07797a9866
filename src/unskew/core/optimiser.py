"""Optimisers of local training: how a step is made of its direction. Their mathematics is in optimisers.py.

What an optimiser remembers is a tree that begins anew at every visit, so that nothing of it is sent, kept or saved. A
step is a pure function of trees: it sees one client's shapes, alone, in a stack of clients and in a compiled step.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from unskew.base import tree
from unskew.base.registry import Component, Registry, param
from unskew.base.settings import LocalSettings
from unskew.base.tree import Tree
from unskew.core.checks.faults import Fault
from unskew.core.checks.returned import describe
from unskew.core.checks.watching import is_foreign
from unskew.core.optimisers import adam, adamw, clip, sgd, zero_moments
from unskew.core.tolerance import USUAL


class Optimiser(Component):
    """How a local step is made of its direction, which is clipped already."""

    uses: ClassVar[tuple[str, ...]] = ()
    """Which of the run's `momentum`, `nesterov` and `weight_decay` it reads; a run that sets another is refused."""
    stacked_tolerance: ClassVar[float] = USUAL
    """How near `stacked` comes to `serial` with it, as a share of the distance moved."""

    def init(self, params: Tree) -> Tree:
        """What it remembers before the first step, of these parameters: zeros, under names of its own."""
        return {}

    def step(self, params: Tree, grads: Tree, memory: Tree, settings: LocalSettings) -> tuple[Tree, Tree]:
        """The parameters that `grads` names after a step, and what it remembers then; nothing is changed in place."""
        raise TypeError(f"{type(self).__name__} must define step(params, grads, memory, settings)")


optimisers: Registry[Optimiser] = Registry("optimiser", Optimiser)


@optimisers.register("sgd")
class SGD(Optimiser):
    """Stochastic gradient descent, with the run's momentum and weight decay."""

    uses = ("momentum", "nesterov", "weight_decay")

    def init(self, params: Tree) -> Tree:
        """A velocity of zeros."""
        return tree.zeros_like(params)

    def step(self, params: Tree, grads: Tree, memory: Tree, settings: LocalSettings) -> tuple[Tree, Tree]:
        """d = grad + weight_decay w; v = momentum v + d; w - lr v (Nesterov: w - lr (d + momentum v))."""
        s = settings
        return sgd(params, grads, tree.select(memory, grads), s.lr, s.momentum, s.weight_decay, s.nesterov)


@optimisers.register("adam")
class Adam(Optimiser):
    """Adam; the run's weight decay is added to the gradient.

    Kingma, Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015.
    """

    beta1: float = param(default=0.9, ge=0, lt=1, doc="decay of the mean of the gradients", source="paper")
    beta2: float = param(default=0.999, ge=0, lt=1, doc="decay of the mean of their squares", source="paper")
    eps: float = param(default=1e-8, gt=0, doc="added to the root of that mean", source="paper")

    uses: ClassVar[tuple[str, ...]] = ("weight_decay",)
    # of a gradient that is rounding noise, such as a bias's before BatchNorm, it makes full steps (measured: 0.053)
    stacked_tolerance = 0.2

    def init(self, params: Tree) -> Tree:
        """Moments of zeros."""
        return zero_moments(params)

    def step(self, params: Tree, grads: Tree, memory: Tree, settings: LocalSettings) -> tuple[Tree, Tree]:
        """As `torch.optim.Adam`."""
        betas = (self.beta1, self.beta2)
        return adam(params, grads, memory, settings.lr, betas, self.eps, settings.weight_decay)


@optimisers.register("adamw")
class AdamW(Adam):
    """Adam whose weights also shrink by themselves, by a weight decay of its own.

    Loshchilov, Hutter, "Decoupled Weight Decay Regularization", ICLR 2019.
    """

    weight_decay: float = param(
        default=0.01, ge=0, doc="share of the rate by which weights shrink in a step", source="torch.optim.AdamW"
    )

    uses = ()

    def step(self, params: Tree, grads: Tree, memory: Tree, settings: LocalSettings) -> tuple[Tree, Tree]:
        """As `torch.optim.AdamW`."""
        return adamw(params, grads, memory, settings.lr, (self.beta1, self.beta2), self.eps, self.weight_decay)


# ---------------------------------------------------------------------------------- a step as the run's settings say

_SGD = SGD()


def begin(params: Tree, settings: LocalSettings) -> Tree:
    """What the run's optimiser remembers before the first step of these parameters: for loops of one's own."""
    if settings.optimiser is None and not settings.momentum:
        return {}
    return (settings.optimiser or _SGD).init(params)


def advance(params: Tree, grads: Tree, memory: Tree, settings: LocalSettings) -> tuple[Tree, Tree]:
    """The parameters after one step of the run's optimiser along `grads`, clipped as the run says; and its memory.

    The local loop as a pure function, for loops of one's own (`c.fold`) and for compiled steps.
    """
    if settings.clip is not None:
        grads = clip(grads, settings.clip)
    rule = settings.optimiser or _SGD
    found = rule.step(tree.select(params, grads), grads, memory, settings)
    if is_foreign([rule]):
        _check_step(rule, grads, found)
    moved, memory = found
    return {**params, **{name: moved[name] for name in grads}}, memory


def _check_step(rule: object, grads: Tree, found: object) -> None:
    """A fault where an optimiser does not give the parameters back as it got them."""
    if not (isinstance(found, tuple) and len(found) == 2 and all(isinstance(each, dict) for each in found)):
        raise Fault(rule, "step", f"must return two trees, the parameters and its memory, got {describe(found)}")
    for name, grad in grads.items():
        value = found[0].get(name)
        if not isinstance(value, Tensor) or value.shape != grad.shape or value.dtype != grad.dtype:
            expected = f"a tensor of shape {list(grad.shape)} and type {grad.dtype}"
            raise Fault(rule, "step", f"must return '{name}' as {expected}, got {describe(value)}")
