"""Per-FedAvg: the global model is trained to be good after one step on a client's own data.

Fallah, Mokhtari, Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach", NeurIPS 2020; its first-order form, Per-FedAvg (FO).

    paper                          here
    alpha                          the run's local.lr (eta of FedSOL's code)
    beta                           beta
    w - alpha grad f_i(w, D)       `there` in `_meta_step`, on the first of two batches
    beta grad f_i(there, D')       the step, on the second; without the factor (I - alpha Hessian)
    tau                            local steps: as many as a visit of FedAvg takes, each on two batches

Clients do not use the global model as it is: each first adapts it by `adapt_epochs` passes of SGD on its own data.

We follow FedSOL's code, which compares with it: batches are taken one after the other and the data are gone through
again when they are used up, so that a visit passes its data twice as often as FedAvg's; one momentum and the weight
decay (at the restored w) are shared by both half-steps. The paper has neither, and draws a third batch for its Hessian.
"""

from __future__ import annotations

from dataclasses import replace

from unskew.base import tree
from unskew.base.batch import Batch
from unskew.base.registry import param
from unskew.base.tree import Groups, Tree
from unskew.core import local_loop
from unskew.core.context import ClientContext
from unskew.core.method import Method, methods
from unskew.methods.finetuned import plain_gradient


@methods.register("perfedavg")
class PerFedAvg(Method):
    """FedAvg whose local steps go along the gradient at where one more step on other data would lead."""

    beta: float = param(default=0.01, gt=0, doc="learning rate of the meta step", source="FedSOL's experiments")
    adapt_epochs: int = param(
        default=1, ge=0, doc="passes over the client's data before its test (FedSOL: 1 or 5)", source="FedSOL, Table 9"
    )

    output = "tuned"
    refuses = {
        "local.optimiser": "both half-steps are SGD's, with rates of their own (local.lr and beta) and one velocity",
        "local.nesterov": "both half-steps go through one velocity, which the next one reads",
        "local.clip": "the half-step to where the gradient is taken is a plain one",
    }

    def _meta_step(self, c: ClientContext, at: Groups, batches: tuple[Batch, Batch]) -> Groups:
        """w - beta grad f(w - alpha grad f(w)), where each gradient goes through the one velocity."""
        (first, second), w = batches, at["model"]
        velocity = self._advance(c, at["velocity"], self.gradient(c, w, first), w)
        there = _move(w, velocity, c.settings.lr)
        velocity = self._advance(c, velocity, self.gradient(c, there, second), w)
        return {"model": _move(w, velocity, self.beta), "velocity": velocity}

    @staticmethod
    def _advance(c: ClientContext, velocity: Tree, grads: Tree, w: Tree) -> Tree:
        """momentum * velocity + gradient + weight_decay * w."""
        decayed = {name: grad + c.settings.weight_decay * w[name] for name, grad in grads.items()}
        return tree.add_scaled(decayed, velocity, c.settings.momentum)

    def train(self, c: ClientContext, params: Tree) -> Tree:
        """As many meta steps as the visit has batches; each takes two of them."""
        s = c.settings
        twice = replace(s, epochs=2 * s.epochs, steps=None if s.steps is None else 2 * s.steps)
        start = {"model": params, "velocity": tree.zeros_like(tree.select(params, c.trainable))}
        done = c.with_fields(settings=twice).fold(lambda at, two: self._meta_step(c, at, two), start, together=2)
        return done["model"]

    def personalise(self, c: ClientContext) -> Tree:
        """The received model after a few passes of plain SGD over the client's data."""
        aside = c.aside(epochs=self.adapt_epochs, steps=None)
        return local_loop.sgd(aside, c.received["model"], plain_gradient, purpose="finetune")


def _move(w: Tree, velocity: Tree, lr: float) -> Tree:
    return {name: value.add(velocity[name], alpha=-lr) if name in velocity else value for name, value in w.items()}
