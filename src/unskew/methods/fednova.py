"""FedNova: updates are divided by the steps behind them, so that clients with many steps do not pull harder.

Wang, Liu, Liang, Joshi, Poor, "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization",
NeurIPS 2020.

    paper            here
    tau_k            c.num_steps, the steps really taken
    ||a_k||_1        c.sent["steps"]["a"]: tau_k, corrected for local momentum, also Nesterov's (momentum_steps.py)
    d_k              (w - w_k) / (lr a_k); the reducer `normalised` takes the mean of (w_k - w) / a_k
    tau_eff          merged["steps"]["a"] = sum_k p_k a_k
    p_k              samples of the client by those of the round

The server computes w <- w + tau_eff sum_k p_k (w_k - w) / a_k. If all took equally many steps, this is FedAvg.
A client without a step did not move: it counts in the mean like any other, but has no a_k, so that tau_eff is the mean
over the others.
FedSOL's code adds a control to each local gradient, dbar - d_k (`control=ccvr`), but forgets to compute dbar, which
stays 0; here dbar is the running mean that its unused function describes. The default is FedNova without it.
a_k holds what each gradient counts in w_k - w, the same whatever the gradients are (Sec. 4.1): an optimiser that scales
them by their past, such as Adam, has none, and is refused. Clipped gradients are the gradients of the formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from unskew.base import tree
from unskew.base.batch import Batch, Output
from unskew.base.registry import param, validated
from unskew.base.tree import Groups, Tree
from unskew.core.context import ClientContext, ServerContext
from unskew.core.method import Method, methods
from unskew.core.reducers import Reducer, buffers, mean
from unskew.core.term import Term
from unskew.methods.momentum_steps import count_plain_steps

if TYPE_CHECKING:
    from unskew.core.jobs import Reply


class normalised(mean):
    """sum_k p_k (w_k - w) / a_k, over all clients; one without a step did not move."""

    def add(self, value: Tree, reply: Reply) -> None:
        """Takes in one client's difference."""
        super().add(tree.scale(value, _invert(reply.groups["steps"]["a"])), reply)

    def add_stack(self, value: Tree, replies: Sequence[Reply]) -> None:
        """Takes in the differences of many clients at once, [K, ...]."""
        assert replies[0].stack is not None
        share = _invert(replies[0].stack.groups["steps"]["a"])
        super().add_stack({n: v * share.view(-1, *[1] * (v.dim() - 1)) for n, v in value.items()}, replies)


class over_movers(mean):
    """sum_k p_k a_k over the clients that took a step."""

    averages = False  # a number of steps must not be clipped or rounded

    def add(self, value: Tree, reply: Reply) -> None:
        """Takes in one client's a_k."""
        if value["a"] > 0:
            super().add(value, reply)

    add_stack = Reducer.add_stack  # one after the other


class movers(Reducer):
    """How many clients took a step, and which share of the round's weight is theirs."""

    def __init__(self, s: ServerContext) -> None:
        self._count, self._weight, self._whole = 0, 0.0, 0.0

    def add(self, value: Tree, reply: Reply) -> None:
        """Takes in one client's a_k."""
        moved = bool(value["a"] > 0)
        self._count, self._whole = self._count + moved, self._whole + reply.weight
        self._weight += reply.weight if moved else 0.0

    def result(self) -> Tree:
        """Both numbers."""
        share = self._weight / self._whole if self._whole else 0.0
        return {"count": torch.tensor(self._count), "share": torch.tensor(share, dtype=torch.float64)}


def _invert(a: Tensor) -> Tensor:
    """1 / a, and 0 where nobody moved."""
    return torch.where(a > 0, 1 / a, 0.0)


@validated
class Control(Term):
    """<dbar - d_k, w_k - w>: its gradient is the control that FedSOL's code adds; it pulls as SCAFFOLD's does."""

    name: ClassVar[str] = "control"
    proximal = True

    def __call__(self, c: ClientContext, params: Tree, batch: Batch, out: Output) -> Tensor:
        """The inner product, 0 where the visit starts."""
        control = c.made["control"]
        return tree.dot(control, tree.sub(tree.select(params, control), tree.select(c.received["model"], control)))


@methods.register("fednova")
class FedNova(Method):
    """FedAvg of updates per step, times the mean number of steps."""

    control: Literal["none", "ccvr"] = param(
        default="none",
        doc="whether local gradients are corrected by dbar - d_k (cross-client variance reduction)",
        source="paper; ccvr: FedSOL's configuration",
    )

    refuses = {
        "local.optimiser": "a_k is what each gradient counts in an update of SGD, and Adam's has no such numbers"
    }
    reducers = {"delta": normalised, "buffers": buffers, "steps": over_movers, "movers": ("steps", movers)}

    def update(self, s: ServerContext, server: Groups, merged: Groups) -> Groups:
        """w <- w + (sum_k p_k a_k) sum_k p_k (w_k - w) / a_k; nobody took a step: w."""
        far = merged["steps"].get("a", torch.zeros(()))
        moved = super().update(s, server, {**merged, "delta": tree.scale(merged["delta"], far)})
        return {**moved, "control": self._mix_control(s, server, merged)} if self.control == "ccvr" else moved

    def upload(self, c: ClientContext, params: Tree) -> Groups:
        """The difference, and a_k."""
        reply = super().upload(c, params)
        own = next(iter(reply["delta"].values()))
        return {**reply, "steps": {"a": self._steps(c).to(own.dtype)}}

    def _steps(self, c: ClientContext) -> Tensor:
        return count_plain_steps(c.num_steps, c.settings.momentum, c.settings.nesterov)

    # -------------------------------------------------------------------------- control=ccvr: dbar - d_k in each step

    def own_terms(self) -> tuple[Term, ...]:
        """None, or the control's."""
        return (Control(),) if self.control == "ccvr" else ()

    def init(self, s: ServerContext) -> Groups:
        """The initial model; dbar = 0."""
        server = super().init(s)
        if self.control == "none":
            return server
        return {**server, "control": tree.zeros_like(tree.select(server["model"], s.trainable))}

    def download(self, s: ServerContext, server: Groups, client: int) -> Groups:
        """The model, and dbar."""
        message = super().download(s, server, client)
        return {**message, "control": server["control"]} if self.control == "ccvr" else message

    def init_client(self, c: ClientContext) -> Groups:
        """d_k = 0."""
        return {"control": tree.zeros_like(c.message["control"])} if self.control == "ccvr" else {}

    def prepare(self, c: ClientContext) -> ClientContext:
        """Takes dbar - d_k once for all steps of the visit."""
        if self.control == "none":
            return c
        return c.with_made(control=tree.sub(c.message["control"], c.state["control"]))

    def keep(self, c: ClientContext, params: Tree) -> Groups:
        """d_k = (w - w_k) / (lr a_k); after a visit without steps as it was."""
        kept = super().keep(c, params)
        if self.control == "none":
            return kept
        moved, share = c.num_steps > 0, -_invert(self._steps(c) * c.settings.lr)
        control = {
            name: torch.where(moved, c.sent["delta"][name] * share, old) for name, old in c.state["control"].items()
        }
        return {**kept, "control": control}

    def _mix_control(self, s: ServerContext, server: Groups, merged: Groups) -> Tree:
        """dbar <- (1 - m/N) dbar + (m/N) sum_k p_k d_k: the m clients that took a step replace their part."""
        dbar, share = server["control"], float(merged["movers"]["share"])
        if not share:
            return dbar
        part = int(merged["movers"]["count"]) / s.num_clients
        round_mean = tree.scale(tree.select(merged["delta"], dbar), -1 / (s.settings.lr * share))
        return {**dbar, **tree.lerp(tree.select(dbar, round_mean), round_mean, part)}
