"""FedProx: a proximal term holds clients near the global model.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.

    paper          here
    mu             mu
    w^t            c.received["model"]
    h_k (eq. 2)    cross-entropy + Prox(mu)

The papers that compare with it use other mu: FedSOL 1.0, FedBlade 0.01, FedAF 0.001, FedAS's code 0.1.
"""

from __future__ import annotations

from unskew.base.registry import param
from unskew.core.method import Method, methods
from unskew.core.term import Term
from unskew.terms.prox import Prox


@methods.register("fedprox")
class FedProx(Method):
    """FedAvg with (mu/2) ||w - w^t||^2 added to the local loss."""

    mu: float = param(default=0.01, ge=0, doc="strength of the proximal term", source="FedBlade's experiments")

    def own_terms(self) -> tuple[Term, ...]:
        """The proximal term."""
        return (Prox(mu=self.mu),)
