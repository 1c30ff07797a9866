"""FedAF: condensed data that agree with all clients' knowledge, and soft labels that teach the server's model.

Wang, Fu, Kanagavelu, Wei, Liu, Goh, "An Aggregation-Free Federated Learning for Tackling Data Heterogeneity",
CVPR 2024. No official code; the community code (tejarshaarigila/FedAF) departs from the paper and is not followed.

    paper              here
    V_k, V             mean logits per class with w: group `logits`; their mean over the holders of a class
    R_k, R             softmax(V_k / tau): group `soft`; their mean
    w' = gamma w + (1 - gamma) w~   `network`; w~ = c.fresh, new in each step, always from the received w (E6)
    u_{k,c}            made.logits[c], mean logits of S_c with w'
    L_DM + lambda_loc L_CDC         `matching`; L_CDC: `distance` of u and V
    L_CE + lambda_glob L_LGKM       `server_loss`

The paper leaves open how many projections (50, fresh in each step), tau (2), who is averaged where a class is missing
(its holders), and how the server's loss is taken on mini-batches: over the classes present. A part that is switched off
(lambda = 0, lgkm=off) sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from unskew.base import seeds, tree
from unskew.base.batch import Batch, Output
from unskew.base.registry import param
from unskew.base.tree import Groups, Tree
from unskew.core.context import ClientContext, ServerContext
from unskew.core.method import methods
from unskew.core.reducers import Reducers
from unskew.methods import condense, sliced, soft
from unskew.methods.condensing import Condensing


@methods.register("fedaf")
class FedAF(Condensing):
    """Aggregation-free: condensed data kept near the clients' common logits, a server taught by their soft labels."""

    lambda_loc: float = param(default=1e-4, ge=0, doc="strength of CDC; 0: without", source="paper, CIFAR-10")
    lambda_glob: float = param(default=0.01, ge=0, doc="strength of LGKM; 0: without", source="paper, CIFAR-10")
    gamma: float = param(default=0.9, gt=0, le=1, doc="share of w in each step's network; 1: w alone", source="paper")
    tau: float = param(default=2.0, gt=0, doc="temperature of the soft labels", source="our choice (E5)")
    distance: Literal["sliced", "sliced_p1", "sorted"] = param(
        default="sliced", doc="CDC: squared or absolute on random lines, or of sorted entries", source="our choice (E3)"
    )
    projections: int = param(default=50, ge=1, doc="random lines in each step", source="our choice (E3)")
    lgkm: Literal["batch", "full", "off"] = param(
        default="batch", doc="LGKM on each mini-batch, on all condensed data, or not at all", source="our choice (E4)"
    )
    missing: soft.Missing = param(
        default="holders", doc="V and R: mean over a class's holders, or zeros for the others", source="our choice (E1)"
    )
    exchange: Literal["in_round", "stale"] = param(
        default="in_round", doc="V of this round, or of the one before (none at first)", source="paper, Sec. 4 (E2)"
    )

    reducers = {"data": condense.union, "logits": soft.class_rows, "soft": soft.class_rows}

    @property
    def _surveys(self) -> bool:
        return self.lambda_loc > 0 and self.exchange == "in_round"

    @property
    def _teaches(self) -> bool:
        return self.lambda_glob > 0 and self.lgkm != "off"

    @property
    def survey_reducers(self) -> Reducers:  # type: ignore[override]
        """V_k added up, if it is exchanged within the round."""
        return {"logits": soft.class_rows} if self._surveys else {}

    def tables(self) -> int:
        """V_k and R_k, as far as they are in use."""
        return int(self.lambda_loc > 0) + int(self._teaches)

    def init(self, s: ServerContext) -> Groups:
        """The initial model; no mean logits yet."""
        return {**super().init(s), "logits": soft.nothing_known(s.num_classes)}

    def download(self, s: ServerContext, server: Groups, client: int) -> Groups:
        """The model; with it V of the round before, if that is what clients use."""
        late = {"logits": server["logits"]} if self.lambda_loc and not self._surveys else {}
        return {**super().download(s, server, client), **late}

    def survey(self, c: ClientContext) -> Groups:
        """V_k."""
        return {"logits": soft.mean_logits(c)}

    def digest(self, s: ServerContext, server: Groups, surveyed: Groups) -> Groups:
        """V (eq. 8)."""
        return {**server, "logits": soft.averaged(surveyed["logits"], self.missing)}

    def brief(self, s: ServerContext, server: Groups, client: int) -> Groups:
        """V."""
        return {"logits": server["logits"]}

    def network(self, c: ClientContext, params: Tree) -> Tree:
        """w' = gamma w + (1 - gamma) w~, from the received w in every step."""
        if self.gamma == 1:
            return params
        fresh = c.fresh(seeds.derive(c.seed, f"condense/fresh/{c.diagnostics.steps}", c.round, c.client))
        return tree.add_scaled(tree.scale(params, self.gamma), fresh, 1 - self.gamma)

    def matching(self, c: ClientContext, real: Output, made: Output) -> Tensor:
        """L_DM + lambda_loc L_CDC."""
        loss = super().matching(c, real, made)
        if self.lambda_loc == 0:
            return loss
        known = c.message["logits"]
        return loss + self.lambda_loc * self.cdc(c, made.logits, known)

    def cdc(self, c: ClientContext, u: Tensor, known: Tree) -> Tensor:
        """L_CDC: F(u_c, v_c), summed over the classes that the client holds and that have a v_c."""
        held = known["held"] & (c.counts > 0)
        u, v = u[held], known["rows"][held]
        if self.distance == "sorted":
            return sliced.sorted_entries(u, v).sum()
        purpose = f"condense/directions/{c.diagnostics.steps}"
        theta = c.draw(purpose, lambda rng: sliced.directions(self.projections, c.num_classes, rng, u.dtype))
        return sliced.sliced(u, v, theta, 1 if self.distance == "sliced_p1" else 2).sum()

    def upload(self, c: ClientContext, params: Tree) -> Groups:
        """S_k and R_k; V_k too, if the survey has not brought it."""
        groups = super().upload(c, params)
        own = soft.mean_logits(c) if self.tables() else {}
        if self.lambda_loc and not self._surveys:
            groups["logits"] = own
        return {**groups, "soft": soft.soft_labels(own, self.tau)} if self._teaches else groups

    def server_loss(self, s: ServerContext, merged: Groups) -> Callable[[Tree, Batch], Tensor]:
        """L_CE + lambda_glob L_LGKM, R constant."""
        if not self._teaches:
            return super().server_loss(s, merged)
        r, whole = soft.averaged(merged["soft"], self.missing), merged["data"]

        def loss(params: Tree, batch: Batch) -> Tensor:
            logits = s.forward(params, batch.x).logits
            seen, y = logits, batch.y
            if self.lgkm == "full":  # eq. 13 to the letter; running statistics still come from mini-batches alone
                seen, y = s.forward(params, whole["x"], "batch").logits, whole["y"]
            return batch.cross_entropy(logits) + self.lambda_glob * soft.lgkm(seen, y, r, self.tau)

        return loss

    def update(self, s: ServerContext, server: Groups, merged: Groups) -> Groups:
        """The server's training; V for the next round, if that is when it is used."""
        done = super().update(s, server, merged)
        return {**done, "logits": soft.averaged(merged["logits"], self.missing)} if merged["logits"] else done
