"""Weights moved along a direction before a gradient is taken there: radius, scaling by layer, projection.

What FedSOL's equations 3 and 5 to 8 need and other methods may use; plain functions of trees, without state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from unskew.base import tree
from unskew.base.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unskew.base.batch import Output
    from unskew.core.context import ClientContext, Context
    from unskew.core.net import Layer, Mode, Part

Where = Literal["head", "body", "all"]
"""Which parameters are moved; the head is the network's last child module."""

Scaling = Literal["code", "paper", "tensor", "fixed"]
"""How far each entry may move, by how far it is from the received model: see `moved`."""

TINY = 1e-12
"""Guard of the norms that something is divided by, torch's own for `F.normalize`."""


def part(context: Context, where: Where) -> tuple[str, ...]:
    """The trained parameters of the head, the body, or both."""
    if where == "all":
        return context.trainable
    head = context.names.match(("head.*",))
    return tuple(name for name in context.trainable if (name in head) == (where == "head"))


def moved(params: Tree, direction: Tree, received: Tree, rho: float, scaling: Scaling, threshold: float) -> Tree:
    """w + eps for the names of `direction`: eps = rho Lambda * direction / ||direction||, the norm over all of them.

    A direction not longer than `threshold` is rounding noise: eps = 0. Lambda, with d = |w - w_g|:
    `code`: d over its norm along the first dimension of each tensor; `tensor`: d over its norm in each tensor; `paper`:
    d over its norm in each layer, weight and bias together; `fixed`: 1. Gradients pass through w as if eps were fixed.
    """
    with torch.no_grad():
        norm = tree.norm(direction)
        radius = torch.where(norm > threshold, rho / (norm + TINY), 0.0)
        if scaling == "fixed":
            steps = tree.scale(direction, radius)
        else:
            away = {name: params[name] - received[name] for name in direction}
            lengths = _lengths(away, scaling)
            # in place only what is made here, and batched whenever `direction` is: before the first step w is not
            steps = {
                name: (d.abs_() * direction[name]).mul_(radius / lengths[name].clamp(min=TINY))
                for name, d in away.items()
            }
    return {name: params[name] + step for name, step in steps.items()}


def _lengths(away: Tree, scaling: Scaling) -> Tree:
    """What |w - w_g| is divided by, for each name, in a shape that fits."""
    if scaling == "code":
        return {name: torch.linalg.vector_norm(d, dim=0, keepdim=True) for name, d in away.items()}
    if scaling == "tensor":
        return {name: torch.linalg.vector_norm(d) for name, d in away.items()}
    layers: dict[str, Tree] = {}
    for name, d in away.items():
        layers.setdefault(name.rpartition(".")[0], {})[name] = d
    norms = {layer: tree.norm(own) for layer, own in layers.items()}
    return {name: norms[name.rpartition(".")[0]] for name in away}


def projected(grads: Tree, against: Tree) -> Tree:
    """`grads` without its part that opposes `against`, both taken as one vector (eq. 3 of FedSOL)."""
    product, square = tree.dot(grads, against), tree.sqnorm(against)
    share = torch.where((product < 0) & (square > 0), product / torch.where(square > 0, square, 1.0), 0.0)
    return tree.add_scaled(grads, against, -share)


def calm(c: ClientContext) -> ClientContext:
    """The same visit, whose passes in mode `train` leave BatchNorm's running statistics alone."""

    def forward(
        params: Tree,
        x: Tensor,
        mode: Mode = "train",
        buffers: Tree | None = None,
        layers: Mapping[str, Layer] | None = None,
        part: Part = "whole",
    ) -> Output:
        return c.forward(params, x, "batch" if mode == "train" else mode, buffers, layers, part)

    return c.with_forward(forward)
