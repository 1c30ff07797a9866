"""FedDecorr: a term keeps the features' dimensions uncorrelated, so that skewed data do not collapse them.

Shi, Liang, Zhang, Tan, Bai, "Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous Federated
Learning", ICLR 2023.

    paper              here
    beta               beta
    K (eq. 7)          correlation matrix of the batch's features, the input of the head
    L_FedDecorr        the term feddecorr(weight=beta)

The paper writes ||K||_F^2 / d^2. Its code takes X^T X without 1/N, the mean of the squared off-diagonal entries,
divided by N: (N-1)^2/N times the off-diagonal mean of K^2. beta = 0.1 was tuned for the code, which is the default.
"""

from __future__ import annotations

from unskew.base.registry import param
from unskew.core.method import Method, methods
from unskew.core.term import Term
from unskew.terms.feddecorr import Decorrelate


@methods.register("feddecorr")
class FedDecorr(Method):
    """FedAvg with the features' squared correlations added to the local loss."""

    beta: float = param(default=0.1, ge=0, doc="strength of the decorrelation", source="official code")
    paper_scale: bool = param(
        default=False, doc="the scale of the paper's formula instead of the code's", source="official code"
    )
    var_eps: float = param(default=1e-8, gt=0, doc="added to the features' variances", source="official code")

    def own_terms(self) -> tuple[Term, ...]:
        """The decorrelation."""
        return (Decorrelate(weight=self.beta, paper_scale=self.paper_scale, var_eps=self.var_eps),)
