"""What matters to a client: its accuracy after a few parameters are taken from the received model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from unskew.base import tree
from unskew.base.registry import param
from unskew.base.tree import Tree
from unskew.core.context import ClientContext
from unskew.core.observer import Observer
from unskew.core.task import Task
from unskew.measures.base import Figures, Look, Measure, measures


def fisher_diagonal(c: ClientContext, params: Tree) -> Tree:
    """The squared mean gradient of -log p of each mini-batch, summed: whose total is FedAS's trace (eq. 5-6)."""
    total: Tree | None = None
    for batch in c.passes(c.settings.batch):
        grads = c.grad(lambda p, b=batch: b.cross_entropy(c.forward(p, b.x, "eval").logits), params)  # type: ignore[misc]
        squares = {name: grad.square() for name, grad in grads.items()}
        total = squares if total is None else tree.add(total, squares)
    return total or tree.zeros_like(tree.select(params, c.trainable))


def replace_top(params: Tree, other: Tree, scores: Tree, share: float) -> Tree:
    """The parameters, with those of the highest scores (a share of all that have one) taken from another model."""
    flat = torch.cat([value.flatten() for value in scores.values()])
    count = max(1, round(share * flat.numel()))
    chosen = torch.zeros_like(flat).scatter(0, flat.topk(count).indices, 1.0).bool()
    found, start = dict(params), 0
    for name, value in scores.items():
        mask = chosen[start : start + value.numel()].reshape(value.shape)
        found[name], start = torch.where(mask, other[name], params[name]), start + value.numel()
    return found


class _Replacing(Observer):
    """Tests the trained model as it is, and with some of its parameters replaced."""

    def __init__(self, task: Task, share: float) -> None:
        self._task, self._share = task, share

    def trained(self, c: ClientContext, params: Tree) -> None:
        """Notes the accuracies on the client's own samples."""
        with torch.no_grad():
            scores = fisher_diagonal(c, params)
            size = sum(value.numel() for value in scores.values())
            drawn = c.draw("measures/replaced", lambda rng: torch.rand(size, generator=rng))
            self._note(c, "none", params)
            self._note(c, "fisher", replace_top(params, c.received["model"], scores, self._share))
            self._note(c, "random", replace_top(params, c.received["model"], _shape(drawn, scores), self._share))

    def _note(self, c: ClientContext, name: str, params: Tree) -> None:
        right: Tensor = torch.zeros((), dtype=torch.float64)
        for batch in c.passes(self._task.eval_batch):
            chosen = self._task.method.predict(c, params, batch.x).argmax(1, keepdim=True)
            right = right + batch.one_hot(c.num_classes).gather(1, chosen).sum()  # 1 where it is a real sample's class
        c.diagnostics.note(f"replaced_{name}", right / c.num_samples.clamp(min=1))


def _shape(flat: Tensor, like: Tree) -> Tree:
    found, start = {}, 0
    for name, value in like.items():
        found[name], start = flat[start : start + value.numel()].reshape(value.shape), start + value.numel()
    return found


@measures.register("replaced")
class Replaced(Measure):
    """Accuracy of each trained client on its own training samples with parameters of high Fisher information, or random
    ones, replaced by the received model's (FedAS, Fig. 3a)."""

    reading: ClassVar[Mapping[str, str]] = {
        "replaced_none": "Accuracy of clients on their own samples, as they are.",
        "replaced_fisher": "The same with the most informative parameters as received; a drop: these are personal.",
        "replaced_random": "The same with random parameters, to compare with.",
    }

    share: float = param(default=0.05, gt=0, le=1, doc="how many of the trained parameters are replaced")

    def bind(self, task: Task) -> Observer:
        """Notes the accuracies in the clients' rows."""
        return _Replacing(task, self.share)

    def figures(self, look: Look) -> Figures:
        """`replaced_none`, `replaced_fisher` and `replaced_random`, means over the clients."""
        return look.mean_notes("replaced_none", "replaced_fisher", "replaced_random")
