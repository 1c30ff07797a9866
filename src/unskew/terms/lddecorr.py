"""LDDecorr, the log-determinant decorrelation of FedBlade."""

from __future__ import annotations

import torch
from torch import Tensor

from unskew.base.batch import Batch, Output
from unskew.base.registry import param
from unskew.base.tree import Tree
from unskew.core.context import ClientContext
from unskew.core.term import Term, terms
from unskew.terms.correlation import minus_log_det, standardised


@terms.register("lddecorr")
class LDDecorr(Term):
    """-weight log det(K + jitter I), K the correlation matrix of the batch's features (FedBlade, eq. 11)."""

    weight: float = param(default=0.005, ge=0, doc="strength, the paper's beta of eq. 17", source="FedBlade, Fig. 6")
    jitter: float = param(default=1e-4, gt=0, le=0.01, doc="added to the diagonal of K", source="our choice")
    var_eps: float = param(default=1e-8, gt=0, doc="added to the features' variances", source="FedDecorr's code")

    def __call__(self, c: ClientContext, params: Tree, batch: Batch, out: Output) -> Tensor:
        """The term; 0 for one sample, and for a batch whose matrix has no factor even with more jitter."""
        x, degrees = standardised(out.features, batch.mask, self.var_eps)
        value, done = minus_log_det(x, degrees, batch.mask, self.jitter)
        c.diagnostics.note("lddecorr_skipped", (~done).to(value.dtype))  # the share of such batches
        return self.weight * torch.where(degrees > 0, value, 0.0)
