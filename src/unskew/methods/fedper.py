"""FedPer: the head never leaves the client, the body is averaged, both are trained together.

Arivazhagan, Aggarwal, Singh, Choudhary, "Federated Learning with Personalization Layers", 2019.

    paper          here
    W_B            c.message["model"], the base layers
    W_P_j          c.state["personal"], the personalisation layers of client j
    K_P            division: how much of the model is personal (head: the last layer, K_P = 1)

The official code of FedAS, which compares with it, sends the newest body to all clients before every test, also to
those that were absent (`evaluate=received`). With `evaluate=own` a client is tested with the whole model that it
trained last, as FedAS's own clients are; one that was never visited with the received model. With `evaluate=round` it
is tested before the new body is sent: after its training in this round with the whole model that it trained, else with
the body as this round began and its own head (`own(fedper)` says the same).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from unskew.base import tree
from unskew.base.naming import helper
from unskew.base.registry import param
from unskew.base.tree import Groups, Tree
from unskew.core.context import STATISTICS, ClientContext, Outcome, ServerContext
from unskew.core.division import Division, Head, pad
from unskew.core.method import Method, methods
from unskew.methods.kept_model import choose
from unskew.methods.round_end import is_trained, note_training, remember_start, to_send

Evaluate = Literal["received", "own", "round"]
"""What a client is tested with."""


@methods.register("fedper")
class FedPer(Method):
    """Body averaged, head personal; all parameters are trained together."""

    division: Division = param(  # type: ignore[assignment]
        default=Head(), doc="which part of the model is shared", source="FedAS, Table 1"
    )
    evaluate: Evaluate = param(
        default="received",
        doc="a client is tested with the newest body and its own head, with its last whole model, or as the round "
        "leaves it, before the new body is sent",
        source="official code of FedAS",
    )

    output = "personal"

    def init(self, s: ServerContext) -> Groups:
        """The initial model; refuses a division that does not fit it."""
        self.division.check(s)
        return super().init(s)

    def download(self, s: ServerContext, server: Groups, client: int) -> Groups:
        """The shared part; with `evaluate=round` a test sees it as this round began."""
        return super().download(s, to_send(s, server), client)

    def update(self, s: ServerContext, server: Groups, merged: Groups) -> Groups:
        """The shared part moves by the mean difference."""
        found = super().update(s, server, {**merged, "delta": pad(merged["delta"], server["model"])})
        return remember_start(s, server, found) if self.evaluate == "round" else found

    def init_client(self, c: ClientContext) -> Groups:
        """The initial model, not yet trained by this client."""
        return self._remembered(c, c.initial["model"], c.initial["buffers"], round_=-1)

    def keep(self, c: ClientContext, params: Tree) -> Groups:
        """The personal part; the whole model where it is tested or cut anew."""
        return self._remembered(c, params, tree.copy(c.buffers), round_=c.round)

    def personalise(self, c: ClientContext) -> Tree | Outcome:
        """The received body with the client's own head, or its last whole model with the statistics that it had."""
        if self.evaluate == "received":
            return c.received["model"]
        mine = self._uses_own(c)
        whole = choose(mine, c.add_fixed(c.state["personal"]), c.received["model"])
        own = c.state.get("buffers")
        return whole if own is None else Outcome(whole, {STATISTICS: choose(mine, own, c.buffers)})

    def _uses_own(self, c: ClientContext) -> Tensor:
        """Whether the test is of the client's last whole model: was it ever trained, or in this round?"""
        return is_trained(c) if self.evaluate == "round" else c.state["visited"]["yes"]

    @property
    @helper
    def keeps_whole(self) -> bool:
        """Whether a client remembers its whole model, not only its personal part."""
        return self.evaluate != "received" or not self.division.by_name

    def _remembered(self, c: ClientContext, params: Tree, buffers: Tree, round_: int) -> Groups:
        own = c.drop_fixed(params)
        kept: Groups = {"personal": own if self.keeps_whole else tree.without(own, self.shared(c, params))}
        if self.keeps_whole:
            kept["visited"] = {"yes": torch.tensor(round_ > 0, device=next(iter(params.values())).device)}
        if self.evaluate == "round":
            kept |= note_training(c, round_)
        if c.buffer_policy == "local" or (self.keeps_whole and c.buffer_policy == "average"):
            kept["buffers"] = buffers
        return {name: own for name, own in kept.items() if own}
