"""FedFM: features are matched to anchors, the mean features of each class over all clients under the global model.

Ye, Ni, Xu, Wang, Chen, Eldar, "FedFM: Anchor-Based Feature Matching for Data Heterogeneity in Federated Learning",
IEEE Transactions on Signal Processing, 2023.

    paper                       here
    lambda, tau                 lam, tau
    local feature centroids     `survey`: the received model's features, summed by class, and the counts
    anchors                     server["prototypes"]: means over all samples of the round's clients
    contrastive-guiding loss    the term feature_alignment(weight=lam, tau, distribution_factor=false)
    l2 guiding                  guide=l2: the term proto(weight=lam, unit=true)

A round is: clients compute means with the model they received (`survey`), the server merges them (`digest`), clients
get the anchors (`brief`) and train. These are the paper's anchors, of the new global model, without sending it twice.
Official code: lambda 50 after 20 rounds (`fedfm(lam=50, warmup=20)`); FedBlade's experiments: 1, and tau 0.1, from the
start, our defaults. A class without samples in the round keeps its anchor, where the code divides by 0.
"""

from __future__ import annotations

from typing import Literal

from unskew.base.registry import param
from unskew.base.tree import Groups
from unskew.core.context import ClientContext, ServerContext
from unskew.core.method import Method, methods
from unskew.core.reducers import total
from unskew.core.term import Term
from unskew.core.tolerance import USUAL
from unskew.methods.prototypes import global_prototypes, no_prototypes, prototype_sums
from unskew.terms.bilateral_alignment import FeatureAlignment
from unskew.terms.proto import PrototypeDistance


@methods.register("fedfm")
class FedFM(Method):
    """FedAvg with features matched to anchors that are computed before each round's training."""

    lam: float = param(default=1.0, ge=0, doc="strength of the matching", source="FedBlade's experiments; code: 50")
    tau: float = param(default=0.1, gt=0, doc="temperature of the cosines", source="FedBlade's experiments")
    guide: Literal["contrast", "l2"] = param(
        default="contrast", doc="softmax of the cosines to all anchors, or distance to the own one", source="paper"
    )
    warmup: int = param(
        default=0, ge=0, doc="rounds of plain FedAvg before matching begins", source="FedBlade's text; code: 20"
    )

    offers = ("prototypes",)
    survey_reducers = {"prototypes": total}

    @property
    def stacked_tolerance(self) -> float:  # type: ignore[override]
        """Cosines over tau are steep, as in FedBlade."""
        return 0.1 if self.guide == "contrast" else USUAL

    def own_terms(self) -> tuple[Term, ...]:
        """lambda times the guiding loss, added to cross-entropy."""
        if self.guide == "l2":
            return (PrototypeDistance(weight=self.lam, unit=True),)
        return (FeatureAlignment(weight=self.lam, tau=self.tau, distribution_factor=False),)

    def init(self, s: ServerContext) -> Groups:
        """The initial model and no anchors."""
        return {**super().init(s), "prototypes": no_prototypes(s)}

    def survey(self, c: ClientContext) -> Groups:
        """The received model's features, summed by class."""
        return {"prototypes": prototype_sums(c, c.received["model"])}

    def digest(self, s: ServerContext, server: Groups, surveyed: Groups) -> Groups:
        """The anchors: means over all samples; a class that nobody holds keeps its own."""
        return {**server, "prototypes": global_prototypes(server["prototypes"], surveyed["prototypes"])}

    def brief(self, s: ServerContext, server: Groups, client: int) -> Groups:
        """The anchors; until matching begins, none of them."""
        anchors = server["prototypes"]
        return {"prototypes": {**anchors, "available": anchors["available"] & (s.round > self.warmup)}}
