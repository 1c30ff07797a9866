"""Measures of tested models: local models before they are merged, forgetting, rounds to an accuracy."""

from __future__ import annotations

from typing import ClassVar

import torch

from unskew.base.errors import InputError
from unskew.base.registry import param
from unskew.base.tree import Tree
from unskew.core.context import ClientContext
from unskew.core.task import Task
from unskew.measures import figures
from unskew.measures.base import Absent, Figures, Look, Measure, Row, Watcher, measures, some_test


class _Tester(Watcher):
    """Tests the trained model on a part of the common test set."""

    def __init__(self, task: Task, samples: int) -> None:
        self._task, self._data = task, some_test(task, samples)

    def trained(self, c: ClientContext, params: Tree) -> None:
        """Its accuracy there."""
        right = torch.zeros(())
        with torch.no_grad():
            for batch in self._data.passes(self._task.eval_batch):
                scores = self._task.method.predict(c, params, batch.x)
                right = right + (scores.argmax(-1) == batch.y).double().sum()
        c.diagnostics.note("local_accuracy", right / max(1, len(self._data)))


@measures.register("local_accuracy")
class LocalAccuracy(Measure):
    """Accuracy of each trained client's model on the common test set, before it is merged (FedSOL, Fig. 7)."""

    samples: int = param(default=2000, ge=1, doc="at most so many test samples (a fixed choice by the run's seed)")

    on_test: ClassVar[bool] = True

    def observer(self, task: Task) -> Watcher:
        """Notes `local_accuracy` in the clients' rows."""
        return _Tester(task, self.samples)

    def figures(self, look: Look) -> Figures:
        """`local_accuracy`, the mean over the clients."""
        found = look.mean_of("local_accuracy")
        return {} if found is None else {"local_accuracy": found}


@measures.register("forgetting")
class Forgetting(Measure):
    """Mean over classes of the best earlier accuracy of the global model minus the present one (FedSOL, Fig. 7)."""

    on_test: ClassVar[bool] = True

    def figures(self, look: Look) -> Figures:
        """`forgetting`, from the second test on; round 0, the initial model, has learnt nothing to forget."""
        if look.task.method.output == "personal":
            raise Absent(f"{look.task.method.name} gives personal models only, and it looks at the global one")
        tests = [row["class_accuracy"] for row in (*look.earlier, look.row) if row["round"] and "class_accuracy" in row]
        if "class_accuracy" not in look.row or len(tests) < 2:
            return {}
        tested = [number for number, value in enumerate(tests[0]) if value is not None]
        return {"forgetting": figures.forgetting([[test[number] for number in tested] for test in tests])}


@measures.register("rounds_to")
class RoundsTo(Measure):
    """First tested round whose accuracy reaches each target; in summary.json, null where no round does."""

    targets: tuple[float, ...] = param(default=(0.5, 0.6, 0.7, 0.8, 0.9), doc="accuracies as shares of 1")

    def check(self, task: Task) -> None:
        """Targets are shares."""
        wrong = [target for target in self.targets if not 0 < target <= 1]
        if wrong or not self.targets:
            raise InputError(
                f"measure rounds_to: targets are shares of 1, such as [0.9, 0.95], got {wrong or list(self.targets)}"
            )

    def overall(self, rows: list[Row]) -> Figures:
        """`rounds_to`: target → round."""
        curve = [(row["round"], accuracy) for row in rows if row["round"] and (accuracy := _accuracy(row)) is not None]
        found: dict[str, int | None] = {}
        for target in self.targets:
            place = figures.rounds_to_target([value for _, value in curve], target)
            found[f"{target:g}"] = None if place is None else curve[place - 1][0]
        return {"rounds_to": found}


def _accuracy(row: Row) -> float | None:
    """The global model's accuracy; a personal method's pooled one."""
    found: float | None = row.get("accuracy", row.get("personal", {}).get("pooled"))
    return found
