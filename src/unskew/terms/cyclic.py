"""Distillation between a model and its shared channels alone."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from unskew.base.batch import Batch, Output
from unskew.base.registry import param
from unskew.base.tree import Tree
from unskew.core.context import ClientContext
from unskew.core.division import pad
from unskew.core.term import Term, terms


def silence_private(params: Tree, shared: Tree) -> Tree:
    """The model whose private channels are silent: rows below the shared ones are 0; what is private whole stays."""
    part = {name: params[name][: len(own)] if own.dim() else params[name] for name, own in shared.items()}
    return {**params, **pad(part, params)}


@terms.register("cyclic")
class Cyclic(Term):
    """weight (KL(p || p_s) + KL(p_s || p)); p: of the whole model, p_s: of its shared channels alone.

    The first of each pair teaches and is constant. Where only whole parameters are private (a head), p_s is p.
    """

    weight: float = param(default=1.0, ge=0, doc="strength", source="our choice; no code is public")
    tau: float = param(default=1.0, gt=0, doc="temperature of both softmaxes", source="our choice; no code is public")

    def __call__(self, c: ClientContext, params: Tree, batch: Batch, out: Output) -> Tensor:
        """The batch's mean of both divergences."""
        alone = c.forward(silence_private(params, c.message["model"]), batch.x, "batch").logits
        whole, shared = (F.log_softmax(logits / self.tau, -1) for logits in (out.logits, alone))
        return self.weight * (batch.mean(_divergence(whole, shared)) + batch.mean(_divergence(shared, whole)))


def _divergence(taught: Tensor, own: Tensor) -> Tensor:
    """KL(teacher || pupil) of each sample, [B], from log-probabilities; the teacher is constant."""
    taught = taught.detach()
    return (taught.exp() * (taught - own)).sum(-1)
