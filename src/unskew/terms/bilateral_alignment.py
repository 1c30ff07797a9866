"""Prototype-based bilateral alignment of FedBlade: the projector's part and the features' part."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from unskew.base.batch import Batch, Output, cross_entropy
from unskew.base.registry import param
from unskew.base.tree import Tree
from unskew.core.context import ClientContext
from unskew.core.term import Term, terms
from unskew.terms.cosine import normalise


@terms.register("projector_alignment")
class ProjectorAlignment(Term):
    """weight times the sum over classes of (1 - cos(projected prototype, class vector))^2 / 2 (FedBlade, eq. 15)."""

    needs = ("prototypes", "etf_head")

    weight: float = param(default=1.0, ge=0, doc="strength, the paper's gamma", source="FedBlade, Fig. 7")

    def __call__(self, c: ClientContext, params: Tree, batch: Batch, out: Output) -> Tensor:
        """The sum over available classes; prototypes are constants, so only the projector gets a gradient."""
        means, available = received_prototypes(c)
        projected = F.linear(means, params["head.projector.weight"], params["head.projector.bias"])
        cosines = (normalise(projected) * normalise(c.constants["head.vectors"].T)).sum(1)
        return 0.5 * self.weight * torch.where(available, 1 - cosines, 0.0).square().sum()


@terms.register("feature_alignment")
class FeatureAlignment(Term):
    """weight times the cross-entropy of features against prototypes, balanced by class counts (FedBlade, eq. 16)."""

    needs = ("prototypes",)

    weight: float = param(default=1.0, ge=0, doc="strength, the paper's gamma", source="FedBlade, Fig. 7")
    tau: float = param(default=0.1, gt=0, doc="temperature of the cosines", source="FedBlade, Fig. 8")
    distribution_factor: bool = param(default=True, doc="add the log counts of the client's classes", source="FedBlade")

    def __call__(self, c: ClientContext, params: Tree, batch: Batch, out: Output) -> Tensor:
        """The mean over the batch; a sample whose class has no prototype counts as exactly 0."""
        means, available = received_prototypes(c)
        scores = normalise(out.features) @ normalise(means).T / self.tau
        if self.distribution_factor:
            scores = scores + c.counts.to(scores.dtype).log()
        scores = torch.where(available, scores, -torch.inf)
        own = available[batch.y]
        # zeros where the value is not used: a row of -inf alone would make NaN of a gradient of 0
        values = cross_entropy(torch.where(own.unsqueeze(1), scores, 0.0), batch.y)
        return self.weight * batch.mean(torch.where(own, values, 0.0))


def received_prototypes(c: ClientContext) -> tuple[Tensor, Tensor]:
    """The prototypes of the message, [C, d], and which of them there are, [C]."""
    return c.message["prototypes"]["means"], c.message["prototypes"]["available"]
