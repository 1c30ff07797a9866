"""The distance of features to their class's global prototype: FedProto's term, and FedFM's other one."""

from __future__ import annotations

import torch
from torch import Tensor

from unskew.base.batch import Batch, Output
from unskew.base.registry import param
from unskew.base.tree import Tree
from unskew.core.context import ClientContext
from unskew.core.term import Term, terms
from unskew.terms.bilateral_alignment import received_prototypes
from unskew.terms.cosine import normalise


@terms.register("proto")
class PrototypeDistance(Term):
    """weight times the mean over samples and dimensions of (z - p_y)^2, p_y the prototype of the sample's class."""

    needs = ("prototypes",)

    weight: float = param(default=1.0, ge=0, doc="strength", source="our choice; FedBlade's experiments: 1")
    unit: bool = param(default=False, doc="between vectors of norm 1", source="FedProto; FedFM's l2: true")

    def __call__(self, c: ClientContext, params: Tree, batch: Batch, out: Output) -> Tensor:
        """The mean over the batch; a sample whose class has no prototype counts as exactly 0."""
        means, available = received_prototypes(c)
        z, target = out.features, means[batch.y]
        if self.unit:
            z, target = normalise(z), normalise(target)
        return self.weight * batch.mean(torch.where(available[batch.y], (z - target).square().mean(1), 0.0))
