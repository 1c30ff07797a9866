"""FLFA: in a chosen layer the error signal goes down through the received weights instead of the client's own.

Baek, Kim, Kim, Chung, "Federated Learning with Feedback Alignment", arXiv 2512.12762, 2025. A wrapper around any
method that trains by gradients: layers below the chosen one follow a path that all clients share, and drift less.

    paper              here
    W^r, w_i^r         c.received["model"], params
    delta_{l-1}        feedback.py: delta_l B_l in the backward pass of a chosen layer, the forward pass with w_l
    B_l (alg. 1 l. 16) (||w_l|| / ||W_l||) W_l, scaled again before each step: `Feedback` in feedback.py
    z^l (eq. 14)       merged["similarity"], over the updates of the round before: selection.py
    N_FA               n_layers

A round: the server sends the model and the layers chosen after the round before; `prepare` puts feedback into these
layers of every pass at the client; the inner method trains as ever; the reducer `similarity` measures z^l as replies
come in, and `update` chooses anew.

No official code is public. What the paper leaves open: the norm is a layer's (its line 16 has no index); the first
round is ordinary backpropagation, since nothing is measured yet; feedback in the first layer of a network changes
nothing, and such rounds are counted; `auto` looks once at the skewness of z (Sec. 13.2) and then keeps to its choice.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Literal

import torch

from unskew.base import seeds, tree
from unskew.base.errors import InputError
from unskew.base.naming import helper
from unskew.base.registry import param
from unskew.base.tree import Groups, Tree
from unskew.core.context import ClientContext, Context, ServerContext
from unskew.core.method import Method, methods
from unskew.core.reducers import Reducers
from unskew.core.wrapper import Wrapper, walk_nested
from unskew.methods.fedavg import FedAvg
from unskew.methods.flfa.direct import DirectFeedback, draw_projection
from unskew.methods.flfa.feedback import Feedback
from unskew.methods.flfa.selection import RULES, decide_rule, similarity, skewness

log = logging.getLogger(__name__)


@methods.register("flfa")
class FLFA(Wrapper):
    """Feedback alignment around any gradient-trained method: one layer hands down errors through received weights."""

    inner: Method = param(default=FedAvg(), doc="the method inside", source="paper, Table 1")
    select: str = param(
        default="auto",
        doc="lowest | highest | auto | fixed:LAYER (several joined by +): which layers, by the clients' agreement",
        source="paper, Sec. 13.2",
    )
    n_layers: int = param(default=1, ge=1, doc="layers chosen in a round (not for fixed)", source="paper, Table 11")
    exclude_first: bool = param(
        default=False, doc="never choose the first layer, where feedback changes nothing", source="paper, Table 13"
    )
    scaling: bool = param(default=True, doc="feedback follows the norm of the local weights", source="paper, Table 4")
    feedback: Literal["received", "random"] = param(
        default="received", doc="feedback through the received weights, or through random ones", source="paper, Table 4"
    )
    dfa: bool = param(
        default=False, doc="ablation: direct feedback of the error at the logits instead", source="paper, ablation"
    )

    @property
    def reducers(self) -> Reducers:  # type: ignore[override]
        """The inner method's, and the similarity of its updates where layers are chosen by it."""
        return (
            self.inner.reducers
            if self._named_layers()
            else {**self.inner.reducers, "similarity": ("delta", similarity)}
        )

    # -------------------------------------------------------------------------------------- a client

    def prepare(self, c: ClientContext) -> ClientContext:
        """A context whose passes hand errors down by feedback in the chosen layers."""
        chosen = [c.names.layers[place] for place in c.message["feedback"]["layers"].tolist()]
        if self.dfa:
            acting = [layer for layer in chosen if self._acts(c, layer)]
            drawn = {layer: partial(draw_projection, c.seed, layer, c.num_classes) for layer in acting}
            return self.inner.prepare(DirectFeedback(drawn).within(c))
        weights = c.received["model"]
        if self.feedback == "random" and chosen:
            weights = c.fresh(seeds.derive(c.seed, "flfa/random"))
        feedback = Feedback({layer: weights[f"{layer}.weight"] for layer in chosen}, self.scaling)
        feedback.rescale(c.received["model"])  # B has the norm of w = W from the first use on
        return self.inner.prepare(feedback.within(c))

    # ------------------------------------------------------------------------------------- the server

    def init(self, s: ServerContext) -> Groups:
        """The inner method's state; no layer is chosen yet, unless it is fixed."""
        known, named = self.candidates(s), self._named_layers()
        if unknown := [layer for layer in named if layer not in known]:
            raise InputError(
                f"flfa.select: no layer {', '.join(unknown)} that is trained and shared; candidates: {', '.join(known)}"
            )
        if self.n_layers > len(known):
            raise InputError(f"flfa.n_layers: the model has {len(known)} candidate layers, got {self.n_layers}")
        return {**self.inner.init(s), "feedback": self._state(s, named, "", 0)}

    def download(self, s: ServerContext, server: Groups, client: int) -> Groups:
        """The inner method's message and the chosen layers, 4 bytes each."""
        message = self.inner.download(s, server, client)
        return {**message, "feedback": tree.select(server["feedback"], ["layers"])}

    def update(self, s: ServerContext, server: Groups, merged: Groups) -> Groups:
        """The inner method's; this round's updates choose the layers of the next."""
        used = [s.names.layers[place] for place in server["feedback"]["layers"].tolist()]
        idle = int(server["feedback"]["idle"]) + (bool(used) and not any(self._acts(s, layer) for layer in used))
        rule = ("", *RULES)[int(server["feedback"]["rule"])]  # "": not decided yet; once decided it stays (Sec. 13.2)
        chosen = used
        s.record.update(feedback_layers=used, feedback_no_op_rounds=idle)
        if idle and s.round == s.rounds and 2 * idle > s.rounds:
            log.warning(
                "flfa: in %d of %d rounds the chosen layers had nothing trained below them, so that feedback changed "
                "nothing there and the run is about %s; take exclude_first=true, other layers (select, n_layers) or a "
                "deeper network", idle, s.rounds, self.inner,
            )  # fmt: skip
        if not self._named_layers():
            measured = merged["similarity"]
            z = {layer: float(measured[layer]) for layer in self.candidates(s) if layer in measured}
            rule = rule or (self.select if self.select in RULES else decide_rule(z))
            chosen = RULES[rule](z, self.n_layers)
            s.record.update(similarity=z, skewness=skewness(list(z.values())), rule=rule, next_layers=chosen)
        inner = self.inner.update(s, server, {name: value for name, value in merged.items() if name != "similarity"})
        return {**inner, "feedback": self._state(s, chosen, rule, idle)}

    @helper
    def candidates(self, s: ServerContext) -> tuple[str, ...]:
        """Conv2d and Linear layers whose whole weight is trained and shared, in the model's order."""
        initial = s.initial["model"]
        travels = {name for name, part in self.inner.shared(s, initial).items() if part.shape == initial[name].shape}
        found = [layer for layer in s.names.layers if f"{layer}.weight" in travels.intersection(s.trainable)]
        return tuple(layer for layer in found if not (self.exclude_first and layer == s.names.layers[0]))

    def _state(self, s: ServerContext, chosen: list[str], rule: str, idle: int) -> Tree:
        places = [s.names.layers.index(layer) for layer in chosen]
        values = {"layers": places, "rule": ("", *RULES).index(rule), "idle": idle}
        return {name: torch.tensor(value, dtype=torch.int32) for name, value in values.items()}

    def _acts(self, context: Context, layer: str) -> bool:
        """Whether feedback in this layer changes anything: if anything that is trained lies below it."""
        names = context.names
        if self.dfa:  # the error at the logits is the last layer's own
            return not (layer.startswith("head") and layer == names.layers[-1])
        below = names.params[: names.params.index(f"{layer}.weight")]
        return layer != names.layers[0] and not set(below).isdisjoint(context.trainable)

    def _named_layers(self) -> list[str]:
        kind, _, named = self.select.partition(":")
        return named.split("+") if kind == "fixed" and named else []

    def __post_init__(self) -> None:
        """Refuses what cannot be combined."""
        if self.select not in (*RULES, "auto") and not self._named_layers():
            raise InputError(f"flfa.select: expected lowest, highest, auto or fixed:LAYER, got '{self.select}'")
        if "delta" not in self.inner.reducers:
            raise InputError(f"flfa needs a method whose clients train the model and send how it moved; "
                             f"{self.inner.name} does not, wrap another")  # fmt: skip
        if any(isinstance(method, FLFA) for method in walk_nested(self.inner)):
            raise InputError(f"flfa cannot stand inside flfa, got {self.inner}; choose more layers with n_layers")
        if self.dfa and (self.feedback == "random" or not self.scaling):
            raise InputError("flfa: dfa=true knows no feedback weights; leave out feedback and scaling")
