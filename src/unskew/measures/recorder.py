"""Runs the measures of a run: gives them each finished round to look at, and records what they find."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unskew.base import seeds
from unskew.core.checks.faults import Fault, title
from unskew.core.checks.guard import Guard
from unskew.core.checks.watching import LOOKS, call_watched, is_foreign
from unskew.core.round_loop import Round
from unskew.core.task import Task
from unskew.measures.base import Absent, Figures, Look, Measure, Row
from unskew.measures.readings import read_figures

log = logging.getLogger(__name__)


class Recorder:
    """Records all measures of a run; `rounds`: how many it has, `every`: how often the global model is tested."""

    def __init__(self, measures: tuple[Measure, ...], task: Task, rounds: int, every: int) -> None:
        self._measures, self._rounds, self._every = measures, rounds, every
        self.task = replace(task, observers=(*task.observers, *(measure.bind(task) for measure in measures)))
        """The run's task, observed by the measures too."""
        self._warned: set[str] = set()
        self._owners: dict[str, Measure] = {}
        """Which measure gives a figure."""
        self._shown: dict[str, list[Row]] = {measure.name: [] for measure in measures if is_foreign([measure])}
        """The earlier rows as measures from outside the package see them: copies of their own."""

    def record(self, done: Round, rows: Mapping[int, Row]) -> None:
        """Writes the round's figures into its record; `rows` are those of the rounds before."""
        if not self._measures:
            return
        began, number, row = time.perf_counter(), done.number, done.record
        final = number == self._rounds or bool(done.failed)
        tested = final or number % self._every == 0
        earlier = [rows[before] for before in sorted(rows) if before < number]
        look = Look(self.task, done.server, number, final, tested, row, done.clients, earlier, done.observed)
        with seeds.preserve_global_generator():
            row["measures"] = self._figures(look)
        row["seconds"]["measure"] = time.perf_counter() - began

    def _figures(self, look: Look) -> Figures:
        found: Figures = {}
        for measure in self._measures:
            try:
                shown = self._show(measure, look)
                own = read_figures(measure, "figures", _ask(measure, "figures", shown, look.task.seed, look.round))
                self._claim(measure, "figures", own)
                found |= own
            except Absent as error:
                if measure.name not in self._warned:
                    log.warning("nothing to record for measure '%s': %s", measure.name, error)
                self._warned.add(measure.name)
        return found

    def _claim(self, measure: Measure, hook: str, figures: Figures) -> None:
        """A fault where two measures give a figure of one name: only one of them would be recorded."""
        for name in figures:
            if (other := self._owners.setdefault(name, measure)) is not measure:
                raise Fault(measure, hook, f"gives the figure '{name}', as {title(other, 'figures')} does; choose "
                            "another name, or leave one of them out")  # fmt: skip

    def _show(self, measure: Measure, look: Look) -> Look:
        """What the measure looks at; one from outside the package gets rows that it may change without harm."""
        if measure.name not in self._shown:
            return look
        earlier = self._shown[measure.name]
        earlier += copy.deepcopy(look.earlier[len(earlier) :])
        row, clients = copy.deepcopy((look.row, look.clients))
        return replace(look, row=row, clients=clients, earlier=list(earlier))

    def summary(self, rows: list[Row]) -> Row:
        """What summary.json holds of the measures: each figure's last value, and what sums the run up."""
        if not self._measures:
            return {}
        last: Figures = {}
        for row in rows:
            last |= row.get("measures", {})
        for measure in self._measures:
            shown = copy.deepcopy(rows) if measure.name in self._shown else rows
            with seeds.preserve_global_generator():
                given = _ask(measure, "summarise", shown, self.task.seed, len(rows))
            own = read_figures(measure, "summarise", given)
            self._claim(measure, "summarise", own)
            last |= own
        return {"measures": last}


def _ask(measure: Measure, hook: str, shown: Look | list[Row], seed: int, round_: int) -> Any:
    """What a measure says of a round or of the run; somebody else's is looked at while it works."""
    function = getattr(measure, hook)
    if not is_foreign([measure]):
        return function(shown)
    seeds.seed_layers(seed, f"layers/measure {measure.name}.{hook}", round_)  # whoever has drawn before it
    guard = Guard(deep=True, parts=[measure])
    if isinstance(shown, Look):
        guard.hold("look.server", shown.server)
        guard.hold("look.task.initial", shown.task.initial)
        test = shown.task.federation.dataset.test
        guard.hold_tensors({"the test set's inputs": test.x, "the test set's labels": test.y}, huge=True)
    return call_watched(measure, hook, function, (shown,), guard, _STREAM, LOOKS)


_STREAM = "seeds.generator(look.task.seed, purpose, look.round)"
