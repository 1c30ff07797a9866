"""FedDyn: a linear and a proximal term make the clients' stationary points those of the global loss.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama, "Federated Learning Based on Dynamic Regularization",
ICLR 2021.

    paper                     here
    alpha                     alpha
    grad L_k(theta_k)         c.state["gradient"], g_k
    theta^{t-1}               c.received["model"], w
    the local loss (eq. 1)    loss - <g_k, w_k> + (alpha/2) ||w_k - w||^2: `correction` and the term prox(alpha)
    h                         server["h"]

After training g_k <- g_k - alpha (w_k - w). The server computes h <- h - (alpha/N) sum_{k in S} (w_k - w), N being all
clients, and w <- mean of the w_k - h / alpha. BatchNorm's buffers are averaged, without h.
The paper takes the plain mean of the w_k; FedSOL's code, and we, weight it by samples. That code also subtracts h from
buffers, which its networks do not have.
"""

from __future__ import annotations

from unskew.base import tree
from unskew.base.batch import Batch
from unskew.base.registry import param
from unskew.base.tree import Groups, Tree
from unskew.core.context import ClientContext, ServerContext
from unskew.core.method import Method, methods
from unskew.core.reducers import buffers, mean, mean_over_all_clients
from unskew.core.term import Term
from unskew.terms.prox import Prox


@methods.register("feddyn")
class FedDyn(Method):
    """Dynamic regularisation: each client's loss is tilted by what it learned before, and held near the model."""

    alpha: float = param(
        default=0.1, gt=0, doc="strength of both terms; the server divides by it", source="FedSOL's code"
    )

    reducers = {"delta": mean, "buffers": buffers, "moved": ("delta", mean_over_all_clients)}

    def own_terms(self) -> tuple[Term, ...]:
        """(alpha/2) ||w_k - w||^2."""
        return (Prox(mu=self.alpha),)

    def correction(self, c: ClientContext, params: Tree, batch: Batch) -> Tree:
        """-g_k, the gradient of the linear term."""
        return c.made["tilt"]

    def keep(self, c: ClientContext, params: Tree) -> Groups:
        """g_k <- g_k - alpha (w_k - w)."""
        moved = tree.select(c.sent["delta"], c.state["gradient"])
        return {**super().keep(c, params), "gradient": tree.add_scaled(c.state["gradient"], moved, -self.alpha)}

    def update(self, s: ServerContext, server: Groups, merged: Groups) -> Groups:
        """h <- h - (alpha/N) sum_k (w_k - w); w <- mean of the w_k - h / alpha."""
        h = tree.add_scaled(server["h"], merged["moved"], -self.alpha)
        delta = tree.add_scaled(merged["delta"], tree.select(h, merged["delta"]), -1 / self.alpha)
        return {**super().update(s, server, {**merged, "delta": delta}), "h": h}

    def init(self, s: ServerContext) -> Groups:
        """The initial model; h = 0."""
        server = super().init(s)
        return {**server, "h": tree.zeros_like(self.shared(s, server["model"]))}

    def init_client(self, c: ClientContext) -> Groups:
        """g_k = 0."""
        return {"gradient": tree.zeros_like(tree.select(c.received["model"], c.trainable))}

    def prepare(self, c: ClientContext) -> ClientContext:
        """Takes -g_k once for all steps of the visit."""
        return c.with_made(tilt=tree.scale(c.state["gradient"], -1.0))
