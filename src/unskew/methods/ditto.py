"""Ditto: beside the global model each client trains a model of its own, held near the global one.

Li, Hu, Beirami, Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021; around any
method that trains the global model.

    paper                          here
    G(F_1, ..., F_K), w            the inner method (FedAvg), c.received["model"]
    v_k                            c.state["ditto/model"], at first the initial model
    F_k(v) + lambda/2 ||v - w||^2  `_gradient`: cross-entropy, and lam (v - w) added to its gradient
    s                              personal_epochs: passes over the data; the paper counts steps

A visit (alg. 1): the inner method trains as ever, then v_k descends, held near the w that was received. v_k is not
sent; a client that is absent keeps it as it was. PFLlib trains v_k before the global model, which gives the same
numbers, since its centre is the received model either way; in our order not even dropout's random numbers differ from
those of the inner method alone.

PFLlib's default mu = 0 would make it local training; the paper picks lambda for each data set and we take 0.5. F_k is
plain cross-entropy, whatever loss the inner method has.
"""

from __future__ import annotations

from typing import Literal

from unskew.base.batch import Batch
from unskew.base.errors import InputError
from unskew.base.registry import param
from unskew.base.tree import Groups, Tree
from unskew.core import local_loop
from unskew.core.context import ClientContext, Outcome
from unskew.core.method import Method, methods
from unskew.core.slots import overrides
from unskew.core.wrapper import Wrapper
from unskew.methods import kept_model
from unskew.methods.fedavg import FedAvg
from unskew.methods.finetuned import plain_gradient

NAME = "ditto"


@methods.register("ditto")
class Ditto(Wrapper):
    """The inner method, and at each client a personal model that a proximal term holds near the received one."""

    inner: Method = param(default=FedAvg(), doc="the method that trains the global model", source="paper, Alg. 1")
    lam: float = param(
        default=0.5, ge=0, doc="how strongly a personal model is held", source="our choice; the paper tunes it"
    )
    personal_epochs: int = param(
        default=1, ge=1, doc="passes over the data for the personal model", source="PFLlib's plocal_epochs"
    )

    @property
    def output(self) -> Literal["global", "personal", "both", "tuned"]:  # type: ignore[override]
        """The personal models, and the global one, unless the inner method has none that predicts."""
        return "personal" if self.inner.output == "personal" else "both"

    def _gradient(self, c: ClientContext, v: Tree, batch: Batch) -> Tree:
        """The gradient of F_k(v) + lambda/2 ||v - w||^2 (alg. 1, line 7)."""
        grads, w = plain_gradient(c, v, batch), c.received["model"]
        if self.lam == 0:
            return grads
        return {name: grad + self.lam * (v[name] - w[name]) for name, grad in grads.items()}

    def train(self, c: ClientContext, params: Tree) -> Outcome:
        """The inner method's training, and the personal model's beside it."""
        found = self.inner.train(c, params)
        v, buffers = kept_model.recall(c, NAME)
        aside = c.aside(epochs=self.personal_epochs, steps=None).with_buffers(buffers)
        v = local_loop.sgd(aside, v, self._gradient, purpose=NAME)
        return Outcome.of(found, **{f"{NAME}/model": v, f"{NAME}/buffers": aside.buffers})

    def init_client(self, c: ClientContext) -> Groups:
        """The inner method's state, and v_k = the initial model."""
        return {**self.inner.init_client(c), **kept_model.begin(c, NAME)}

    def keep(self, c: ClientContext, params: Tree) -> Groups:
        """The inner method's state, and v_k."""
        v, buffers = c.made[f"{NAME}/model"], c.made[f"{NAME}/buffers"]
        return {**self.inner.keep(c, params), **kept_model.keep(c, NAME, v, buffers)}

    def personalise(self, c: ClientContext) -> Outcome:
        """v_k; the received model where there was no visit yet."""
        return kept_model.use(c, NAME)

    def __post_init__(self) -> None:
        """Refuses what has no model to train, and what gives clients models in a way of its own: itself, too."""
        if not self.inner.takes_terms:
            raise InputError(f"ditto needs a method whose clients train the model; {self.inner.name} does not")
        if overrides(self.inner, "personalise"):
            raise InputError(
                f"ditto gives each client a personal model, and {self.inner.name} has a rule of its own for that, "
                "which would be left out; wrap a method that trains a global model"
            )
