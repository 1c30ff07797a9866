"""MOON: local features are drawn to the received model's and pushed from those of the client's previous model.

Li, He, Song, "Model-Contrastive Federated Learning", CVPR 2021.

    paper                  here
    mu, tau                mu, tau
    z, z_glob, z_prev      out.features, c.teacher(batch).features, c.predecessor(batch).features
    l_con (eq. 3)          the term moon(mu, tau), terms/moon.py
    projection head        projection: its output's dimensions, 256 in the paper; 0: none

The paper puts a projection head of two layers between body and classifier. The codes of FedSOL and others that compare
with it leave it out, and contrast the features themselves: the default, so that methods share a network. Both fixed
models look at samples in evaluation mode. A client's previous model is at first the initial one.
"""

from __future__ import annotations

from unskew.base.registry import param
from unskew.core.method import Method, methods
from unskew.core.term import Term
from unskew.models.base import Model
from unskew.models.projection import attach_projection
from unskew.terms.moon import ModelContrast


@methods.register("moon")
class Moon(Method):
    """FedAvg with a contrast of the received and the client's previous model added to the local loss."""

    mu: float = param(default=1.0, ge=0, doc="strength of the contrast", source="FedAF's experiments; FedSOL's: 0.1")
    tau: float = param(default=0.5, gt=0, doc="temperature of the cosines", source="paper, Sec. 4.1")
    projection: int = param(
        default=0, ge=0, doc="dimensions of a projection head of two layers before the classifier; 0: none",
        source="FedSOL's code; paper, Sec. 4.1: 256",
    )  # fmt: skip

    def own_terms(self) -> tuple[Term, ...]:
        """mu l_con (eq. 3), added to cross-entropy (eq. 4)."""
        return (ModelContrast(mu=self.mu, tau=self.tau),)

    def remodel(self, model: Model, num_classes: int) -> Model:
        """The network with the projection head, if it is wanted: its output is then the features."""
        return attach_projection(model, num_classes, self.projection) if self.projection else model
