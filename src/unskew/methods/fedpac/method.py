"""FedPAC: features are aligned to global class means, and each client's head is a mixture of the heads that suit it.

Xu, Tong, Huang, "Personalized Federated Learning with Feature Alignment and Classifier Collaboration", ICLR 2023.

    paper                      here
    theta, phi_i               the body, averaged; client i's head, which the server keeps: s.per_client
    c_k, lambda (eq. 6)        c.message["prototypes"]; lam: the term `proto`
    V_i, h_i (Sec. 4.2)        `survey`: of the features of the received body, before training
    alpha_i (eq. 13)           `head_weights` in collaboration.py: a quadratic programme for each client of the round
    phi_i <- sum_j alpha_ij phi_j    `update`

A round: clients send V_i and h_i of the received body; each trains its head for one epoch with the body fixed, then the
body for the run's epochs with the head fixed, and sends both and the class means of its features; the server averages
bodies, combines heads, and takes the class means over all clients, to which the next round's features are aligned.

As in the official code, class means are taken after training and weighted by samples, and the first round has none. A
class without one is not aligned (the official code uses the client's own mean). The code uses learning rate 0.1 for the
head; we use the run's. Weights below 0.001 are dropped and, unlike there, the others scaled to sum 1.
"""

from __future__ import annotations

from typing import ClassVar, cast

import torch

from unskew.base import tree
from unskew.base.errors import InputError
from unskew.base.registry import param
from unskew.base.tree import Groups, Tree
from unskew.core import local_loop
from unskew.core.context import ClientContext, Context, ServerContext
from unskew.core.division import Division, Head
from unskew.core.method import Method, methods
from unskew.core.reducers import buffers, mean, per_client, total
from unskew.core.term import Term
from unskew.methods.class_sums import sum_by_class
from unskew.methods.fedpac.collaboration import head_weights
from unskew.methods.prototypes import global_prototypes, no_prototypes, prototype_sums
from unskew.terms.proto import PrototypeDistance


@methods.register("fedpac")
class FedPAC(Method):
    """Bodies averaged and aligned to class means; heads combined for each client by a quadratic programme."""

    lam: float = param(default=1.0, ge=0, doc="strength of the features' alignment", source="paper, Sec. 5.1")
    head_epochs: int = param(default=1, ge=0, doc="epochs of the head alone, before the body", source="official code")

    output = "personal"
    offers = ("prototypes",)
    division: ClassVar[Division] = Head()  # type: ignore[assignment]
    survey_reducers = {"statistics": per_client}
    reducers = {"delta": mean, "buffers": buffers, "head": per_client, "prototypes": total}

    # ---------------------------------------------------------------------------------------- a client

    def survey(self, c: ClientContext) -> Groups:
        """h_i = the features' sums by class / n, and V_i = (mean |f|^2 - |h_i|^2) / n, by the received body."""

        def see(x: torch.Tensor) -> torch.Tensor:
            f = c.features(c.received["model"], x, "eval").double()
            return torch.cat([f, f.square().sum(1, keepdim=True)], 1)

        like = c.message["prototypes"]["means"]
        n = c.num_samples.clamp(min=1)
        sums = sum_by_class(c, see, like.new_zeros(len(like), like.shape[1] + 1, dtype=torch.float64)) / n
        h, squares = sums[:, :-1], sums[:, -1].sum()
        v = (squares - h.square().sum()).clamp(min=0) / n
        return {"statistics": {"V": v.to(like.dtype), "h": h.to(like.dtype)}}

    def own_terms(self) -> tuple[Term, ...]:
        """lam MSE(z, c_y) (eq. 6)."""
        return (PrototypeDistance(weight=self.lam),)

    def train(self, c: ClientContext, params: Tree) -> Tree:
        """The head by cross-entropy alone, then the body by the whole loss."""
        head, body = _split(c)
        if self.head_epochs:
            alone = c.with_fields(trainable=head, terms=(), maps=())
            params = local_loop.sgd(alone, params, self.gradient, epochs=self.head_epochs, purpose="head")
        return local_loop.sgd(c.with_fields(trainable=body), params, self.gradient)

    def upload(self, c: ClientContext, params: Tree) -> Groups:
        """The body's difference, the head, and the sums of the trained body's features by class."""
        shared = self.shared(c, params)
        reply = {"delta": tree.sub(shared, tree.select(c.message["model"], shared)), "head": _head_of(c, params)}
        if c.buffer_policy == "average":
            reply["buffers"] = tree.copy(c.buffers)
        return {**reply, "prototypes": prototype_sums(c, params)}

    # --------------------------------------------------------------------------------------- the server

    def init(self, s: ServerContext) -> Groups:
        """The initial model, which is everybody's head, and no class means."""
        if not all(_split(s)):
            raise InputError("fedpac trains the head and the body in turn, and the network froze one of them")
        return {**super().init(s), "prototypes": no_prototypes(s)}

    def download(self, s: ServerContext, server: Groups, client: int) -> Groups:
        """The body, the client's own combined head, and the class means."""
        message = super().download(s, server, client)
        head = s.per_client.get(client).get("head") or _head_of(s, s.initial["model"])
        return {**message, "model": {**message["model"], **head}, "prototypes": server["prototypes"]}

    def digest(self, s: ServerContext, server: Groups, surveyed: Groups) -> Groups:
        """Notes who said what, for the end of the round."""
        said = {str(client): found for client, (found, _) in surveyed["statistics"].items()}
        return {**server, "V": {k: own["V"] for k, own in said.items()}, "h": {k: own["h"] for k, own in said.items()}}

    def update(self, s: ServerContext, server: Groups, merged: Groups) -> Groups:
        """Bodies and class means are averaged; client i's head becomes sum_j alpha_ij phi_j."""
        replies = cast("dict[int, tuple[Tree, float]]", merged["head"])
        heads = {client: head for client, (head, _) in replies.items()}
        v, h = (torch.stack([server[what][str(client)] for client in heads]) for what in ("V", "h"))
        alpha = head_weights(v, h)
        for client, row in zip(heads, alpha, strict=True):
            s.per_client.put(client, {"head": _combine(list(heads.values()), row)})
        s.record["own_head_share"] = float(alpha.diagonal().mean())
        state = {name: group for name, group in super().update(s, server, merged).items() if name not in ("V", "h")}
        return {**state, "prototypes": global_prototypes(server["prototypes"], merged["prototypes"])}


def _combine(heads: list[Tree], weights: torch.Tensor) -> Tree:
    """The weighted sum of heads."""
    return {
        name: torch.tensordot(weights.to(first.dtype), torch.stack([head[name] for head in heads]), 1)
        for name, first in heads[0].items()
    }


def _split(context: Context) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The trained parameters of the head and of the body."""
    head = {name for name in context.names.params if name.startswith("head.")}
    return tuple(n for n in context.trainable if n in head), tuple(n for n in context.trainable if n not in head)


def _head_of(context: Context, params: Tree) -> Tree:
    return {name: value for name, value in context.drop_fixed(params).items() if name.startswith("head.")}
