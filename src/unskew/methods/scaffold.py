"""SCAFFOLD: control variates on both sides correct each local step for the client's drift.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020.

    paper          here
    x, y_i         c.message["model"], params
    c, c_i         c.message["control"], c.state["control"]
    K eta_l        the divisor of the new control (option II)
    eta_g          server_lr

With momentum m, K plain steps move the model as far as K' = (K - m (1 - m^K) / (1 - m)) / (1 - m) steps of size
eta: FedSOL's code divides by K', the paper (which has no momentum) by K. Default: `momentum`, equal to K at m = 0.
With Nesterov's momentum K' is what its steps sum up to. A control is a mean of gradients because steps are sums of
them: with Adam's or clipped steps it would not be one, and both are refused.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from unskew.base import tree
from unskew.base.batch import Batch
from unskew.base.registry import param
from unskew.base.tree import Groups, Tree
from unskew.core.context import ClientContext, ServerContext
from unskew.core.method import Method, methods
from unskew.core.reducers import buffers, mean, mean_over_all_clients
from unskew.methods.momentum_steps import count_plain_steps


@methods.register("scaffold")
class Scaffold(Method):
    """Corrects local gradients by the difference of the server's and the client's control variate."""

    server_lr: float = param(
        default=1.0, gt=0, doc="step of the server along the mean difference", source="paper, Sec. 7"
    )
    divisor: Literal["momentum", "plain"] = param(
        default="momentum",
        doc="steps counted in a new control: corrected for momentum, or as taken",
        source="FedSOL's code",
    )

    reducers = {"delta": mean, "buffers": buffers, "control": mean_over_all_clients}
    refuses = {
        "local.optimiser": "its control is what SGD's steps moved, divided by their number and rate (option II)",
        "local.clip": "its control is the mean of the gradients behind the steps, which clipped steps do not give",
    }

    def init(self, s: ServerContext) -> Groups:
        """The initial model and a control of zeros."""
        server = super().init(s)
        return {**server, "control": tree.zeros_like(tree.select(server["model"], s.trainable))}

    def init_client(self, c: ClientContext) -> Groups:
        """A control of zeros."""
        return {"control": tree.zeros_like(c.message["control"])}

    def download(self, s: ServerContext, server: Groups, client: int) -> Groups:
        """The model and the server's control."""
        return {**super().download(s, server, client), "control": server["control"]}

    def prepare(self, c: ClientContext) -> ClientContext:
        """Takes c - c_i once for all steps of the visit."""
        return c.with_made(correction=tree.sub(c.message["control"], c.state["control"]))

    def correction(self, c: ClientContext, params: Tree, batch: Batch) -> Tree:
        """c - c_i, added to every local gradient: g - c_i + c (alg. 1, line 10)."""
        return c.made["correction"]

    def upload(self, c: ClientContext, params: Tree) -> Groups:
        """The model's and the control's difference."""
        return {**super().upload(c, params), "control": self._change(c, params)}

    def keep(self, c: ClientContext, params: Tree) -> Groups:
        """The new control: it changes by what was sent."""
        return {**super().keep(c, params), "control": tree.add(c.state["control"], c.sent["control"])}

    def update(self, s: ServerContext, server: Groups, merged: Groups) -> Groups:
        """Model and control move by their means (the control's over all clients)."""
        step = {**merged, "delta": tree.scale(merged["delta"], self.server_lr)}
        return {**super().update(s, server, step), "control": tree.add(server["control"], merged["control"])}

    def _change(self, c: ClientContext, params: Tree) -> Tree:
        """(x - y_i) / (K' eta) - c, option II: the change of the client's control; none in a visit without steps."""
        took_part = (c.num_steps > 0).double()
        share = took_part / (self._steps(c) * c.settings.lr).clamp(min=1e-12)
        model, control = c.message["model"], c.message["control"]
        return {name: (model[name] - params[name]) * share - control[name] * took_part for name in control}

    def _steps(self, c: ClientContext) -> Tensor:
        return (
            c.num_steps
            if self.divisor == "plain"
            else count_plain_steps(c.num_steps, c.settings.momentum, c.settings.nesterov)
        )
