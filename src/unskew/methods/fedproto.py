"""FedProto: features are held near global class prototypes, the mean features that clients exchange.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang, "FedProto: Federated Prototype Learning across Heterogeneous Clients",
AAAI 2022.

    paper                     here
    lambda                    lam
    C_i^(j), the local ones   the client's mean features by class, after its training
    C-bar^(j)                 server["prototypes"]: the plain mean over the clients that hold the class
    L_R                       the term proto(weight=lam), terms/proto.py: mean squared distance to the own prototype

In the paper (`form=original`) nothing but prototypes travels: every client keeps a model of its own, and predicts the
class of the nearest global prototype. FedBlade reports a global accuracy, which only averaged models can have: FedAvg
with the prototypes' term (`form=averaged`, the default). FedAS compares with the original. PFLlib collects features
during the last training pass; we do so after it, in evaluation mode.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from unskew.base.registry import param
from unskew.base.tree import Groups, Tree
from unskew.core.context import BufferPolicy, ClientContext, ServerContext
from unskew.core.method import Method, methods
from unskew.core.reducers import Reducers, total
from unskew.core.term import Term
from unskew.methods.prototypes import global_prototypes, no_prototypes, prototype_sums
from unskew.terms.bilateral_alignment import received_prototypes
from unskew.terms.proto import PrototypeDistance


@methods.register("fedproto")
class FedProto(Method):
    """Features near global class prototypes; models are averaged, or (`original`) never leave their clients."""

    lam: float = param(default=1.0, ge=0, doc="strength of the prototypes' term", source="FedBlade's experiments")
    form: Literal["averaged", "original"] = param(
        default="averaged", doc="models are averaged, or stay with their clients and only prototypes travel",
        source="FedBlade's experiments; paper and FedAS's experiments: original",
    )  # fmt: skip

    offers = ("prototypes",)

    def own_terms(self) -> tuple[Term, ...]:
        """lambda L_R, added to cross-entropy."""
        return (PrototypeDistance(weight=self.lam),)

    # ------------------------------------------------------------------------------ who sends what

    def init(self, s: ServerContext) -> Groups:
        """The initial model and no prototypes."""
        return {**super().init(s), "prototypes": no_prototypes(s)}

    def download(self, s: ServerContext, server: Groups, client: int) -> Groups:
        """The prototypes, and what is shared of the model."""
        return {**super().download(s, server, client), "prototypes": server["prototypes"]}

    def upload(self, c: ClientContext, params: Tree) -> Groups:
        """The client's prototypes, each counted once, and how the model moved if it is averaged."""
        own = prototype_sums(c, params)
        counts = own["counts"]
        c.diagnostics.note("prototype_bytes", 4 * own["sums"].shape[1] * (counts > 0).sum())
        mine = {"sums": own["sums"] / counts.clamp(min=1).unsqueeze(1), "counts": counts.clamp(max=1)}
        return {**({} if self._stays else super().upload(c, params)), "prototypes": mine}

    def update(self, s: ServerContext, server: Groups, merged: Groups) -> Groups:
        """Plain means of the clients' prototypes; a class that nobody held keeps its own."""
        after = server if self._stays else super().update(s, server, merged)
        now = global_prototypes(server["prototypes"], merged["prototypes"])
        s.record["prototypes"] = int(now["available"].sum())
        return {**after, "prototypes": now}

    # --------------------------------------------------------------------------- the original form

    def predict(self, c: ClientContext, params: Tree, x: Tensor) -> Tensor:
        """Logits; in the original form minus the squared distances to the prototypes, once there are any."""
        if not self._stays:
            return super().predict(c, params, x)
        out = c.forward(params, x, mode="eval")
        z, (means, available) = out.features, received_prototypes(c)
        distances = z.square().sum(1, keepdim=True) - 2 * z @ means.T + means.square().sum(1)
        # a class without prototype is farther than all others; not infinitely, for the sake of the loss
        farthest = torch.where(available, distances, 0.0).amax(1, keepdim=True) + 1
        return torch.where(available.any(), -torch.where(available, distances, farthest), out.logits)

    @property
    def _stays(self) -> bool:
        return self.form == "original"

    @property
    def gives_logits(self) -> bool:  # type: ignore[override]
        """Distances to prototypes are none."""
        return not self._stays

    @property
    def personal(self) -> tuple[str, ...]:  # type: ignore[override]
        """Nothing, or the whole model."""
        return ("*",) if self._stays else ()

    @property
    def output(self) -> Literal["global", "personal", "both", "tuned"]:  # type: ignore[override]
        """The mean model, or every client's own."""
        return "personal" if self._stays else "global"

    @property
    def buffer_policy(self) -> BufferPolicy | None:  # type: ignore[override]
        """BatchNorm's statistics stay where the model stays."""
        return "local" if self._stays else None

    @property
    def reducers(self) -> Reducers:  # type: ignore[override]
        """Prototypes are added up; models, if they travel, averaged."""
        return {"prototypes": total} if self._stays else {**super().reducers, "prototypes": total}
