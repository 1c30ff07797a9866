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
    moments = moments or _zero_moments(grads)
    step = moments["step"] + 1
    new, kept = dict(params), {"step": step}
    for name, grad in _add_decay(params, grads, weight_decay).items():
        first_scale, second_scale = ((1 - beta**step).to(grad.dtype) for beta in betas)
        first = torch.lerp(moments[f"first/{name}"], grad, 1 - betas[0])
        second = betas[1] * moments[f"second/{name}"] + (1 - betas[1]) * grad.square()
        new[name] = params[name] - lr / first_scale * first / (second.sqrt() / second_scale.sqrt() + eps)
        kept |= {f"first/{name}": first, f"second/{name}": second}
    return new, kept


def sgd(
    params: Tree, grads: Tree, velocity: Tree, lr: float, momentum: float = 0.0, weight_decay: float = 0.0
) -> tuple[Tree, Tree]:
    """One step of SGD, as `torch.optim.SGD` makes it; gives the parameters and the velocity (empty if no momentum)."""
    steps = _add_decay(params, grads, weight_decay)
    if momentum:
        steps = velocity = tree.add_scaled(steps, velocity, momentum) if velocity else steps
    return {**params, **{name: params[name] - lr * step for name, step in steps.items()}}, velocity


def _add_decay(params: Tree, grads: Tree, weight_decay: float) -> Tree:
    return {name: grad + weight_decay * params[name] for name, grad in grads.items()} if weight_decay else grads


def _zero_moments(grads: Tree) -> Tree:
    zeros: dict[str, Tensor] = {}
    for name, grad in grads.items():
        zeros |= {f"first/{name}": torch.zeros_like(grad), f"second/{name}": torch.zeros_like(grad)}
    # float64: beta^step must not lose digits
    return {"step": torch.zeros((), dtype=torch.float64), **zeros}
