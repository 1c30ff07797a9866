"""FedPer: the head never leaves the client, the body is averaged, both are trained together.

Arivazhagan, Aggarwal, Singh, Choudhary, "Federated Learning with Personalization Layers", 2019.

    paper          here
    W_B            c.message["model"], the base layers
    W_P_j          c.state["personal"], the personalisation layers of client j
    K_P            division: how much of the model is personal (head: the last layer, K_P = 1)

The official code of FedAS, which compares with it, sends the newest body to all clients before every test, also to
those that were absent (`evaluate=received`). With `evaluate=own` a client is tested with the whole model that it
trained last, as FedAS's own clients are; one that was never visited with the received model.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from unskew.base import tree
from unskew.base.registry import param
from unskew.base.tree import Groups, Tree
from unskew.core.context import ClientContext, ServerContext
from unskew.core.division import Division, Head, pad
from unskew.core.method import Method, methods


@methods.register("fedper")
class FedPer(Method):
    """Body averaged, head personal; all parameters are trained together."""

    division: Division = param(  # type: ignore[assignment]
        default=Head(), doc="which part of the model is shared", source="FedAS, Table 1"
    )
    evaluate: Literal["received", "own"] = param(
        default="received",
        doc="a client is tested with the newest body and its own head, or with its last whole model",
        source="official code of FedAS",
    )

    output = "personal"

    def init(self, s: ServerContext) -> Groups:
        """The initial model; refuses a division that does not fit it."""
        self.division.check(s)
        return super().init(s)

    def update(self, s: ServerContext, server: Groups, merged: Groups) -> Groups:
        """The shared part moves by the mean difference."""
        return super().update(s, server, {**merged, "delta": pad(merged["delta"], server["model"])})

    def init_client(self, c: ClientContext) -> Groups:
        """The initial model, not yet trained by this client."""
        return self._remembered(c, c.initial["model"], c.initial["buffers"], visited=False)

    def keep(self, c: ClientContext, params: Tree) -> Groups:
        """The personal part; the whole model where it is tested or cut anew."""
        return self._remembered(c, params, tree.copy(c.buffers), visited=True)

    def personalise(self, c: ClientContext) -> Tree:
        """The newest body with the client's own head, or its last whole model."""
        if self.evaluate == "received":
            return c.received["model"]
        return _chosen(c, c.state["personal"], c.received["model"])

    def predict(self, c: ClientContext, params: Tree, x: Tensor) -> Tensor:
        """Logits; the client's last whole model goes with the statistics it had."""
        own = c.state.get("buffers") if self.evaluate == "own" else None
        buffers = None if own is None else _chosen(c, own, c.buffers)
        return c.forward(params, x, mode="eval", buffers=buffers).logits

    @property
    def keeps_whole(self) -> bool:
        """Whether a client remembers its whole model, not only its personal part."""
        return self.evaluate == "own" or not self.division.by_name

    def _remembered(self, c: ClientContext, params: Tree, buffers: Tree, visited: bool) -> Groups:
        kept: Groups = {"personal": params if self.keeps_whole else tree.without(params, self.shared(c, params))}
        if self.keeps_whole:
            kept["visited"] = {"yes": torch.tensor(visited, device=next(iter(params.values())).device)}
        if c.buffer_policy == "local" or (self.keeps_whole and c.buffer_policy == "average"):
            kept["buffers"] = buffers
        return {name: own for name, own in kept.items() if own}


def _chosen(c: ClientContext, own: Tree, received: Tree) -> Tree:
    """The client's own values if it was ever visited, else the received ones."""
    seen = c.state["visited"]["yes"]
    return {name: torch.where(seen, value, received[name]) for name, value in own.items()}
