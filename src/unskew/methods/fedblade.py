"""FedBlade: FedETF whose features are decorrelated and aligned, with the projector, to global class prototypes.

"Stabilizing Heterogeneous Federated Learning via Feature Decorrelation and Bilateral Alignment", OpenReview xzuR1JUNcK;
no official code is public.

    paper                      here
    L_LD (eq. 11)              terms/lddecorr.py; it adds the paper's 1e-4 to the diagonal of K
    L_sup, Psi, V, beta (12)   `criterion` of fedetf.py; logits: ETFHead in models/etf.py; head.projector.*,
                               c.constants["head.vectors"], head.scale
    p_k^c (eq. 13)             `prototype_sums` in prototypes.py: n_k^c p_k^c and n_k^c, added up by `total`
    p-bar^c (eq. 14)           `global_prototypes` there: server["prototypes"]["means"], ["available"]
    L_PA, L_FA (eq. 15, 16)    terms/bilateral_alignment.py
    L (eq. 17)                 `own_terms`, added to `criterion`; its beta, a letter that eq. 12 has too, is lambda_ld
    gamma, tau                 gamma, tau

Where the paper is silent: features are the body's output; there is no alignment until
prototypes exist; prototypes are taken after training, in evaluation mode, from samples that are not augmented; a class
that nobody held in a round keeps its prototype; eq. 15 is a sum over classes, as written.
"""

from __future__ import annotations

from typing import Literal

from unskew.base.naming import helper
from unskew.base.registry import param
from unskew.base.tree import Groups, Tree
from unskew.core.context import ClientContext, Outcome, ServerContext
from unskew.core.method import methods
from unskew.core.reducers import Reducers, total
from unskew.core.term import Term
from unskew.methods.feature_size import count_features
from unskew.methods.fedetf import FedETF
from unskew.methods.prototypes import global_prototypes, no_prototypes, prototype_sums
from unskew.terms.bilateral_alignment import FeatureAlignment, ProjectorAlignment
from unskew.terms.feddecorr import Decorrelate
from unskew.terms.lddecorr import LDDecorr, warn_of_width


@methods.register("fedblade")
class FedBlade(FedETF):
    """FedETF with log-determinant decorrelation and alignment of projector and features to class prototypes."""

    lambda_ld: float = param(default=0.005, ge=0, doc="strength of LDDecorr", source="paper, Fig. 6")
    gamma: float = param(default=1.0, ge=0, doc="strength of both alignments", source="paper, Fig. 7")
    tau: float = param(default=0.1, gt=0, doc="temperature of the feature alignment", source="paper, Fig. 8")
    decorrelation: Literal["lddecorr", "feddecorr", "none"] = param(
        default="lddecorr", doc="which decorrelation is used", source="paper; Fig. 3 swaps it"
    )
    decorr_beta: float = param(default=0.1, ge=0, doc="strength of FedDecorr's, if chosen", source="FedDecorr's code")
    pa: bool = param(default=True, doc="align the projector", source="paper; the ablation w/o PA")
    fa: bool = param(default=True, doc="align the features", source="paper; the ablation w/o FA")
    distribution_factor: bool = param(
        default=True, doc="class counts in the feature alignment", source="paper; the ablation w/o DF"
    )
    jitter: float = param(
        default=1e-4, gt=0, le=0.01, doc="added to the diagonal in LDDecorr", source="paper, Sec. 4.1"
    )
    var_eps: float = param(default=1e-8, gt=0, doc="added to the features' variances", source="FedDecorr's code")

    stacked_tolerance = 0.1  # alignment by cosines over tau is steep; its decorrelation may promise less

    @property
    @helper
    def aligns(self) -> bool:
        """Whether prototypes are needed at all."""
        return self.gamma > 0 and (self.pa or self.fa)

    @property
    def reducers(self) -> Reducers:  # type: ignore[override]
        """Prototypes are merged by their sums and counts."""
        return {**super().reducers, "prototypes": total} if self.aligns else super().reducers

    @property
    def offers(self) -> tuple[str, ...]:  # type: ignore[override]
        """Also class prototypes, if they are exchanged."""
        return (*super().offers, "prototypes") if self.aligns else super().offers

    def own_terms(self) -> tuple[Term, ...]:
        """lambda_ld L_LD + gamma (L_PA + L_FA), eq. 17."""
        terms: list[Term] = []
        if self.decorrelation == "lddecorr" and self.lambda_ld > 0:
            terms.append(LDDecorr(weight=self.lambda_ld, jitter=self.jitter, var_eps=self.var_eps))
        if self.decorrelation == "feddecorr" and self.decorr_beta > 0:
            terms.append(Decorrelate(weight=self.decorr_beta, var_eps=self.var_eps))
        if self.aligns and self.pa:
            terms.append(ProjectorAlignment(weight=self.gamma))
        if self.aligns and self.fa:
            terms.append(
                FeatureAlignment(weight=self.gamma, tau=self.tau, distribution_factor=self.distribution_factor)
            )
        return tuple(terms)

    def init(self, s: ServerContext) -> Groups:
        """The initial model and no prototypes; says where LDDecorr is nearly singular."""
        server = super().init(s)
        if self.decorrelation == "lddecorr" and self.lambda_ld > 0:
            warn_of_width(self.name, count_features(server["model"]), s.settings.batch)
        if not self.aligns:
            return server
        return {**server, "prototypes": no_prototypes(s)}

    def download(self, s: ServerContext, server: Groups, client: int) -> Groups:
        """The model and the prototypes."""
        message = super().download(s, server, client)
        return {**message, "prototypes": server["prototypes"]} if self.aligns else message

    def start(self, c: ClientContext) -> Tree | Outcome:
        """The received model; notes the bytes of its own prototypes without the empty rows that its reply has."""
        if self.aligns:
            size = c.message["prototypes"]["means"].shape[1]
            c.diagnostics.note("prototype_bytes", 4 * (size * (c.counts > 0).sum() + c.num_classes))
        return super().start(c)

    def upload(self, c: ClientContext, params: Tree) -> Groups:
        """The model's difference and the sums of the trained model's features by class (eq. 13)."""
        reply = super().upload(c, params)
        if not self.aligns:
            return reply
        return {**reply, "prototypes": prototype_sums(c, params)}

    def update(self, s: ServerContext, server: Groups, merged: Groups) -> Groups:
        """The mean model, and eq. 14; a class that nobody held keeps its prototype."""
        after = super().update(s, server, merged)
        if not self.aligns:
            return after
        now = global_prototypes(server["prototypes"], merged["prototypes"])
        s.record["prototypes"] = int(now["available"].sum())  # for the bytes of a message without empty rows
        return {**after, "prototypes": now}
