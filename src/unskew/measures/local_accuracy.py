"""Accuracy of the clients' models on the common test set, before they are merged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from unskew.base.registry import param
from unskew.base.tree import Tree
from unskew.core.context import ClientContext
from unskew.core.method import Method
from unskew.core.observer import Observer
from unskew.core.task import Task
from unskew.data.batches import LocalData
from unskew.measures.base import Figures, Look, Measure, choose_test_samples, measures


def share_right(method: Method, c: ClientContext, params: Tree, data: LocalData, batch: int) -> Tensor:
    """The share of these samples that the model predicts right; one value for each client where many work at once."""
    right = torch.zeros(())
    with torch.no_grad():
        for part in data.passes(batch):
            right = right + (method.predict(c, params, part.x).argmax(-1) == part.y).double().sum()
    return right / max(1, len(data))


class _Tester(Observer):
    """Tests the trained model on a part of the common test set."""

    def __init__(self, task: Task, samples: int) -> None:
        self._task, self._data = task, choose_test_samples(task, samples)

    def trained(self, c: ClientContext, params: Tree) -> None:
        """Notes its accuracy there."""
        accuracy = share_right(self._task.method, c, params, self._data, self._task.eval_batch)
        c.diagnostics.note("local_accuracy", accuracy)


@measures.register("local_accuracy")
class LocalAccuracy(Measure):
    """Accuracy of each trained client's model on the common test set, before it is merged (FedSOL, Fig. 7)."""

    reading: ClassVar[Mapping[str, str]] = {
        "local_accuracy": "Clients on the common test set, before merging; low: they know only their own classes.",
    }

    samples: int = param(default=2000, ge=1, doc="at most so many test samples (a fixed choice by the run's seed)")

    on_test: ClassVar[bool] = True

    def bind(self, task: Task) -> Observer:
        """Notes `local_accuracy` in the clients' rows."""
        return _Tester(task, self.samples)

    def figures(self, look: Look) -> Figures:
        """`local_accuracy`, the mean over the clients."""
        return look.mean_notes("local_accuracy")
