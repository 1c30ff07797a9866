"""Settings proposed by Optuna's TPE sampler, one after the other for each method.

Nothing of a study is stored: the sampler is seeded and told the finished trials in their order, so a command that is
started again asks for the same settings, finds their folders, and goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unskew.base import seeds
from unskew.base.errors import InputError
from unskew.runs.tuning.searches import Try
from unskew.runs.tuning.space import Axis, Setting


def import_optuna() -> Any:
    """The package, an extra."""
    try:
        import optuna
    except ImportError:
        raise InputError("--search optuna needs Optuna: pip install 'unskew[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


class OptunaSearch:
    """As many trials as the budget says."""

    def __init__(self, axes: Sequence[Axis], method: str, budget: int, rounds: int, seed: int) -> None:
        self._optuna, self._axes, self._left, self._rounds = import_optuna(), axes, budget, rounds
        sampler = self._optuna.samplers.TPESampler(seed=seeds.derive(seed, f"tune/{method}") % 2**32)
        self._study = self._optuna.create_study(direction="maximize", sampler=sampler)
        self._trial: Any = None

    def propose(self) -> list[Try]:
        """The next trial."""
        if not self._left:
            return []
        self._left -= 1
        self._trial = self._study.ask()
        return [Try(self._suggest(), self._rounds)]

    def _suggest(self) -> Setting:
        found: Setting = {}
        for axis in self._axes:
            if not axis.kind:  # by place: a value may be a list or a table
                place = self._trial.suggest_categorical(axis.name, list(range(len(axis.values))))
                found[axis.name] = axis.values[place]
            elif axis.kind == "int":
                found[axis.name] = self._trial.suggest_int(axis.name, int(axis.low), int(axis.high))
            else:
                value = self._trial.suggest_float(axis.name, axis.low, axis.high, log=axis.kind == "log")
                found[axis.name] = float(f"{value:.4g}")
        return found

    def learn(self, scores: Sequence[float | None]) -> None:
        """Tells the trial's figure; what diverged is worse than any accuracy, so that the sampler keeps away."""
        for score in scores:
            self._study.tell(self._trial, -1.0 if score is None else score)
