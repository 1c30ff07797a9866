"""Orthogonality: the angle between a local step and the gradient that would pull back to the received model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from unskew.base import tree
from unskew.base.batch import Batch
from unskew.base.registry import param
from unskew.base.tree import Tree
from unskew.core.context import ClientContext
from unskew.measures.base import Figures, Look, Measure, measures
from unskew.terms.kl import KL

_ROUNDING = 1e-6
"""A proximal gradient this much shorter than the update's is rounding (the models are equal): its cosine counts 0."""


def proximal_loss(c: ClientContext, params: Tree, batch: Batch, term: KL) -> Tensor:
    """The divergence from the received model, by a pass that changes no buffer and draws no dropout."""
    return term(c, params, batch, c.forward(params, batch.x, "eval_batch"))


def cosine(update: Tree, proximal: Tree) -> Tensor:
    """The cosine of the angle between two gradients; 0 where one is zero, or so short that it is rounding."""
    lengths = tree.norm(update), tree.norm(proximal)
    product = lengths[0] * lengths[1]
    meant = (lengths[1] > _ROUNDING * lengths[0]) & (product > 0)
    return torch.where(meant, tree.dot(update, proximal) / torch.where(meant, product, 1.0), 0.0)


@measures.register("orthogonality")
class Orthogonality(Measure):
    """Cosine between a local step's gradient and that of the KL loss to the received model (FedSOL, Fig. 3)."""

    reading: ClassVar[Mapping[str, str]] = {
        "orthogonality": "Near 0: local steps leave alone what the received model knows; below 0: they undo it.",
        "proximal_loss": "How far local predictions move from those of the received model; lower: more is kept.",
    }

    tau: float = param(default=3.0, gt=0, doc="temperature of the KL loss", source="FedSOL's code")
    every: int = param(default=1, ge=1, doc="steps between measurements within a visit")

    def step(self, c: ClientContext, params: Tree, batch: Batch, grads: Tree) -> None:
        """Notes `orthogonality` and `proximal_loss` of every n-th step in the clients' rows."""
        if (c.step - 1) % self.every:
            return
        names, term = tuple(name for name in c.trainable if name in grads), KL(tau=self.tau)
        proximal, loss = c.grad_and_value(lambda p: proximal_loss(c, p, batch, term), params, names)
        c.diagnostics.note("orthogonality", cosine({name: grads[name] for name in names}, proximal))
        c.diagnostics.note("proximal_loss", loss)

    def figures(self, look: Look) -> Figures:
        """`orthogonality` and `proximal_loss`, means over the clients."""
        return look.mean_notes("orthogonality", "proximal_loss")
