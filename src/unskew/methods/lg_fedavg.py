"""LG-FedAvg: the body never leaves the client, the head is averaged, both are trained together.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency, "Think Locally, Act Globally: Federated Learning with
Local and Global Representations", 2020.

    paper              here
    l_m, theta_m^l     c.state["personal"], the body: client m's local representation
    g, theta^g         c.message["model"], the head: the global model on top of it

FedPer turned round: each client learns features of its own, and all share how features become labels. BatchNorm's
statistics belong to the body and stay with it. The authors' code, and FedBABU's, start from a model that FedAvg has
trained; here all start from the initial one, as FedAS's comparison needs it. The paper's ensemble for clients that
bring no labels, and its adversarial terms for fairness, are left out.
"""

from __future__ import annotations

from unskew.base.tree import Groups
from unskew.core.context import ServerContext
from unskew.core.method import Method, methods


@methods.register("lg_fedavg")
class LGFedAvg(Method):
    """Head averaged, body personal; all parameters are trained together."""

    personal = ("body.*",)
    output = "personal"
    buffer_policy = "local"

    def init(self, s: ServerContext) -> Groups:
        """The initial model; refuses a network that leaves no head to share."""
        self.division.check(s)
        return super().init(s)
