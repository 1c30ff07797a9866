"""Distillation from the received model, by a Kullback-Leibler divergence."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from unskew.base.batch import Batch, Output
from unskew.base.registry import param
from unskew.base.tree import Tree
from unskew.core.context import ClientContext
from unskew.core.term import Term, terms


@terms.register("kl")
class KL(Term):
    """KL(softmax(o_g/tau) || softmax(o/tau)), the batch's mean, without a factor tau^2; o_g: the received model's."""

    needs = ("teacher",)
    proximal = True

    tau: float = param(default=3.0, gt=0, doc="temperature of both softmaxes", source="FedSOL, Sec. 4.1, and its code")

    def __call__(self, c: ClientContext, params: Tree, batch: Batch, out: Output) -> Tensor:
        """The mean divergence from what the received model says."""
        taught = F.log_softmax(c.teacher(batch).logits / self.tau, -1)
        own = F.log_softmax(out.logits / self.tau, -1)
        return batch.mean((taught.exp() * (taught - own)).sum(-1))
