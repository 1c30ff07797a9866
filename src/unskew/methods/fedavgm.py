"""FedAvgM: momentum on the server's step.

Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification", 2019.

    paper          here
    beta           beta
    v              server["velocity"]
    Delta w        merged["delta"], here with the sign of a step: sum_k p_k w_k - w

The server computes v <- beta v + Delta and w <- w + v; BatchNorm's buffers are averaged without momentum. The codes
differ: FedACG's repository has this rule (with 0.4), FedDecorr's takes v <- beta v + (1 - beta) Delta (`damped`).
"""

from __future__ import annotations

from unskew.base import tree
from unskew.base.registry import param
from unskew.base.tree import Groups
from unskew.core.context import ServerContext
from unskew.core.method import Method, methods


@methods.register("fedavgm")
class FedAvgM(Method):
    """FedAvg whose server moves along a running sum of the mean differences."""

    beta: float = param(
        default=0.9, ge=0, lt=1, doc="momentum of the server", source="our choice; FedACG's code uses 0.4"
    )
    damped: bool = param(
        default=False,
        doc="Delta counts with 1 - beta, so that v is a running mean",
        source="paper; FedDecorr: true",
    )

    def update(self, s: ServerContext, server: Groups, merged: Groups) -> Groups:
        """v <- beta v + Delta; w <- w + v."""
        delta = tree.scale(merged["delta"], 1 - self.beta) if self.damped else merged["delta"]
        velocity = tree.add_scaled(delta, server["velocity"], self.beta)
        moved = super().update(s, server, {**merged, "delta": velocity})
        return {**moved, "velocity": {**server["velocity"], **velocity}}

    def init(self, s: ServerContext) -> Groups:
        """The initial model and a velocity of zeros."""
        server = super().init(s)
        return {**server, "velocity": tree.zeros_like(self.shared(s, server["model"]))}
