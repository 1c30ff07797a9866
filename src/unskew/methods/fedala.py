"""FedALA: a client starts from an element-wise mixture of its own and the received model, learnt on its own data.

Zhang, Hua, Wang, Song, Xue, Ma, Guan, "FedALA: Adaptive Local Aggregation for Personalized Federated Learning",
AAAI 2023.

    paper                        here
    Theta_i^{t-1}, Theta^{t-1}   v: the client's own model, c.state["fedala/model"]; w: c.received["model"]
    W_i^p                        c.state["weights"], of the top `layer_idx` tensors
    Theta-hat_i (eq. 4)          `mix`: v + (w - v) W on these tensors, w below them
    eq. 5                        `_learn`: W <- clip(W - eta g (w - v), 0, 1), g the gradient at Theta-hat_i
    p, s, eta                    layer_idx (tensors here), share, eta

A visit: W is learnt on a part of the data (the first time in several passes, until the loss is steady; later in one),
the mixture is trained as in FedAvg, the whole model is sent and kept. In the first round both models are the initial
one, and nothing is learnt. Clients are tested with the model that they trained last.

The official code goes on, the first time, until the last batch's loss has a standard deviation below `threshold` over
ten passes. Here `start_passes` bounds it: all are made, and W stays as it was when the loss became steady, so that the
rule needs no branch. As in that code, an incomplete last batch is left out (if there is a full one), and batches come
in the same order in every pass.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unskew.base import tree
from unskew.base.batch import Batch
from unskew.base.registry import param
from unskew.base.torch_private import is_batched
from unskew.base.tree import Groups, Tree
from unskew.core.context import ClientContext, Outcome
from unskew.core.method import Method, methods
from unskew.methods import kept_model

NAME = "fedala"
STEADY = 10
"""Losses whose standard deviation tells whether learning is over."""


def mix(v: Tree, w: Tree, weights: Tree) -> Tree:
    """v + (w - v) W where there are weights, elsewhere w (eq. 4)."""
    return {**w, **{name: v[name] + (w[name] - v[name]) * own for name, own in weights.items()}}


@methods.register("fedala")
class FedALA(Method):
    """FedAvg whose clients start from a learnt mixture of their own and the received model."""

    layer_idx: int = param(
        default=2, ge=0, doc="how many tensors, from the top, are mixed (0: all)", source="FedAS's experiments"
    )
    eta: float = param(default=1.0, gt=0, doc="learning rate of the weights", source="official code")
    share: float = param(default=0.8, gt=0, le=1, doc="share of the data they are learnt on", source="official code")
    threshold: float = param(
        default=0.1, ge=0, doc="the first time, learning ends where losses vary less than this", source="official code"
    )
    start_passes: int = param(
        default=20, ge=1, doc="passes of the first time, at most", source="our choice; the official code has no bound"
    )

    output = "personal"

    def start(self, c: ClientContext) -> Tree | Outcome:
        """The mixture, after its weights are learnt; what was received in the first round."""
        w = c.received["model"]
        if c.round == 1:  # v and w are the initial model
            return w
        v = kept_model.recall(c, NAME)[0]
        weights = self._learn(c, v, w)
        return Outcome(mix(v, w, weights), {"weights": weights})

    def _learn(self, c: ClientContext, v: Tree, w: Tree) -> Tree:
        """W after one pass; the first time after as many as it takes."""
        known = c.state.get("weights")
        weights = known or {name: torch.ones_like(w[name]) for name in c.trainable[-self.layer_idx :]}
        seen = c.with_seen("received") if _in_head(weights) else c
        part = seen.aside(epochs=1, steps=None, drop_last=True).draw_part(self.share, NAME)

        def step(at: Groups, batch: Batch) -> Groups:
            """Eq. 5."""
            mixed = mix(v, w, at["weights"])
            grads, loss = c.grad_and_value(lambda p: self._loss(part, p, batch, at["weights"]), mixed, tuple(weights))
            moved = {n: at["weights"][n] - self.eta * g * (w[n] - v[n]) for n, g in grads.items()}
            return {"weights": {n: own.clamp(0, 1) for n, own in moved.items()}, "loss": {"last": loss}}

        losses: list[Tensor] = []
        nothing = next(iter(w.values())).new_zeros(())
        steady = torch.zeros((), dtype=torch.bool, device=nothing.device)
        for _ in range(1 if known else self.start_passes):
            done = part.fold(step, {"weights": weights, "loss": {"last": nothing}}, purpose=NAME)
            weights = {n: torch.where(steady, old, done["weights"][n]) for n, old in weights.items()}
            losses.append(done["loss"]["last"])
            if len(losses) > STEADY:
                steady = steady | (torch.stack(losses[-STEADY:]).std(unbiased=False) < self.threshold)
                if not is_batched(steady) and steady:  # many clients at once go on until the last one is
                    break
        return weights

    @staticmethod
    def _loss(c: ClientContext, params: Tree, batch: Batch, weights: Tree) -> Tensor:
        """Cross-entropy of the mixture, in evaluation mode; a body that is not mixed has seen all samples once."""
        if _in_head(weights):
            return batch.cross_entropy(c.classify(params, c.teacher(batch).features, "eval"))
        return batch.cross_entropy(c.forward(params, batch.x, "eval").logits)

    def init_client(self, c: ClientContext) -> Groups:
        """The initial model; no weights yet."""
        return kept_model.begin(c, NAME)

    def keep(self, c: ClientContext, params: Tree) -> Groups:
        """The trained model, and the weights if they are learnt already."""
        kept = {**super().keep(c, params), **kept_model.keep(c, NAME, params, tree.copy(c.buffers))}
        return {**kept, "weights": c.made["weights"]} if "weights" in c.made else kept

    def personalise(self, c: ClientContext) -> Outcome:
        """The model that the client trained last; the received one where there was no visit yet."""
        return kept_model.use(c, NAME)


def _in_head(weights: Tree) -> bool:
    return all(name.startswith("head.") for name in weights)
