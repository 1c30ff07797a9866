"""MOON's contrastive term: features near the received model's, away from those of the client's previous model."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from unskew.base.batch import Batch, Output
from unskew.base.registry import param
from unskew.base.tree import Tree
from unskew.core.context import ClientContext
from unskew.core.term import Term, terms
from unskew.terms.cosine import normalise


@terms.register("moon")
class ModelContrast(Term):
    """-mu log(e^(cos(z, z_g)/tau) / (e^(cos(z, z_g)/tau) + e^(cos(z, z_p)/tau))), the batch's mean (MOON, eq. 3)."""

    needs = ("teacher", "previous")
    proximal = True

    mu: float = param(default=1.0, ge=0, doc="strength", source="FedAF's experiments")
    tau: float = param(default=0.5, gt=0, doc="temperature of the cosines", source="MOON, Sec. 4.1")

    def __call__(self, c: ClientContext, params: Tree, batch: Batch, out: Output) -> Tensor:
        """The mean contrast; its gradient is exactly 0 where both fixed models say the same, as in the first round."""
        received, previous = c.teacher(batch).features, c.predecessor(batch).features
        # cos(z, z_g) - cos(z, z_p): the softmax of two numbers is the sigmoid of their difference
        nearer = (normalise(out.features) * (normalise(received) - normalise(previous))).sum(-1)
        return -self.mu * batch.mean(F.logsigmoid(nearer / self.tau))
