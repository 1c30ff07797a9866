"""FedRoD: one body, two heads; the generic head is trained for all classes alike, a personal one for the client's own.

Chen, Chao, "On Bridging Generic and Personalized Federated Learning for Image Classification", ICLR 2022.

    paper                        here
    theta, psi                   body and generic head: the model, c.message["model"]
    phi_m                        personal head of client m: c.state["personal_head"], names as in the model's head
    L^BSM, balanced softmax      `criterion`: softmax of the generic logits plus log n_{m,c}
    loss of G-head + P-head      `PersonalHead`: cross-entropy of the sum of both heads' logits
    z                            out.features

Balanced softmax makes the generic model fit all classes although the client's labels are skewed, so that averages fit;
the personal head adds what the client's labels say. It sees features and generic logits as constants: nothing of it
reaches what is shared, which is FedAvg under balanced softmax, bit for bit. Both are trained in the same steps. The
personal head is another set of the head's parameters, at first the initial ones (PFLlib), linear where the head is; the
paper's second form, a hypernetwork that makes it from class counts, is left out.
"""

from __future__ import annotations

from torch import Tensor

from unskew.base import tree
from unskew.base.batch import Batch, Output
from unskew.base.errors import InputError
from unskew.base.registry import validated
from unskew.base.tree import Groups, Tree
from unskew.core import local_loop
from unskew.core.context import ClientContext, Context, Outcome, ServerContext
from unskew.core.method import Method, methods
from unskew.core.term import Term

OWN = "personal_"
"""Begins the names of the personal head's parameters while they are trained beside the model's."""


def _head_of(context: Context) -> Tree:
    """The initial head, as far as it is trained."""
    return context.drop_fixed(tree.select(context.initial["model"], context.names.match(("head.*",))))


def add_personal(c: ClientContext, params: Tree, own: Tree, out: Output, training: bool = True) -> Tensor:
    """The generic logits plus the personal head's, of features and generic logits that are constants to it."""
    personal = c.classify({**params, **own}, out.features.detach(), "train" if training else "eval")
    return out.logits.detach() + personal


@validated
class PersonalHead(Term):
    """The loss of the personal head: cross-entropy of both heads together."""

    def __call__(self, c: ClientContext, params: Tree, batch: Batch, out: Output) -> Tensor:
        """The batch's mean."""
        own = {name.removeprefix(OWN): value for name, value in params.items() if name.startswith(OWN)}
        return batch.cross_entropy(add_personal(c, params, own, out))


@methods.register("fedrod")
class FedRoD(Method):
    """Body and generic head averaged under balanced softmax; each client adds a personal head's logits."""

    output = "both"

    def criterion(self, c: ClientContext, out: Output, batch: Batch) -> Tensor:
        """Cross-entropy of logits + log n_m: a class that the client lacks has weight 0."""
        return batch.cross_entropy(out.logits + c.counts.to(out.logits.dtype).log())

    def own_terms(self) -> tuple[Term, ...]:
        """The personal head's loss, of the same forward pass."""
        return (PersonalHead(),)

    def train(self, c: ClientContext, params: Tree) -> Outcome:
        """Model and personal head in the same steps."""
        own = {f"{OWN}{name}": value for name, value in c.state["personal_head"].items()}
        both = c.with_fields(trainable=(*c.trainable, *own))
        trained = local_loop.sgd(both, {**params, **own}, self.gradient)
        found = {name.removeprefix(OWN): trained[name] for name in own}
        return Outcome(tree.without(trained, own), {"personal_head": found})

    def init(self, s: ServerContext) -> Groups:
        """The initial model; refuses a network whose head is not trained."""
        if not _head_of(s):
            raise InputError("fedrod trains a personal head, and the network froze its head; let it train")
        return super().init(s)

    def init_client(self, c: ClientContext) -> Groups:
        """The initial head."""
        return {"personal_head": _head_of(c)}

    def keep(self, c: ClientContext, params: Tree) -> Groups:
        """The personal head."""
        return {**super().keep(c, params), "personal_head": c.made["personal_head"]}

    def personalise(self, c: ClientContext) -> Outcome:
        """The received model, and beside it the personal head."""
        return Outcome(c.received["model"], {"personal_head": c.state["personal_head"]})

    def predict(self, c: ClientContext, params: Tree, x: Tensor) -> Tensor:
        """Both heads' logits; the generic ones alone where there is no client."""
        out = c.forward(params, x, mode="eval")
        own = c.made.get("personal_head")
        return out.logits if own is None else add_personal(c, params, own, out, training=False)
