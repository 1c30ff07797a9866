"""Clients are tested with what they have just trained: FedAvg-P and FedProx-P of FedAS's comparison; around any method.

Yang, Huang, Ye, "FedAS: Bridging Inconsistency in Personalized Federated Learning", CVPR 2024, Tables 2 and 3.

    paper                         here
    FedAvg-P                      fedavg_p, own(fedavg)
    FedProx-P, mu                 fedprox_p, mu
    "finetune global models"      the client's model after its own training: state "own/model"

The paper says that global models are fine-tuned. Its code does no more than test before the next model is sent: a
client of this round with the model that it has just trained, an absent one with the global model as it was sent when
the round began. We follow the code, which made the tables; `finetuned(...)` fine-tunes the newest model at all clients.

Training is the inner method's, bit for bit.
"""

from __future__ import annotations

from typing import Literal

from unskew.base import tree
from unskew.base.errors import InputError
from unskew.base.registry import param
from unskew.base.tree import Groups, Tree
from unskew.core.context import STATISTICS, ClientContext, Outcome, ServerContext
from unskew.core.method import Method, methods
from unskew.core.term import Term
from unskew.core.wrapper import Wrapper
from unskew.methods.fedavg import FedAvg
from unskew.methods.kept_model import choose
from unskew.methods.round_end import current, is_trained, note_training, remember_start, to_send
from unskew.terms.prox import Prox


@methods.register("own")
class Own(Wrapper):
    """The inner method; a client of the round is tested with the model it trained, an absent one with what was sent."""

    inner: Method = param(default=FedAvg(), doc="the method inside")

    @property
    def output(self) -> Literal["global", "personal", "both", "tuned"]:  # type: ignore[override]
        """Each client's own model."""
        return "personal"

    # ------------------------------------------------------------------------------------- a client's test

    def download(self, s: ServerContext, server: Groups, client: int) -> Groups:
        """The inner method's message; for a test the one that was sent when the round began."""
        return self.inner.download(s, to_send(s, server), client)

    def personalise(self, c: ClientContext) -> Outcome:
        """The model that the client has trained in this round; an absent client's is the inner method's."""
        found, mine = Outcome.of(self.inner.personalise(c)), is_trained(c)
        params = choose(mine, c.add_fixed(c.state["own/model"]), found.params)
        if (own := c.state.get("own/buffers")) is None:
            return found._replace(params=params)
        return Outcome.of(
            Outcome(params, found.made), **{STATISTICS: choose(mine, own, found.made.get(STATISTICS, c.buffers))}
        )

    # ------------------------------------------------------------------------- what has to be kept for it

    def init(self, s: ServerContext) -> Groups:
        """The inner method's; refuses one whose clients train no model."""
        if not self.inner.takes_terms:
            raise InputError(
                f"{self.name} needs a method whose clients train the model, got {self.inner}; leave {self.name} out"
            )
        return self.inner.init(s)

    def digest(self, s: ServerContext, server: Groups, surveyed: Groups) -> Groups:
        """The inner method's state, and the one that the round began with."""
        return remember_start(s, server, self.inner.digest(s, current(server), surveyed))

    def update(self, s: ServerContext, server: Groups, merged: Groups) -> Groups:
        """The inner method's state, and the one that the round began with."""
        return remember_start(s, server, self.inner.update(s, current(server), merged))

    def init_client(self, c: ClientContext) -> Groups:
        """The inner method's state, and the initial model, which this client has not trained."""
        return {**self.inner.init_client(c), **self._remembered(c, c.initial["model"], c.initial["buffers"], -1)}

    def keep(self, c: ClientContext, params: Tree) -> Groups:
        """The inner method's state, and the trained model."""
        return {**self.inner.keep(c, params), **self._remembered(c, params, tree.copy(c.buffers), c.round)}

    def _remembered(self, c: ClientContext, params: Tree, buffers: Tree, round_: int) -> Groups:
        statistics = {"own/buffers": buffers} if buffers and c.buffer_policy == "average" else {}
        return {"own/model": c.drop_fixed(params), **statistics, **note_training(c, round_)}


@methods.register("fedavg_p")
class FedAvgP(Own):
    """FedAvg; a client of the round is tested with the model that it has just trained."""


@methods.register("fedprox_p")
class FedProxP(Own):
    """FedProx; a client of the round is tested with the model that it has just trained."""

    mu: float = param(default=0.1, ge=0, doc="strength of the proximal term", source="official code of FedAS")

    def loss_terms(self) -> tuple[Term, ...]:
        """The inner method's, the proximal term and this wrapper's."""
        return (*self.inner.loss_terms(), Prox(mu=self.mu), *self.terms)

    def used_terms(self) -> tuple[Term, ...]:
        """The inner method's, the proximal term and this wrapper's."""
        return (*self.inner.used_terms(), Prox(mu=self.mu), *self.terms)
