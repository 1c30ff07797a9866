"""Records the measures of a run: what they look at, when, and what they say."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace

from unskew.base import seeds
from unskew.core.reducers import Reducers
from unskew.core.round_loop import Round
from unskew.core.task import Task
from unskew.measures.base import Absent, Figures, Look, Measure, Row

log = logging.getLogger(__name__)


class Recorder:
    """Records all measures of a run; `rounds`: how many it has, `every`: how often the global model is tested."""

    def __init__(self, wanted: tuple[Measure, ...], task: Task, rounds: int, every: int) -> None:
        self._wanted, self._rounds, self._every = wanted, rounds, every
        observers = [measure.observer(task) for measure in self._wanted]
        self.task = replace(task, observers=tuple(each for each in observers if each is not None))
        """The run's task, with the measures looking on."""
        self.watching: Reducers = {
            f"{measure.name}/{key}": how for measure in self._wanted for key, how in measure.watching().items()
        }
        self._told: set[str] = set()

    def record(self, done: Round, rows: Mapping[int, Row]) -> None:
        """Writes into a round's record what the measures say of it; `rows` are those of the rounds before."""
        if not self._wanted:
            return
        began, number, row = time.perf_counter(), done.number, done.record
        final = number == self._rounds
        tested = final or number % self._every == 0
        earlier = [rows[before] for before in sorted(rows) if before < number]
        look = Look(self.task, done.server, number, final, tested, row, done.clients, earlier, done.watched)
        with seeds.preserve_global_generator():
            row["measures"] = self._figures(look)
        row["seconds"]["measure"] = time.perf_counter() - began

    def _figures(self, look: Look) -> Figures:
        found: Figures = {}
        for measure in self._wanted:
            try:
                found |= measure.figures(look)
            except Absent as error:
                if measure.name not in self._told:
                    log.warning("nothing to record for measure '%s': %s", measure.name, error)
                self._told.add(measure.name)
        return found

    def summary(self, rows: list[Row]) -> Row:
        """What summary.json holds of the measures: each figure's last value, and what sums the run up."""
        if not self._wanted:
            return {}
        last: Figures = {}
        for row in rows:
            last |= row.get("measures", {})
        for measure in self._wanted:
            last |= measure.overall(rows)
        return {"measures": last}
