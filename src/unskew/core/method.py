"""A method is one frozen dataclass: its fields are its hyper-parameters, its slots are pure functions.

Every slot has a default, and the defaults together are FedAvg. A method overrides the fewest it can. core/slots.py
lists them all in the order in which they are called. Slots reach passes and gradients through the context and return
new values; they change nothing they are given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import Tensor

from unskew.base import tree
from unskew.base.batch import Batch, Output
from unskew.base.errors import InputError
from unskew.base.registry import Component, Registry, check_options, param, validated
from unskew.base.tree import Groups, Tree
from unskew.core import local_loop
from unskew.core.checks.declared import check_class
from unskew.core.checks.returned import Detached, blame_loss, check_correction, check_loss
from unskew.core.checks.steps import hold_output, refuse_output_change, warn_detached
from unskew.core.context import BufferPolicy, ClientContext, Context, Outcome, ServerContext
from unskew.core.division import Division, Layers, join
from unskew.core.reducers import Reducers, buffers, mean
from unskew.core.term import Term
from unskew.core.tolerance import USUAL
from unskew.models.base import Model

if TYPE_CHECKING:
    from unskew.core.jobs import Reply


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
    stacked_tolerance: ClassVar[float] = USUAL
    """How near `stacked` comes to `serial`, as a share of the distance moved; of a whole run: `find_tolerance`."""
    reducers: ClassVar[Reducers] = {"delta": mean, "buffers": buffers}
    """How each group of the replies is merged."""
    survey_reducers: ClassVar[Reducers] = {}
    """If not empty, each round begins with an exchange of statistics: `survey`, `digest`, `brief`."""
    offers: ClassVar[tuple[str, ...]] = ()
    """What terms may need and only some methods have (`prototypes`, `etf_head`)."""
    takes_terms: ClassVar[bool] = True
    """Whether clients train a model by a loss that terms can join."""
    ignores: ClassVar[tuple[str, ...]] = ()
    """Settings of a run that mean nothing to it (`local.lr`): a run that sets one says so."""
    refuses: ClassVar[Mapping[str, str]] = {}
    """Settings that its mathematics does not allow (`local.optimiser`), each with the reason: a run that sets one is
    refused."""
    gives_logits: ClassVar[bool] = True
    """Whether the softmax of what `predict` gives are probabilities; AUC and calibration error need them."""

    def __init_subclass__(cls) -> None:
        """Refuses public names that are no slot, declaration, option or declared helper."""
        check_options(cls)
        check_class(cls, Method)

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

    def weigh(self, s: ServerContext, replies: Sequence[Reply]) -> Sequence[float]:
        """How much each reply counts in all weighted means of the round; a rule of one's own sees them all at once."""
        return [reply.weight for reply in replies]

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
        """The context that all later slots of the visit see; `c.with_made(...)` adds what is made once per visit."""
        return c

    def start(self, c: ClientContext) -> Tree | Outcome:
        """The parameters to train from: the received ones together with the client's own."""
        return c.received["model"]

    def criterion(self, c: ClientContext, out: Output, batch: Batch) -> Tensor:
        """The supervised part of the loss."""
        return batch.cross_entropy(out.logits)

    def own_terms(self) -> tuple[Term, ...]:
        """The terms that make this method what it is."""
        return ()

    def loss(self, c: ClientContext, params: Tree, batch: Batch) -> Tensor:
        """The local loss of one batch: the criterion and the visit's terms. The one place where it is composed."""
        out = c.forward(params, batch.x, maps=c.maps) if c.maps else c.forward(params, batch.x)
        if c.guarded:
            return self._compose_guarded(c, params, batch, out)
        value = self.criterion(c, out, batch)
        for term in c.terms:
            value = value + term(c, params, batch, out)
        return value

    def _compose_guarded(self, c: ClientContext, params: Tree, batch: Batch, out: Output) -> Tensor:
        """The same where somebody's code is among it: each part gives a loss, and leaves the output to the others."""
        guard = hold_output(c, out)
        value = check_loss(self, "criterion", self.criterion(c, out, batch))
        refuse_output_change(guard, self, "criterion")
        for term in c.terms:
            more = check_loss(term, "__call__", term(c, params, batch, out))
            warn_detached(term, more, value)
            value = value + more
            refuse_output_change(guard, term, "__call__")
        return value

    def correction(self, c: ClientContext, params: Tree, batch: Batch) -> Tree | None:
        """What is added to the gradient of the loss, such as SCAFFOLD's c - c_i; None: nothing.

        It counts as proximal: inside FedSOL it gives the proximal gradient and leaves the step.
        """
        return None

    def gradient(self, c: ClientContext, params: Tree, batch: Batch) -> Tree:
        """The direction of one local step (descended after weight decay and momentum)."""

        def loss_of(at: Tree) -> Tensor:
            value = self.loss(c, at, batch)
            return check_loss(self, "loss", value) if c.guarded else value

        try:
            grads, loss = c.grad_and_value(loss_of, params)
        except Detached as fault:
            raise blame_loss(self, fault) from None
        c.diagnostics.note("train_loss", loss)
        more = self.correction(c, params, batch)
        if more is None:
            return grads
        check_correction(self, grads, more)
        return tree.add(grads, more)

    def train(self, c: ClientContext, params: Tree) -> Tree | Outcome:
        """Local training; an `Outcome` hands on what else was made, which later slots find in `c.made`."""
        return local_loop.sgd(c, params, self.gradient)

    def upload(self, c: ClientContext, params: Tree) -> Groups:
        """The reply: how the shared parameters moved, and the buffers if they are averaged."""
        received = c.drop_fixed(c.message["model"])
        reply = {"delta": tree.sub(tree.select(self.shared(c, params), received), received)}
        return {**reply, "buffers": tree.copy(c.buffers)} if c.buffer_policy == "average" else reply

    def keep(self, c: ClientContext, params: Tree) -> Groups:
        """What the client remembers: its personal part. What it has just sent is `c.sent`."""
        kept: Groups = {}
        if self.personal:
            kept["personal"] = c.drop_fixed(tree.select(params, c.names.match(self.personal)))
        if c.buffer_policy == "local":
            kept["buffers"] = tree.copy(c.buffers)
        return kept

    def weight(self, c: ClientContext, params: Tree) -> Tensor:
        """The client's weight in weighted means; the server's `weigh` has the last word."""
        return c.num_samples

    def personalise(self, c: ClientContext) -> Tree | Outcome:
        """The model this client would use now; an `Outcome` hands on to `predict` what else it needs."""
        return c.received["model"]

    def predict(self, c: ClientContext, params: Tree, x: Tensor) -> Tensor:
        """Scores [B, C] of a batch."""
        return c.forward(params, x, mode="eval").logits

    # ------------------------------------------------------------- what follows from slots and declarations

    @property
    def division(self) -> Division:
        """Which part of the model travels, and which is the client's own: by default what `personal` says."""
        return _divide_by_name(self.personal)

    def shared(self, context: Context, params: Tree) -> Tree:
        """The part of the parameters that travels; what the network itself froze does so once, at the beginning."""
        travels, fixed = self.division.shared(context, params), context.names.fixed
        return tree.without(travels, fixed) if fixed else travels

    def receive(self, c: ClientContext) -> Tree:
        """The model that a visit starts from: the received part with the client's own (at first: the initial one's)."""
        received = c.message["model"]
        if len(received) == len(c.names.params) and self.division.by_name:
            return received
        own = c.state.get("personal")
        return join(c.drop_fixed(received), c.add_fixed(own) if own else c.initial["model"], c.names.params)

    def loss_terms(self) -> tuple[Term, ...]:
        """All terms of the local loss: the method's own, the user's, those of wrappers from the inside out."""
        own: object = self.own_terms()
        if not isinstance(own, (tuple, list)):
            raise InputError(f"{self.name}.own_terms must give a tuple of terms, got {own!r}")
        return (*own, *self.terms)

    def used_terms(self) -> tuple[Term, ...]:
        """All terms that are computed in a visit, for whatever purpose."""
        return self.loss_terms()


@lru_cache(maxsize=64)
def _divide_by_name(patterns: tuple[str, ...]) -> Division:
    return Layers(patterns=patterns)


methods: Registry[Method] = Registry("method", Method)
