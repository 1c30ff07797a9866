"""FedNTD: clients keep what the received model says of the classes that a sample does not belong to.

Lee, Jeong, Shin, Bae, Yun, "Preservation of the Global Knowledge by Not-True Distillation in Federated Learning",
NeurIPS 2022.

    paper                     here
    beta, tau                 beta, tau
    q~^g, q~^l                softmaxes of the teacher's and of own logits without the true class
    L_NTD                     the term ntd(beta, tau), terms/ntd.py
    L                         cross-entropy + ntd

The codes multiply the divergence by tau^2, as distillation does; so do we. With two classes there is one not-true
class, and the term is 0.
"""

from __future__ import annotations

from unskew.base.registry import param
from unskew.core.method import Method, methods
from unskew.core.term import Term
from unskew.terms.ntd import NotTrue


@methods.register("fedntd")
class FedNTD(Method):
    """FedAvg with distillation from the received model, over all classes but the true one."""

    beta: float = param(default=1.0, ge=0, doc="strength of the distillation", source="FedSOL, Table 8; official code")
    tau: float = param(default=1.0, gt=0, doc="temperature of both softmaxes", source="FedSOL, Table 8")

    def own_terms(self) -> tuple[Term, ...]:
        """The not-true distillation."""
        return (NotTrue(beta=self.beta, tau=self.tau),)
