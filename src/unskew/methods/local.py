"""Local training alone: every client trains the initial model on its own data, and nothing is sent.

The baseline "Local" of Lee et al., "FedSOL: Stabilized Orthogonal Learning with Proximal Restrictions in Federated
Learning", CVPR 2024, Table 9, and of FedAS.

    code               here
    200 epochs         epochs
    lr x 0.99          decay, once an epoch
    the trained model  c.state["personal"], the whole model

A client trains once, in the first round it takes part in, all its epochs with one momentum (or what else the optimiser
remembers); in later rounds it does nothing more. One round with all clients is the whole method. The server's model
stays the initial one, with which a client is tested until it has trained.
"""

from __future__ import annotations

from dataclasses import replace

from unskew.base import progress, tree
from unskew.base.batch import Batch
from unskew.base.registry import param
from unskew.base.tree import Groups, Tree
from unskew.core.context import ClientContext
from unskew.core.method import Method, methods
from unskew.core.optimisers import advance, begin


@methods.register("local")
class Local(Method):
    """Every client trains the initial model alone, once; nothing is sent."""

    epochs: int = param(default=200, ge=1, doc="passes over the client's data", source="official code of FedSOL")
    decay: float = param(
        default=0.99, gt=0, le=1, doc="factor on the learning rate after each pass", source="official code of FedSOL"
    )

    personal = ("*",)
    output = "personal"
    buffer_policy = "local"
    ignores = ("local.epochs", "local.steps", "local.lr_decay", "local.schedule")

    def train(self, c: ClientContext, params: Tree) -> Tree:
        """All epochs, unless the client has trained already."""
        if "personal" in c.state:  # clients that have trained never share a stack with newcomers
            return params
        at: Groups = {"model": params, "memory": begin(tree.select(params, c.trainable), c.settings)}
        for epoch in range(self.epochs):
            progress.say("training alone: epochs", epoch, self.epochs)
            at = self._pass_once(c, at, c.settings.lr * self.decay**epoch, f"batches/{epoch}")
        return at["model"]

    def _pass_once(self, c: ClientContext, at: Groups, lr: float, purpose: str) -> Groups:
        settings = replace(c.settings, lr=lr)

        def step(at: Groups, batch: Batch) -> Groups:
            grads = self.gradient(c, at["model"], batch)
            model, memory = advance(at["model"], grads, at["memory"], settings)
            return {"model": model, "memory": memory}

        return c.fold(step, at, epochs=1, purpose=purpose)

    def upload(self, c: ClientContext, params: Tree) -> Groups:
        """Nothing."""
        return {}
