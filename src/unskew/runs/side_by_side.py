"""Whole runs side by side: one scheduler, whoever plays the cells, processes of this machine or nodes of a cluster.

What comes out is what playing them one after the other gives. Where a cell fails, those before it are still played,
those behind it end where they are and can be resumed, and the error is that of the first in order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Protocol

from unskew.base.errors import InputError, one_line
from unskew.runs import engine, rules
from unskew.runs.comparison import Announce, Place
from unskew.runs.config import Run
from unskew.runs.folder import RunFolder

log = logging.getLogger(__name__)
Ended = Callable[[Place, int, int], None]
"""Told of each cell that is done, with how many are by now, and how many there are."""


class Died(Exception):
    """A cell's process ended without an answer; says how."""


class Venue(Protocol):
    """Where cells are played, several at once; each has a number."""

    retries: int
    """How often a cell whose process died is started again."""

    def count_places(self) -> int:
        """How many cells may be at work now."""

    def start(self, number: int, place: Place, watch: engine.Watch | None) -> None:
        """Begins or resumes a cell."""

    def wait(self) -> list[int]:
        """The cells that have ended; waits a while for one."""

    def collect(self, number: int) -> BaseException | None:
        """What an ended cell failed with, as it would be raised here; raises `Died` where it did not say."""

    def stop(self, numbers: Collection[int]) -> None:
        """Ends cells at work; what they have done is here afterwards, to be resumed."""

    def close(self) -> None:
        """Ends whatever is left, at once."""


def find_unfinished(places: Sequence[Place]) -> dict[int, Place]:
    """The cells that are not finished, by their numbers from 1."""
    return {number: place for number, place in enumerate(places, 1) if not RunFolder(place.path).finished}


def play_cells(
    places: Sequence[Place],
    venue: Venue,
    *,
    announce: Announce | None = None,
    ended: Ended | None = None,
    patient: bool = False,
) -> None:
    """Plays every cell that is not finished; afterwards all their folders are here.

    `patient`: where a cell fails, those behind it are played all the same, and the error comes at the end.
    """
    schedule = _Schedule(places, venue, announce, ended, patient)
    try:
        schedule.play()
    except BaseException:
        venue.stop(schedule.busy.keys())
        raise
    finally:
        venue.close()
    if schedule.failed:
        raise schedule.failed[min(schedule.failed)]


class _Schedule:
    """Cells that wait, are at work, and have failed."""

    def __init__(
        self, places: Sequence[Place], venue: Venue, announce: Announce | None, ended: Ended | None, patient: bool
    ) -> None:
        self._waiting, self._total = find_unfinished(places), len(places)
        self._venue, self._announce, self._ended, self._patient = venue, announce, ended, patient
        self._done = self._total - len(self._waiting)
        self._deaths: dict[int, int] = {}
        self.busy: dict[int, Place] = {}
        self.failed: dict[int, BaseException] = {}

    def play(self) -> None:
        """Until all are done, or those before one that failed."""
        while self._waiting or self.busy:
            while self._waiting and len(self.busy) < self._venue.count_places():
                self._start(min(self._waiting))
            for number in self._venue.wait():
                if number in self.busy:  # else it was stopped, because one before it failed
                    self._end(number)

    def _start(self, number: int) -> None:
        place = self._waiting.pop(number)
        watch = self._announce(place.run, number, self._total) if self._announce else None
        self.busy[number] = place
        self._venue.start(number, place, watch)

    def _end(self, number: int) -> None:
        place = self.busy.pop(number)
        try:
            failure = self._venue.collect(number)
        except Died as death:
            self._deaths[number] = self._deaths.get(number, 0) + 1
            if self._deaths[number] <= self._venue.retries:
                self._waiting[number] = place
                return
            times = self._deaths[number]
            failure = InputError(f"{place.path.name}: {death}" + f" ({times} times now)" * (times > 1))
        if failure is not None:
            self._fail(number, place, failure)
            return
        self._done += 1
        if self._ended is not None:
            self._ended(place, self._done, self._total)

    def _fail(self, number: int, place: Place, failure: BaseException) -> None:
        """Those behind it would not have been begun, one after the other."""
        self.failed[number] = failure
        if self._patient:
            text = str(failure).strip().rpartition("\n")[2] or one_line(failure)  # of a traceback its last line
            log.warning("%s failed: %s", place.path.name, text.removeprefix(f"{place.path.name}: "))
            return
        self._waiting = {other: place for other, place in self._waiting.items() if other < number}
        behind = [other for other in self.busy if other > number]
        self._venue.stop(behind)
        for other in behind:
            del self.busy[other]


def without_processes(run: Run, kinds: Collection[str]) -> Run:
    """The run with `serial` in the place of these executors, which gives their bits: it has one core to itself."""
    if run.execution.executor not in kinds:
        return run
    return replace(run, execution=rules.change(run.execution, executor="serial", workers=0, address="", gpus=0.0))
