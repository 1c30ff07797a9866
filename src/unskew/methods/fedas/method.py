"""FedAS: clients align the received body with what they knew before, and count by the Fisher information they gained.

Yang, Huang, Ye, "FedAS: Bridging Inconsistency in Personalized Federated Learning", CVPR 2024.

    paper              here
    theta, omega_i     the shared part (body), the personal part (head) of a model
    H_i (eq. 2)        `reference_features` in alignment.py: by the client's previous model, c.state["personal"] (at
                       its first visit the initial one); by default their class means
    eq. 3-4            `Align` and `align_body` in alignment.py, descended in `start`
    alpha_i (eq. 5-6)  `fisher_trace` in fisher.py: the client's `weight`
    alpha'_i (eq. 7)   `shares` in synchronise.py, by `normalisation`: the round's rule, `weigh`
    theta^{t+1}        theta + sum_i alpha'_i Delta theta_i (eq. 8): the ordinary weighted mean

A visit: `start` aligns the received body and puts the client's own head on it, `train` trains both, `upload` sends
Delta theta_i, `keep` remembers the whole model, whose features are the targets of the next visit, `weight` is alpha_i.
The server weighs all clients by eq. 7, BatchNorm's statistics like the parameters, and takes the mean.

Where paper and official code differ we follow the code, which made the tables:
- targets are the class means of the previous features, classes count alike (`align_loss=paper`: each sample's own);
- alpha sums squared norms of mini-batch gradients, so it grows with n_i (`fisher=full`, `per_sample`);
- no 1/m before the sum of eq. 8, with which the server would hardly move (`eq8_literal`).
Two things we do not follow: the code aligns the server's own model, client after client, so that each starts from what
the ones before left (here each has its copy, alg. 1), and it sends whole models (here the shared part).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from unskew.base import tree
from unskew.base.errors import InputError
from unskew.base.registry import param
from unskew.base.settings import PLAIN
from unskew.base.tree import Groups, Tree
from unskew.core.context import ClientContext, Outcome, ServerContext
from unskew.core.method import methods
from unskew.core.term import Term
from unskew.methods.fedas.alignment import Align, AlignLoss, align_body, with_targets
from unskew.methods.fedas.fisher import Fisher, fisher_trace
from unskew.methods.fedas.synchronise import Rule, shares
from unskew.methods.fedper import Evaluate, FedPer

if TYPE_CHECKING:
    from unskew.core.jobs import Reply


@methods.register("fedas")
class FedAS(FedPer):
    """FedPer with federated parameter alignment and client synchronisation."""

    align: bool = param(default=True, doc="align the received body before training", source="paper, Table 4")
    align_loss: AlignLoss = param(
        default="code",
        doc="distance to class means; or to each sample's own feature, mean or sum over dimensions",
        source="official code",
    )
    align_mode: Literal["serial", "parallel"] = param(
        default="serial", doc="before training, or as a term of its loss", source="paper, Fig. 4b"
    )
    align_target: Literal["local", "received"] = param(
        default="local", doc="features of the client's previous model, or of the received one", source="paper, Fig. 4b"
    )
    align_lr: float = param(default=0.01, gt=0, doc="learning rate of the alignment", source="official code")
    align_epochs: int = param(default=1, ge=1, doc="passes over the data in the alignment", source="official code")
    align_batch: int = param(default=16, ge=1, doc="samples in a batch of the alignment", source="official code")
    synchronise: bool = param(
        default=True, doc="weight clients by their Fisher information, else by samples", source="paper, Table 4"
    )
    fisher: Fisher = param(
        default="batch", doc="trace from the gradients of mini-batches, of all data, of samples", source="official code"
    )
    normalisation: Rule = param(default="proportional", doc="from traces to weights", source="official code")
    eq8_literal: bool = param(
        default=False, doc="divide the sum by the number of clients, as eq. 8 is printed", source="official code"
    )
    evaluate: Evaluate = param(
        default="own",
        doc="a client is tested with the newest body and its own head, with its last whole model, or as the round "
        "leaves it, before the new body is sent",
        source="official code",
    )

    def start(self, c: ClientContext) -> Tree | Outcome:
        """The received body, aligned (eq. 3-4), with the client's own part; in parallel mode targets for training."""
        params = c.received["model"]
        if not self.align:
            return params
        known = self._with_targets(c)
        if self.align_mode == "parallel":
            return Outcome(params, known.made)
        settings = {"lr": self.align_lr, "batch": self.align_batch, "epochs": self.align_epochs}
        aside = known.aside(**settings, steps=None, **PLAIN)  # the alignment is SGD's, whatever trains the model
        names = self._aligned_names(c.trainable, c.message["model"])
        return align_body(aside, params, Align(loss=self.align_loss), names)

    def own_terms(self) -> tuple[Term, ...]:
        """In parallel mode the alignment, with weight 1."""
        return (Align(loss=self.align_loss),) if self.align and self.align_mode == "parallel" else ()

    def weight(self, c: ClientContext, params: Tree) -> Tensor:
        """alpha_i (eq. 5-6)."""
        if not self.synchronise:
            return super().weight(c, params)
        found = fisher_trace(c, params, self.fisher)
        c.diagnostics.note("fisher_alpha", found)
        return found

    def weigh(self, s: ServerContext, replies: Sequence[Reply]) -> Sequence[float]:
        """alpha'_i (eq. 7)."""
        if not self.synchronise:
            return super().weigh(s, replies)
        traces, sizes = [reply.weight for reply in replies], [float(reply.num_samples) for reply in replies]
        return shares(traces, sizes, self.normalisation)

    def update(self, s: ServerContext, server: Groups, merged: Groups) -> Groups:
        """theta + sum_i alpha'_i Delta theta_i (eq. 8); with `eq8_literal` the sum is divided by m, as printed."""
        if self.eq8_literal:
            merged = {**merged, "delta": tree.scale(merged["delta"], 1 / max(1, len(s.replied)))}
        return super().update(s, server, merged)

    @property
    def keeps_whole(self) -> bool:
        """Also where the previous model gives the targets."""
        return super().keeps_whole or (self.align and self.align_target == "local")

    def _with_targets(self, c: ClientContext) -> ClientContext:
        if self.align_target == "received":
            return with_targets(c, c.received, self.align_loss)
        own = {"model": c.add_fixed(c.state["personal"]), "buffers": c.state.get("buffers", c.received["buffers"])}
        return with_targets(c, own, self.align_loss)

    @staticmethod
    def _aligned_names(trainable: tuple[str, ...], received: Tree) -> tuple[str, ...]:
        """The shared parameters of the body."""
        return tuple(name for name in trainable if name.startswith("body.") and name in received)

    def init(self, s: ServerContext) -> Groups:
        """The initial model; refuses an alignment of nothing."""
        server = super().init(s)
        shared = self.shared(s, s.initial["model"])
        if self.align and self.align_mode == "serial" and not self._aligned_names(s.trainable, shared):
            raise InputError("fedas aligns shared parameters of the body, and there are none; set align=false")
        return server

    def __post_init__(self) -> None:
        """Refuses options that would do nothing."""
        if self.eq8_literal and not self.synchronise:
            raise InputError("fedas.eq8_literal needs synchronise=true (eq. 8 is about its weights); leave one out")
