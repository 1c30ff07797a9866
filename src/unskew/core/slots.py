"""The list of slots: all that a method may override, in the order in which a run calls them.

Wrappers forward what is listed here, CONTRIBUTING's table is made of it, and nothing else of a method is ever called
by the loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from unskew.core.method import Method


class Slot(NamedTuple):
    """One slot: how it is called, where it runs, what it gives, and what its default (FedAvg's) does."""

    call: str
    where: str
    returns: str
    default: str

    @property
    def name(self) -> str:
        """The function's name."""
        return self.call.partition("(")[0]


SLOTS = (
    Slot("remodel(model, num_classes)", "before the run", "the network to train, made of the run's", "unchanged"),
    Slot("init(s)", "server", "the server's state (groups)", "`model` and `buffers` of the initial model"),
    Slot("download(s, server, client)", "server", "the message to a client",
         "the shared part of the model; buffers if averaged"),
    Slot("init_client(c)", "client", "its state before its first visit, and whenever it has kept nothing", "nothing"),
    Slot("prepare(c)", "client", "the context that later slots see", "unchanged"),
    Slot("survey(c)", "client", "statistics before training", "nothing"),
    Slot("digest(s, server, surveyed)", "server", "its state after the survey", "unchanged"),
    Slot("brief(s, server, client)", "server", "what is sent after the survey, too", "nothing"),
    Slot("start(c)", "client", "parameters to train from, or an `Outcome`",
         "`c.received`: the received ones together with the client's own"),
    Slot("train(c, params)", "client", "trained parameters, or an `Outcome`", "SGD over the visit's batches"),
    Slot("gradient(c, params, batch)", "client", "direction of a step (tree)", "gradient of `loss` plus `correction`"),
    Slot("loss(c, params, batch)", "client", "loss of a batch", "`criterion` plus `c.terms`"),
    Slot("criterion(c, out, batch)", "client", "supervised part of the loss", "cross-entropy"),
    Slot("own_terms()", "client", "the terms that make the method", "none"),
    Slot("correction(c, params, batch)", "client",
         "what is added to the gradient of the loss (tree); it counts as proximal", "nothing"),
    Slot("upload(c, params)", "client", "the reply (groups)",
         "`delta` to the received model; buffers if averaged"),
    Slot("keep(c, params)", "client", "its state until the next visit", "its personal part; buffers if local"),
    Slot("weight(c, params)", "client", "its weight in weighted means", "number of samples"),
    Slot("weigh(s, replies)", "server", "how much each reply counts in the round", "as its `weight` says"),
    Slot("update(s, server, merged)", "server", "its next state", "model plus `merged[\"delta\"]`; merged buffers"),
    Slot("publish(s, server)", "server", "the message a stranger would get, for tests and release",
         "model and buffers"),
    Slot("personalise(c)", "client", "the model it would use now, or an `Outcome`", "`c.received`"),
    Slot("predict(c, params, x)", "both", "scores of a batch", "logits in evaluation mode"),
)  # fmt: skip
NAMES = tuple(slot.name for slot in SLOTS)
DECLARATIONS = (
    "personal", "frozen", "output", "buffer_policy", "stackable", "reducers", "survey_reducers", "offers", "division",
    "takes_terms", "stacked_tolerance", "ignores", "refuses", "gives_logits",
)  # fmt: skip
"""What a method declares instead of coding it."""


def overrides(method: Method, slot: str) -> bool:
    """Whether a method, or a wrapper around it or inside it, has a slot of its own instead of the default."""
    from unskew.core.method import Method  # the base class needs the list
    from unskew.core.wrapper import Wrapper

    default = getattr(Wrapper if isinstance(method, Wrapper) else Method, slot)
    own = getattr(type(method), slot) is not default
    return own or (isinstance(method, Wrapper) and overrides(method.inner, slot))


def owner_of(method: Method, slot: str) -> Method:
    """The method whose slot it is that a wrapper hands on."""
    from unskew.core.wrapper import Wrapper  # which needs the list

    while isinstance(method, Wrapper) and getattr(type(method), slot) is getattr(Wrapper, slot):
        method = method.inner
    return method
