"""FedSOL's ablations: other combinations of the two gradients (Table 12), and projection instead of moving (eq. 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from unskew.base import tree
from unskew.base.batch import Batch
from unskew.base.tree import Tree
from unskew.core.context import ClientContext
from unskew.methods.fedsol.one_pass import keep_statistics

if TYPE_CHECKING:
    from unskew.methods.fedsol.method import FedSOL


def combine(sol: FedSOL, c: ClientContext, w: Tree, batch: Batch) -> Tree:
    """The step's direction by Table 12; A1 is FedSOL itself, and with rho = 0 equals A0.

    A0 g_l(w)                               A4 g_l(w + eps_c) + beta g_p(w + eps_c)
    A2 g_l(w) + beta g_p(w + eps_p)         A5 g_l(w) + beta g_p(w)
    A3 g_l(w + eps_p) + beta g_p(w + eps_p) A6 g_l(w + eps_p) + beta g_p(w)

    The table's eps has no Lambda: `scaling=fixed`.
    """
    if sol.strategy in ("A0", "A1"):
        return sol.local_gradient(c, w, batch)
    still = keep_statistics(c)  # BatchNorm's statistics are those of the first pass at w

    def g_l(at: Tree) -> Tree:
        return sol.local_gradient(still, at, batch)

    def g_p(at: Tree) -> Tree:
        return sol.proximal_gradient(still, at, batch)

    def add(local: Tree, proximal: Tree) -> Tree:
        return tree.add_scaled(local, proximal, sol.beta)

    g_p_w = sol.proximal_gradient(c, w, batch)
    if sol.strategy == "A5":
        return add(g_l(w), g_p_w)
    # w + eps_c, along g_c = g_l + beta g_p, or w + eps_p
    there = sol.move(c, w, add(g_l(w), g_p_w) if sol.strategy == "A4" else g_p_w)
    match sol.strategy:
        case "A2":
            return add(g_l(w), g_p(there))
        case "A3" | "A4":
            return add(g_l(there), g_p(there))
        case _:  # A6
            return add(g_l(there), g_p_w)


def project(sol: FedSOL, c: ClientContext, w: Tree, batch: Batch) -> Tree:
    """g_l without its part that opposes g_p (eq. 3); nothing is moved."""
    g_p = sol.proximal_gradient(keep_statistics(c), w, batch)
    return remove_conflict(sol.local_gradient(c, w, batch), g_p, sol.threshold)


def remove_conflict(grads: Tree, against: Tree, threshold: float = 0.0) -> Tree:
    """`grads` without its part that opposes `against`, both taken as one vector.

    What is not longer than `threshold` is rounding noise (at first w = w_g), whose direction means nothing.
    """
    product, square = tree.dot(grads, against), tree.sqnorm(against)
    means = square > threshold**2
    share = torch.where((product < 0) & means, product / torch.where(means, square, 1.0), 0.0)
    return tree.add_scaled(grads, against, -share)
