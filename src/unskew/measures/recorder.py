"""Runs the measures of a run: gives them each finished round to look at, and records what they find."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace

from unskew.base import seeds
from unskew.core.round_loop import Round
from unskew.core.task import Task
from unskew.measures.base import Absent, Figures, Look, Measure, Row

log = logging.getLogger(__name__)


class Recorder:
    """Records all measures of a run; `rounds`: how many it has, `every`: how often the global model is tested."""

    def __init__(self, measures: tuple[Measure, ...], task: Task, rounds: int, every: int) -> None:
        self._measures, self._rounds, self._every = measures, rounds, every
        self.task = replace(task, observers=(*task.observers, *(measure.bind(task) for measure in measures)))
        """The run's task, observed by the measures too."""
        self._warned: set[str] = set()

    def record(self, done: Round, rows: Mapping[int, Row]) -> None:
        """Writes the round's figures into its record; `rows` are those of the rounds before."""
        if not self._measures:
            return
        began, number, row = time.perf_counter(), done.number, done.record
        final = number == self._rounds
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
                found |= measure.figures(look)
            except Absent as error:
                if measure.name not in self._warned:
                    log.warning("nothing to record for measure '%s': %s", measure.name, error)
                self._warned.add(measure.name)
        return found

    def summary(self, rows: list[Row]) -> Row:
        """What summary.json holds of the measures: each figure's last value, and what sums the run up."""
        if not self._measures:
            return {}
        last: Figures = {}
        for row in rows:
            last |= row.get("measures", {})
        for measure in self._measures:
            last |= measure.summarise(rows)
        return {"measures": last}
