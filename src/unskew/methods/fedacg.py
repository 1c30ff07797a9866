"""FedACG: the server sends its model ahead along its momentum, and clients stay near to that point.

Kim, Kim, Han, "Communication-Efficient Federated Learning with Accelerated Client Gradient", CVPR 2024.

    paper                 here
    lambda                lam
    beta                  beta
    m                     server["momentum"]
    theta + lambda m      c.message["model"], what clients receive and start from
    theta                 server["model"]: what is tested and released

Clients add beta ||w_k - (w + lambda m)||^2 to their loss (without 1/2, as in the official code). The server computes
m <- lambda m + mean of what clients moved, and w <- mean of the w_k, which is w + m with the new m. BatchNorm's buffers
are averaged without momentum. The official code takes the plain mean of the clients (`weights=uniform`); the default is
FedAvg's weights, which are the same where clients hold equally much.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from unskew.base import tree
from unskew.base.registry import param
from unskew.base.tree import Groups, Tree
from unskew.core.context import ClientContext, ServerContext
from unskew.core.method import Method, methods
from unskew.core.term import Term
from unskew.terms.prox import Prox


@methods.register("fedacg")
class FedACG(Method):
    """Server momentum that clients already start from, with a proximal term around that start."""

    lam: float = param(
        default=0.85, ge=0, lt=1, doc="momentum, and how far ahead clients start", source="official code"
    )
    beta: float = param(default=0.001, ge=0, doc="strength of beta ||w_k - sent||^2", source="official code")
    weights: Literal["samples", "uniform"] = param(
        default="samples", doc="clients count by their samples, or all alike", source="FedAvg; official code: uniform"
    )

    def download(self, s: ServerContext, server: Groups, client: int) -> Groups:
        """w + lambda m; a test is of w."""
        message = super().download(s, server, client)
        if s.testing:
            return message
        ahead = tree.add_scaled(message["model"], server["momentum"], self.lam)
        return {**message, "model": {**message["model"], **ahead}}

    def own_terms(self) -> tuple[Term, ...]:
        """beta ||w_k - sent||^2."""
        return (Prox(mu=2 * self.beta),)

    def weight(self, c: ClientContext, params: Tree) -> Tensor:
        """The client's samples, or 1."""
        return c.num_samples if self.weights == "samples" else torch.ones_like(c.num_samples)

    def update(self, s: ServerContext, server: Groups, merged: Groups) -> Groups:
        """m <- lambda m + mean of w_k - sent; w <- mean of w_k = w + m."""
        momentum = tree.add_scaled(merged["delta"], server["momentum"], self.lam)
        moved = super().update(s, server, {**merged, "delta": momentum})
        return {**moved, "momentum": {**server["momentum"], **momentum}}

    def init(self, s: ServerContext) -> Groups:
        """The initial model; m = 0."""
        server = super().init(s)
        return {**server, "momentum": tree.zeros_like(self.shared(s, server["model"]))}
