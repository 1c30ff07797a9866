"""Not-true distillation: what the received model says of the classes that a sample does not belong to."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from unskew.base.batch import Batch, Output
from unskew.base.registry import param
from unskew.base.tree import Tree
from unskew.core.context import ClientContext
from unskew.core.term import Term, terms


@terms.register("ntd")
class NotTrue(Term):
    """beta tau^2 KL(softmax(o~_g/tau) || softmax(o~/tau)), the batch's mean; o~: logits without the true class."""

    needs = ("teacher",)
    proximal = True

    beta: float = param(default=1.0, ge=0, doc="strength", source="FedSOL, Table 8")
    tau: float = param(default=1.0, gt=0, doc="temperature of both softmaxes", source="FedSOL, Table 8")

    def __call__(self, c: ClientContext, params: Tree, batch: Batch, out: Output) -> Tensor:
        """The mean divergence from the received model; two classes leave one that is not true, and nothing to say."""
        taught = F.log_softmax(drop_true(c.teacher(batch).logits, batch.y) / self.tau, -1)
        own = F.log_softmax(drop_true(out.logits, batch.y) / self.tau, -1)
        return self.beta * self.tau**2 * batch.mean((taught.exp() * (taught - own)).sum(-1))


def drop_true(logits: Tensor, y: Tensor) -> Tensor:
    """[B, C] without the column of each sample's own class: [B, C - 1]."""
    columns = torch.arange(logits.shape[-1] - 1, device=y.device)
    return logits.gather(-1, columns + (columns >= y.unsqueeze(-1)))
