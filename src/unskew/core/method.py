"""A method is one frozen dataclass: its fields are its hyper-parameters, its slots are pure functions.

Every slot has a default, and the defaults together are FedAvg. A method overrides the fewest it can.
Slots reach passes and gradients through the context and return new values; they change nothing they are given.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from unskew.base import tree
from unskew.base.batch import Batch, Output
from unskew.base.registry import Component, Registry, param, validated
from unskew.base.tree import Groups, Tree
from unskew.core import local_loop
from unskew.core.context import BufferPolicy, ClientContext, Context, ServerContext
from unskew.core.reducers import Reducers, buffers, mean
from unskew.core.term import Term
from unskew.models.base import Model


@validated
class Method(Component):
    """What clients and server do in a round; the defaults are FedAvg."""

    terms: tuple[Term, ...] = param(default=(), doc="extra loss terms, added to the method's own")

    personal: ClassVar[tuple[str, ...]] = ()
    """Patterns of parameters that never leave the client (`head.*`; `@norm`: normalisation layers)."""
    frozen: ClassVar[tuple[str, ...]] = ()
    """Patterns of parameters that are not trained."""
    output: ClassVar[Literal["global", "personal", "both", "tuned"]] = "global"
    """Which model is the method's product: evaluation follows it. `tuned`: the global one, which each client changes
    for itself before it uses it; as with `global`, clients are tested after the last round unless the run says more."""
    buffer_policy: ClassVar[BufferPolicy | None] = None
    """What happens to BatchNorm's buffers; None: as the run says."""
    stackable: ClassVar[bool] = True
    """Whether many clients may run as one batch under `vmap`."""
    reducers: ClassVar[Reducers] = {"delta": mean, "buffers": buffers}
    """How each group of the replies is merged."""
    survey_reducers: ClassVar[Reducers] = {}
    """If not empty, each round begins with an exchange of statistics: `survey`, `digest`, `brief`."""

    # --------------------------------------------------------------------------------- before the run

    def remodel(self, model: Model, num_classes: int) -> Model:
        """The network that this method trains, made of the one that the run names (another head, say)."""
        return model

    # ------------------------------------------------------------------------------------ the server

    def init(self, s: ServerContext) -> Groups:
        """The server's state before the first round."""
        return {"model": s.initial["model"], "buffers": s.initial["buffers"]}

    def download(self, s: ServerContext, server: Groups, client: int) -> Groups:
        """The message to one client: the shared part of the model."""
        message = {"model": self.shared(s, server["model"])}
        return {**message, "buffers": server["buffers"]} if s.buffer_policy == "average" else message

    def digest(self, s: ServerContext, server: Groups, surveyed: Groups) -> Groups:
        """The server's state after the exchange of statistics (only if there is one)."""
        return server

    def brief(self, s: ServerContext, server: Groups, client: int) -> Groups:
        """What is sent after that exchange, in addition to the message."""
        return {}

    def update(self, s: ServerContext, server: Groups, merged: Groups) -> Groups:
        """The server's next state from the merged replies."""
        delta = merged["delta"]
        model = {name: value + delta[name] if name in delta else value for name, value in server["model"].items()}
        return {**server, "model": model, "buffers": {**server["buffers"], **merged.get("buffers", {})}}

    def publish(self, s: ServerContext, server: Groups) -> Groups:
        """The message a stranger would get: the whole global model, for evaluation and release."""
        return {"model": server["model"], "buffers": server["buffers"]}

    # ------------------------------------------------------------------------------------- a client

    def init_client(self, c: ClientContext) -> Groups:
        """A client's state before its first visit."""
        return {}

    def survey(self, c: ClientContext) -> Groups:
        """The statistics a client sends before training (only if `survey_reducers` names them)."""
        return {}

    def prepare(self, c: ClientContext) -> ClientContext:
        """The context that all later slots of the visit see."""
        return c

    def start(self, c: ClientContext) -> Tree:
        """The parameters to train from: the received ones together with the client's personal ones."""
        return self.merge_personal(c)

    def criterion(self, c: ClientContext, out: Output, batch: Batch) -> Tensor:
        """The supervised part of the loss."""
        return batch.cross_entropy(out.logits)

    def own_terms(self) -> tuple[Term, ...]:
        """The terms that make this method what it is."""
        return ()

    def outer_terms(self) -> tuple[Term, ...]:
        """Terms of wrappers; they reach the loss of the method inside through the context."""
        return ()

    def loss(self, c: ClientContext, params: Tree, batch: Batch) -> Tensor:
        """The local loss of one batch."""
        out = c.forward(params, batch.x)
        value = self.criterion(c, out, batch)
        for term in (*self.own_terms(), *self.terms, *c.terms):
            value = value + term(c, params, batch, out)
        return value

    def proximal(self, c: ClientContext, params: Tree, batch: Batch) -> Tree | None:
        """What the method adds to the gradient of the supervised loss, its proximal gradient; None: nothing."""
        own = self.own_terms()
        if not own:
            return None

        def added(p: Tree) -> Tensor:
            seen = c.forward(p, batch.x)
            return torch.stack([term(c, p, batch, seen) for term in own]).sum()

        return c.grad(added, params)

    def gradient(self, c: ClientContext, params: Tree, batch: Batch) -> Tree:
        """The direction of one local step (descended after weight decay and momentum)."""
        grads, loss = c.grad_and_value(lambda p: self.loss(c, p, batch), params)
        c.diagnostics.note("train_loss", loss)
        return grads

    def train(self, c: ClientContext, params: Tree) -> Tree:
        """Local training."""
        return local_loop.sgd(c, params, self.gradient)

    def upload(self, c: ClientContext, params: Tree) -> Groups:
        """The reply: how the shared parameters moved, and the buffers if they are averaged."""
        shared = tree.select(self.shared(c, params), c.message["model"])
        reply = {"delta": tree.sub(shared, c.message["model"])}
        return {**reply, "buffers": tree.copy(c.buffers)} if c.buffer_policy == "average" else reply

    def keep(self, c: ClientContext, params: Tree) -> Groups:
        """What the client remembers: its personal part."""
        kept: Groups = {}
        if self.personal:
            kept["personal"] = tree.select(params, c.names.match(self.personal))
        if c.buffer_policy == "local":
            kept["buffers"] = tree.copy(c.buffers)
        return kept

    def weight(self, c: ClientContext, params: Tree) -> Tensor:
        """The client's weight in weighted means."""
        return c.num_samples

    def personalise(self, c: ClientContext) -> Tree:
        """The model this client would use now, given the newest message and what it remembers."""
        return self.merge_personal(c)

    def predict(self, c: ClientContext, params: Tree, x: Tensor) -> Tensor:
        """Scores [B, C] of a batch."""
        return c.forward(params, x, mode="eval").logits

    # -------------------------------------------------------------------------------------- helpers

    def shared(self, context: Context, params: Tree) -> Tree:
        """The part of the parameters that travels."""
        return tree.without(params, context.names.match(self.personal)) if self.personal else params

    def merge_personal(self, c: ClientContext) -> Tree:
        """The received parameters together with the client's personal ones (at first: the initial model's)."""
        if not self.personal:
            return c.message["model"]
        own = c.state.get("personal") or c.initial["model"]
        received = c.message["model"]
        return {name: received[name] if name in received else own[name] for name in c.names.params}


methods: Registry[Method] = Registry("method", Method)
