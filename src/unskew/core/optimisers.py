"""Steps of optimisers as pure functions: what they remember is a tree, which lives in the server's or a client's state.

    server = {**server, "generator": generator.init(seed), "moments": {}}
    params, moments = optimisers.adam(server["generator"], grads, server["moments"], lr=1e-3)

An empty tree is the beginning. `grads` may name fewer parameters than there are, the same ones at every step; the
others stay as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unskew.base import tree
from unskew.base.tree import Tree


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
