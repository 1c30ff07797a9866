"""Rounds to an accuracy: how soon a run reaches given targets."""

from __future__ import annotations

from collections.abc import Sequence

from unskew.base.errors import InputError
from unskew.base.registry import param
from unskew.core.task import Task
from unskew.measures.base import Figures, Measure, Row, measures


def rounds_to_target(curve: Sequence[float], target: float) -> int | None:
    """The first round, counted from 1, that reaches the target; None if none does."""
    return next((number for number, value in enumerate(curve, 1) if value >= target), None)


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

    def summarise(self, rows: list[Row]) -> Figures:
        """`rounds_to`: target → round."""
        curve = [
            (row["round"], accuracy) for row in rows if row["round"] and (accuracy := accuracy_of(row)) is not None
        ]
        found: dict[str, int | None] = {}
        for target in self.targets:
            place = rounds_to_target([value for _, value in curve], target)
            found[f"{target:g}"] = None if place is None else curve[place - 1][0]
        return {"rounds_to": found}


def accuracy_of(row: Row) -> float | None:
    """The global model's accuracy; a personal method's pooled one."""
    found: float | None = row.get("accuracy", row.get("personal", {}).get("pooled"))
    return found
