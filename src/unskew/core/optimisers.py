"""Steps of optimisers as pure functions, and the optimisers of local training, which are made of them.

    server = {**server, "generator": generator.init(seed), "moments": {}}
    params, moments = optimisers.adam(server["generator"], grads, server["moments"], lr=1e-3)

What they remember is a tree, which lives in the server's or a client's state; an empty one is the beginning. `grads`
may name fewer parameters than there are, the same ones at every step; the others stay as they are.

In local training the tree begins anew at every visit, so that nothing of it is sent, kept or saved. A step sees one
client's shapes: alone, in a stack of clients and in a compiled step.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from unskew.base import tree
from unskew.base.errors import InputError
from unskew.base.registry import Component, Registry, param
from unskew.base.settings import LocalSettings
from unskew.base.tree import Tree
from unskew.core.checks.faults import Fault
from unskew.core.checks.guard import Guard
from unskew.core.checks.returned import describe, is_dense
from unskew.core.checks.watching import is_foreign
from unskew.core.tolerance import USUAL

# ---------------------------------------------------------------------------------------------- the mathematics


def adam(
    params: Tree,
    grads: Tree,
    moments: Tree,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> tuple[Tree, Tree]:
    """One step of Adam, as `torch.optim.Adam` makes it; gives the parameters and the moments.

    The moments are `first/<name>`, `second/<name>` and `step`.
    """
    moments = moments or zero_moments(grads)
    step = moments["step"] + 1
    corrections = [1 - beta**step for beta in betas]
    new, kept = dict(params), {"step": step}
    for name, grad in _add_decay(params, grads, weight_decay).items():
        first_scale, second_scale = (correction.to(grad.dtype) for correction in corrections)
        first = torch.lerp(moments[f"first/{name}"], grad, 1 - betas[0])
        second = betas[1] * moments[f"second/{name}"] + (1 - betas[1]) * grad.square()
        new[name] = params[name] - lr / first_scale * first / (second.sqrt() / second_scale.sqrt() + eps)
        kept |= {f"first/{name}": first, f"second/{name}": second}
    return new, kept


def adamw(
    params: Tree,
    grads: Tree,
    moments: Tree,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
) -> tuple[Tree, Tree]:
    """One step of AdamW, as `torch.optim.AdamW` makes it: weights shrink beside Adam's step."""
    shrunk = {**params, **{name: params[name] * (1 - lr * weight_decay) for name in grads}}
    return adam(shrunk, grads, moments, lr, betas, eps)


def sgd(
    params: Tree,
    grads: Tree,
    velocity: Tree,
    lr: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
) -> tuple[Tree, Tree]:
    """One step of SGD, as `torch.optim.SGD` makes it; gives the parameters and the velocity (empty if no momentum)."""
    steps = _add_decay(params, grads, weight_decay)
    if momentum:
        velocity = tree.add_scaled(steps, velocity, momentum) if velocity else steps
        steps = tree.add_scaled(steps, velocity, momentum) if nesterov else velocity
    return {**params, **{name: params[name] - lr * step for name, step in steps.items()}}, velocity


def _add_decay(params: Tree, grads: Tree, weight_decay: float) -> Tree:
    return {name: grad + weight_decay * params[name] for name, grad in grads.items()} if weight_decay else grads


def clip(grads: Tree, norm: float) -> Tree:
    """The gradients, shortened to this L2 norm of all together if they are longer: `torch.nn.utils.clip_grad_norm_`."""
    # in double precision: squares of large numbers overflow, and a factor of 0 would hide a client that diverged
    length = tree.norm({name: grad.double() for name, grad in grads.items()})
    share = (norm / (length + 1e-6)).clamp(max=1.0)  # torch's 1e-6: gradients may be zeros
    return {name: grad * share.to(grad.dtype) for name, grad in grads.items()}


def zero_moments(grads: Tree) -> Tree:
    """What Adam remembers before its first step."""
    zeros: dict[str, Tensor] = {}
    for name, grad in grads.items():
        zeros |= {f"first/{name}": torch.zeros_like(grad), f"second/{name}": torch.zeros_like(grad)}
    # float64: beta^step must not lose digits
    return {"step": torch.zeros((), dtype=torch.float64), **zeros}


# ------------------------------------------------------------------------------ as components of local training


SHARED = ("nesterov", "momentum", "weight_decay")
"""Options of a run that an optimiser may read; Nesterov's first, as it is of no use without momentum."""


class Optimiser(Component):
    """How a local step is made of its direction, which is clipped already."""

    uses: ClassVar[tuple[str, ...]] = ()
    """Which of the run's `momentum`, `nesterov` and `weight_decay` it reads; a run that sets another is refused."""
    stacked_tolerance: ClassVar[float] = USUAL
    """How near `stacked` comes to `serial` with it, as a share of the distance moved."""

    def __init_subclass__(cls) -> None:
        """Refuses declarations that would do nothing."""
        super().__init_subclass__()
        if not isinstance(cls.uses, tuple) or not set(cls.uses) <= set(SHARED):
            known = ", ".join(map(repr, SHARED))
            raise InputError(f"optimiser {cls.__name__}: uses must be a tuple of some of {known}, got {cls.uses!r}")
        if isinstance(cls.stacked_tolerance, bool) or not isinstance(cls.stacked_tolerance, (int, float)):
            raise InputError(
                f"optimiser {cls.__name__}: stacked_tolerance must be a number such as 0.01, got "
                f"{cls.stacked_tolerance!r}"
            )

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
    rule = settings.optimiser or _SGD
    if not is_foreign([rule]):
        return rule.init(params)
    guard, given = Guard(streams=False), tree.copy(params)  # weights change in place: what it remembers does not
    guard.hold("params", given)
    memory: object = rule.init(given)
    if changed := guard.find_change():
        raise Fault(rule, "init", f"must not change what it is given, and changed {changed}")
    if not isinstance(memory, dict):
        raise Fault(rule, "init", f"must return a tree, what it remembers, got {describe(memory)}")
    return memory


def advance(params: Tree, grads: Tree, memory: Tree, settings: LocalSettings) -> tuple[Tree, Tree]:
    """The parameters after one step of the run's optimiser along `grads`, clipped as the run says; and its memory.

    The local loop as a pure function, for loops of one's own (`c.fold`) and for compiled steps.
    """
    if settings.clip is not None:
        grads = clip(grads, settings.clip)
    rule = settings.optimiser or _SGD
    given, foreign = tree.select(params, grads), is_foreign([rule])
    found = rule.step(tree.copy(given) if foreign else given, grads, memory, settings)
    if foreign:
        _check_step(rule, grads, found)
    moved, memory = found
    if foreign and (shared := {id(value) for value in moved.values()}):
        memory = {name: value.clone() if id(value) in shared else value for name, value in memory.items()}
    return {**params, **{name: moved[name] for name in grads}}, memory


def _check_step(rule: object, grads: Tree, found: object) -> None:
    """A fault where an optimiser does not give the parameters back as it got them."""
    if not (isinstance(found, tuple) and len(found) == 2 and all(isinstance(each, dict) for each in found)):
        raise Fault(rule, "step", f"must return two trees, the parameters and its memory, got {describe(found)}")
    for name, grad in grads.items():
        value = found[0].get(name)
        good = isinstance(value, Tensor) and is_dense(value)
        if not good or value.shape != grad.shape or value.dtype != grad.dtype:
            expected = f"a tensor of shape {list(grad.shape)} and type {grad.dtype}"
            raise Fault(rule, "step", f"must return '{name}' as {expected}, got {describe(value)}")
