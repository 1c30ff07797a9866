"""FedAF: condensed data that agree with all clients' knowledge, and soft labels that teach the server's model.

Wang, Fu, Kanagavelu, Wei, Liu, Goh, "An Aggregation-Free Federated Learning for Tackling Data Heterogeneity",
CVPR 2024. No official code; the community code (tejarshaarigila/FedAF) departs from the paper and is not followed.

    paper              here
    V_k, V             mean logits per class with w: group `logits`; their mean over the holders of a class
    R_k, R             softmax(V_k / tau): group `soft`; their mean
    w' = gamma w + (1 - gamma) w~   `network`; w~ = c.fresh, new in each step, always from the received w
    u_{k,c}            made.logits[c], mean logits of S_c with w'
    L_DM               `squared_gap` of the mean features, in condensation.py
    L_DM + lambda_loc L_CDC         `matching`; L_CDC: `distance` of u and V
    L_CE + lambda_glob L_LGKM       `server_loss`

A round (Fig. 2):
    1. `survey`       each client sends V_k, the received model's mean logits of its classes
    2. `digest`       the server averages them to V (eq. 8); `brief` sends V
    3. `train`        each client moves its synthetic images S_k for 1000 steps along L_DM + lambda_loc L_CDC: in each,
                      a new `network` looks at them, `matching` compares class means (the loop: condensation.py)
    4. `upload`       S_k and R_k
    5. `update`       the server trains the model on the union of all S_k, by `server_loss` (eq. 13)

The paper leaves open how many projections (50, fresh in each step), tau (2), who is averaged where a class is missing
(its holders), and how the server's loss is taken on mini-batches: over the classes present. A part that is switched off
(lambda = 0, lgkm=off) sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from unskew.base import seeds, tree
from unskew.base.batch import Batch, Output
from unskew.base.naming import helper
from unskew.base.registry import param
from unskew.base.tree import Groups, Tree
from unskew.core.context import ClientContext, ServerContext
from unskew.core.jobs import Reply
from unskew.core.method import methods
from unskew.core.reducers import Reducer, Reducers
from unskew.methods.class_sums import sum_by_class
from unskew.methods.condensation import Condensing, class_means, union

# ------------------------------------------------------- what clients know of the classes: V_k and R_k

Missing = Literal["holders", "zeros"]
"""A class is averaged over the clients that hold it; or over all, those without it counting as zeros."""


def empty_table(num_classes: int) -> Tree:
    """A table in which no class has a row yet."""
    return {"rows": torch.zeros(num_classes, num_classes), "held": torch.zeros(num_classes, dtype=torch.bool)}


def mean_logits(c: ClientContext) -> Tree:
    """V_k: the received model's mean logits of each class over all its samples, and which classes there are."""
    if len(c.data) == 0:
        return empty_table(c.num_classes)
    model, buffers = c.received["model"], c.received["buffers"]
    sums = sum_by_class(c, lambda x: c.forward(model, x, "eval", buffers=buffers).logits)
    return {"rows": sums / c.counts.clamp(min=1).unsqueeze(1), "held": c.counts > 0}


def soft_labels(logits: Tree, tau: float) -> Tree:
    """R_k: softmax(v / tau) for each class there is; zeros for the others."""
    rows = (logits["rows"] / tau).softmax(1)
    return {**logits, "rows": torch.where(logits["held"].unsqueeze(1), rows, 0.0)}


class class_rows(Reducer):
    """Tables of the clients added up, with how many clients hold each class and how many there are."""

    def __init__(self, s: ServerContext) -> None:
        self._sum: Tree = {}

    def add(self, value: Tree, reply: Reply) -> None:
        """Takes in one client's table."""
        new = {"rows": value["rows"], "holders": value["held"].to(torch.int64), "clients": torch.ones(())}
        self._sum = {name: self._sum[name] + part for name, part in new.items()} if self._sum else new

    def result(self) -> Tree:
        """The sums."""
        return self._sum


def average(summed: Tree, missing: Missing) -> Tree:
    """V (eq. 8) and R (eq. 12): the mean of each class's row; a class that nobody holds has none."""
    by = summed["holders"].clamp(min=1).unsqueeze(1) if missing == "holders" else summed["clients"].clamp(min=1)
    return {"rows": summed["rows"] / by, "held": summed["holders"] > 0}


# ------------------------------------------------------------------- distances of mean logits, for L_CDC


def draw_directions(count: int, size: int, rng: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
    """[L, C]: unit vectors, uniform on the sphere."""
    drawn = torch.randn(count, size, generator=rng, dtype=dtype)
    length: Tensor = torch.linalg.vector_norm(drawn, dim=1, keepdim=True)
    return drawn / length.clamp(min=1e-12)


def sliced_distance(u: Tensor, v: Tensor, theta: Tensor, order: int) -> Tensor:
    """[C]: for each row the mean over directions of |theta . (u - v)|^p; a row is one point, so there is no transport.

    For p = 2 its expectation is ||u - v||^2 / C.
    """
    along = (u - v) @ theta.T
    return (along.square() if order == 2 else along.abs()).mean(1)


def sorted_distance(u: Tensor, v: Tensor) -> Tensor:
    """[C]: for each row the mean of |sort(u) - sort(v)|: its entries taken as samples of a distribution."""
    return (u.sort(1).values - v.sort(1).values).abs().mean(1)


# ------------------------------------------------------------------------------------ the server's L_LGKM


def lgkm_loss(logits: Tensor, y: Tensor, soft: Tree, tau: float) -> Tensor:
    """Mean over the classes present of (KL(R_c || T_c) + KL(T_c || R_c)) / 2, T_c = softmax(mean logits of c / tau).

    Below the smallest normal number an entry of R counts as that number: its logarithm must be finite.
    """
    num_classes = len(soft["held"])
    present = (y.unsqueeze(-1) == torch.arange(num_classes, device=y.device)).any(0) & soft["held"]
    log_t = F.log_softmax(class_means(logits, y, num_classes) / tau, 1)
    r = soft["rows"].clamp(min=torch.finfo(log_t.dtype).tiny)
    # sum of R (log R - log T) + T (log T - log R)
    both = ((r - log_t.exp()) * (r.log() - log_t)).sum(1) / 2
    return torch.where(present, both, 0.0).sum() / present.sum().clamp(min=1)


@methods.register("fedaf")
class FedAF(Condensing):
    """Aggregation-free: condensed data kept near the clients' common logits, a server taught by their soft labels."""

    lambda_loc: float = param(default=1e-4, ge=0, doc="strength of CDC; 0: without", source="paper, CIFAR-10")
    lambda_glob: float = param(default=0.01, ge=0, doc="strength of LGKM; 0: without", source="paper, CIFAR-10")
    gamma: float = param(default=0.9, gt=0, le=1, doc="share of w in each step's network; 1: w alone", source="paper")
    tau: float = param(
        default=2.0, gt=0, doc="temperature of the soft labels", source="our choice; the paper gives none"
    )
    distance: Literal["sliced", "sliced_p1", "sorted"] = param(
        default="sliced",
        doc="CDC: squared or absolute on random lines, or of sorted entries",
        source="our choice; the paper leaves it open",
    )
    projections: int = param(
        default=50, ge=1, doc="random lines in each step", source="our choice; the paper leaves it open"
    )
    lgkm: Literal["batch", "full", "off"] = param(
        default="batch",
        doc="LGKM on each mini-batch, on all condensed data, or not at all",
        source="our choice; eq. 13 is on all data",
    )
    missing: Missing = param(
        default="holders",
        doc="V and R: mean over a class's holders, or zeros for the others",
        source="our choice: zeros would shrink the rest",
    )
    exchange: Literal["in_round", "stale"] = param(
        default="in_round", doc="V of this round, or of the one before (none at first)", source="paper, Sec. 4"
    )

    reducers = {"data": union, "logits": class_rows, "soft": class_rows}

    # --------------------------------------------------------------------- a round, in its order

    def survey(self, c: ClientContext) -> Groups:
        """V_k."""
        return {"logits": mean_logits(c)}

    def digest(self, s: ServerContext, server: Groups, surveyed: Groups) -> Groups:
        """V (eq. 8)."""
        return {**server, "logits": average(surveyed["logits"], self.missing)}

    def brief(self, s: ServerContext, server: Groups, client: int) -> Groups:
        """V."""
        return {"logits": server["logits"]}

    def network(self, c: ClientContext, params: Tree) -> Tree:
        """w' = gamma w + (1 - gamma) w~, from the received w in every step."""
        if self.gamma == 1:
            return params
        fresh = c.fresh(seeds.derive(c.seed, f"condense/fresh/{c.step}", c.round, c.client))
        return c.add_fixed(tree.add_scaled(tree.scale(params, self.gamma), fresh, 1 - self.gamma))

    def matching(self, c: ClientContext, real: Output, made: Output) -> Tensor:
        """L_DM + lambda_loc L_CDC."""
        loss = super().matching(c, real, made)
        if self.lambda_loc == 0:
            return loss
        known = c.message["logits"]
        return loss + self.lambda_loc * self.cdc_loss(c, made.logits, known)

    @helper
    def cdc_loss(self, c: ClientContext, u: Tensor, known: Tree) -> Tensor:
        """L_CDC: F(u_c, v_c), summed over the classes that the client condenses and that have a v_c."""
        held = known["held"] & self.condensed(c)
        u, v = u[held], known["rows"][held]
        if self.distance == "sorted":
            return sorted_distance(u, v).sum()
        purpose = f"condense/directions/{c.step}"
        theta = c.draw(purpose, lambda rng: draw_directions(self.projections, c.num_classes, rng, u.dtype))
        return sliced_distance(u, v, theta, 1 if self.distance == "sliced_p1" else 2).sum()

    def upload(self, c: ClientContext, params: Tree) -> Groups:
        """S_k and R_k; V_k too, if the survey has not brought it."""
        groups = super().upload(c, params)
        own = mean_logits(c) if self.tables() else {}  # again: a survey leaves nothing at the client
        if self.lambda_loc and not self._surveys:
            groups["logits"] = own
        return {**groups, "soft": soft_labels(own, self.tau)} if self._teaches else groups

    def update(self, s: ServerContext, server: Groups, merged: Groups) -> Groups:
        """The server's training; V for the next round, if that is when it is used."""
        done = super().update(s, server, merged)
        return {**done, "logits": average(merged["logits"], self.missing)} if merged["logits"] else done

    def server_loss(self, s: ServerContext, merged: Groups) -> Callable[[Tree, Batch], Tensor]:
        """L_CE + lambda_glob L_LGKM, R constant."""
        if not self._teaches:
            return super().server_loss(s, merged)
        r, whole = average(merged["soft"], self.missing), merged["data"]

        def loss(params: Tree, batch: Batch) -> Tensor:
            logits = s.forward(params, batch.x).logits
            seen, y = logits, batch.y
            if self.lgkm == "full":  # eq. 13 to the letter; running statistics still come from mini-batches alone
                seen, y = s.forward(params, whole["x"], "batch").logits, whole["y"]
            return batch.cross_entropy(logits) + self.lambda_glob * lgkm_loss(seen, y, r, self.tau)

        return loss

    # --------------------------------------------------------------- state, messages, switches

    def init(self, s: ServerContext) -> Groups:
        """The initial model; no mean logits yet."""
        return {**super().init(s), "logits": empty_table(s.num_classes)}

    def download(self, s: ServerContext, server: Groups, client: int) -> Groups:
        """The model; with it V of the round before, if that is what clients use."""
        late = {"logits": server["logits"]} if self.lambda_loc and not self._surveys else {}
        return {**super().download(s, server, client), **late}

    @property
    def survey_reducers(self) -> Reducers:  # type: ignore[override]
        """V_k added up, if it is exchanged within the round."""
        return {"logits": class_rows} if self._surveys else {}

    def tables(self) -> int:
        """V_k and R_k, as far as they are in use."""
        return int(self.lambda_loc > 0) + int(self._teaches)

    @property
    def _surveys(self) -> bool:
        return self.lambda_loc > 0 and self.exchange == "in_round"

    @property
    def _teaches(self) -> bool:
        return self.lambda_glob > 0 and self.lgkm != "off"
