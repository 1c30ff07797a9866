"""Keeps the trackers of a run: what each has been shown, in tracking.json, so that nothing is shown twice or missed."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from unskew.base import storage
from unskew.base.errors import InputError, is_from_signal, one_line
from unskew.base.json_text import to_json
from unskew.runs.tracking.base import Log, Numbers, Row, TrackedRun, Tracker, flatten

log = logging.getLogger(__name__)
FILE = "tracking.json"


class Tracking:
    """The trackers of one run, each on its own: one that fails is left out from there on, and the run goes on."""

    def __init__(self, trackers: Sequence[Tracker], run: TrackedRun) -> None:
        self._run, self._file = run, run.folder / FILE if run.folder else None
        self._notes = self._read() if trackers else {}
        self._rounds = int(run.options.get("rounds", 0))
        self._waiting = [
            tracker for tracker in trackers if self._notes.get(str(tracker), {}).get("ended") != self._rounds
        ]
        self._logs: dict[str, Log] = {}

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to show, or all was shown before."""
        return not self._waiting

    def begin(self, rows: Mapping[int, Row]) -> None:
        """Begins, or goes on after what each tracker has; `rows`: the rounds that will not be run again."""
        for tracker in self._waiting:
            name = str(tracker)
            note = self._notes.setdefault(name, {"id": "", "round": -1, "ended": -1})
            self._try(name, "begin", partial(self._open, tracker, name, note))
            for number, row in sorted(rows.items()):
                if number > note["round"]:
                    self._show(name, row)

    def _open(self, tracker: Tracker, name: str, note: Row) -> None:
        self._logs[name] = tracker.begin(replace(self._run, id=note["id"]))
        note["id"] = self._logs[name].id
        self._write()

    def round(self, row: Row, again: bool) -> None:
        """A finished round; `again`: it was run before, with the same figures."""
        for name in list(self._logs):
            if not again or row["round"] > self._notes[name]["round"]:
                self._show(name, row)

    def _show(self, name: str, row: Row) -> None:
        numbers = flatten({key: own for key, own in row.items() if key != "round"})
        self._try(name, f"round {row['round']}", partial(self._show_numbers, name, row["round"], numbers))

    def _show_numbers(self, name: str, number: int, numbers: Numbers) -> None:
        self._logs[name].round(number, numbers)
        self._notes[name]["round"] = number
        self._write()

    def end(self, summary: Row) -> None:
        """The run is finished."""
        numbers = flatten({key: own for key, own in summary.items() if key != "files"})
        for name in list(self._logs):
            self._try(name, "the end", partial(self._end, name, numbers))
        self._logs.clear()

    def _end(self, name: str, numbers: Numbers) -> None:
        self._logs[name].end(numbers)
        self._notes[name]["ended"] = self._rounds  # a run of more rounds is not ended
        self._write()

    def close(self) -> None:
        """Leaves what was not ended, to go on with it later."""
        for name in list(self._logs):
            self._try(name, "the end", partial(self._logs[name].end, None))
        self._logs.clear()

    def _try(self, name: str, when: str, work: Callable[[], None]) -> None:
        if when != "begin" and name not in self._logs:
            return
        try:
            work()
        except Exception as error:
            if is_from_signal(error):
                raise
            self._logs.pop(name, None)
            place = f'; unskew track {self._run.folder} --to "{name}" shows the rest later' if self._file else ""
            log.warning("tracker %s failed at %s: %s; the run goes on without it%s", name, when, one_line(error), place)

    def _read(self) -> dict[str, Row]:
        if self._file is None or not self._file.exists():
            return {}
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
            kinds = {"id": str, "round": int, "ended": int}
            if all(isinstance(note[key], kind) for note in found.values() for key, kind in kinds.items()):
                return dict(found)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass
        raise InputError(
            f"{self._file} cannot be read, so nobody knows what trackers have been shown; restore it, or remove it to "
            "show the run from its beginning"
        )

    def _write(self) -> None:
        if self._file is not None:
            storage.write_atomic(self._file, (to_json(self._notes, indent=1) + "\n").encode(), sync=False)
