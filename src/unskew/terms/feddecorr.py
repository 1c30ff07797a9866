"""The decorrelation term of FedDecorr."""

from __future__ import annotations

import torch
from torch import Tensor

from unskew.base.batch import Batch, Output
from unskew.base.registry import param
from unskew.base.tree import Tree
from unskew.core.context import ClientContext
from unskew.core.term import Term, terms
from unskew.terms.correlation import find_stacked_tolerance, note_dead, standardise


@terms.register("feddecorr")
class Decorrelate(Term):
    """weight times the mean squared correlation of the batch's features, in the scale of FedDecorr's code."""

    weight: float = param(default=0.1, ge=0, doc="strength, the paper's beta", source="FedDecorr's code")
    paper_scale: bool = param(
        default=False,
        doc="||K||_F^2 / d^2 (eq. 8) instead of the code's (N-1)^2/N times the off-diagonal mean of K^2",
        source="the weight was tuned for the code",
    )
    var_eps: float = param(default=1e-8, gt=0, doc="added to the features' variances", source="FedDecorr's code")

    @property
    def stacked_tolerance(self) -> float:  # type: ignore[override]
        """Nothing below a `var_eps` of 0.01."""
        return find_stacked_tolerance(self.var_eps)

    def __call__(self, c: ClientContext, params: Tree, batch: Batch, out: Output) -> Tensor:
        """The term; 0 for one sample."""
        x, degrees = standardise(out.features, batch.mask, self.var_eps)
        note_dead(c, x, degrees)
        size = x.shape[1]
        if self.paper_scale:
            value = _sum_of_squares(x) / (degrees.clamp(min=1) * size).square()
        else:
            value = _sum_of_squares(x, diagonal=False) / (max(1, size * (size - 1)) * (degrees + 1).clamp(min=1))
        return self.weight * torch.where(degrees > 0, value, 0.0)


def _sum_of_squares(x: Tensor, diagonal: bool = True) -> Tensor:
    """||X^T X||_F^2 = ||X X^T||_F^2, by the smaller one; without X^T X's diagonal if wanted."""
    batch, size = x.shape
    if batch < size:
        whole = (x @ x.T).square().sum()
        return whole if diagonal else whole - x.square().sum(0).square().sum()
    gram = x.T @ x
    if not diagonal:
        gram = torch.where(torch.eye(size, dtype=torch.bool, device=x.device), 0.0, gram)
    return gram.square().sum()
