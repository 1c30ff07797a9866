"""Runs as they go on, read from their folders alone: rows as they are appended, who is at work, how long it takes.

Nothing is written, nothing is locked, and no process is asked: a folder that machines share is enough.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import shlex
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from unskew.base.errors import InputError
from unskew.base.text import count_of
from unskew.report.memory import measure_memory
from unskew.runs.comparison import read_plan
from unskew.runs.config import read_file
from unskew.runs.folder import Owner, Row, find_owner
from unskew.runs.rows import is_row, parse
from unskew.runs.saved import SavedRun

Phase = Literal[
    "starting",
    "training",
    "testing",
    "finishing",
    "finished",
    "diverged",
    "stopped",
    "interrupted",
    "silent",
    "damaged",
]
"""Where a run is. `silent`: nothing was written for long, and nobody can tell; `stopped`: it diverged and ended."""
ENDED: tuple[Phase, ...] = ("finished", "diverged", "stopped")
BARS, PLAIN_BARS = "▁▂▃▄▅▆▇█", "_.-=+*#"
RECENT = 20
"""Rounds over which the usual time of a round is taken."""
PATIENCE, LEAST = 5.0, 20.0
"""Nothing for so many usual rounds, and at least so many seconds, is worth a word."""
GRACE = 20.0
"""Seconds without a new row or run after which a folder whose runs are all finished is taken to be done."""
_CHECKPOINT = re.compile(r"round-(\d+)\.")


class Tail:
    """The rows of a growing .jsonl file: each is read once; a line that is half there is left for the next time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged = 0
        """Whole lines that are no rows."""
        self._place, self._file = 0, 0

    def read(self) -> tuple[list[Row], bool]:
        """The rows since the last call, and whether the file is another one than before, so that all counts anew."""
        try:
            with self.path.open("rb") as file:
                about = os.fstat(file.fileno())
                anew = self._place > 0 and (about.st_ino != self._file or about.st_size < self._place)
                if anew:
                    self._place, self.damaged = 0, 0
                self._file = about.st_ino
                file.seek(self._place)
                found = file.read()
        except OSError:  # not there yet, removed, or not for us to read
            anew, self._place = self._place > 0, 0
            return [], anew
        whole = found[: found.rfind(b"\n") + 1]
        self._place += len(whole)
        return [row for line in whole.splitlines() if (row := self._parse(line))], anew

    def _parse(self, line: bytes) -> Row | None:
        if is_row(row := parse(line), "round"):
            found: Row = row
            return found
        self.damaged += 1
        return None


@dataclass(frozen=True)
class RunView:
    """How a run stands."""

    path: Path
    method: str
    seed: int | None
    phase: Phase
    done: int
    rounds: int
    curve: tuple[float, ...] = ()
    """Accuracy of the tested rounds."""
    personal: bool = False
    """Whether it is of the clients' own models."""
    rate: float | None = None
    """Rounds a second."""
    left: float | None = None
    """Seconds."""
    excluded: int = 0
    dropped: int = 0
    memory: int | None = None
    """Bytes of its processes, if they are on this machine."""
    note: str = ""

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.phase in ENDED


@dataclass(frozen=True)
class View:
    """How all of them stand."""

    runs: tuple[RunView, ...]
    over: bool
    """Whether all is finished."""
    notes: tuple[str, ...] = ()
    awaited: int = 0
    """Cells of a comparison that have not begun."""

    @property
    def counts(self) -> dict[str, int]:
        """How many runs are in which phase, in a fixed order."""
        order: dict[str, int] = dict.fromkeys(
            ("finished", "diverged", "stopped", "finishing", "testing", "training", "starting", "interrupted", "silent",
             "damaged"), 0,
        )  # fmt: skip
        for run in self.runs:
            order[run.phase] += 1
        return {phase: count for phase, count in {**order, "not begun": self.awaited}.items() if count}


@dataclass
class _Figures:
    """What is kept of a row."""

    accuracy: float | None
    pooled: float | None
    train: float
    whole: float
    excluded: int
    dropped: int
    diverged: bool
    stopped: bool


class WatchedRun:
    """One run's folder, read again and again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tail = Tail(path / "rounds.jsonl")
        self._rows: dict[int, _Figures] = {}
        self._about: Row = {}
        self._problem = ""
        self._named_at = 0.0
        self._edited, self._checked_at = "", 0.0

    @property
    def gone(self) -> bool:
        """Whether the run was removed."""
        return not (self.path / "run.toml").is_file()

    def look(self, now: float) -> RunView:
        """How it stands; `now`: seconds since 1970."""
        finished = (self.path / "summary.json").is_file()  # first: the rows were written before it
        rows, anew = self._tail.read()
        if anew:
            self._rows.clear()
        self._rows |= {row["round"]: _pick(row) for row in rows}
        self._read_about()
        if finished:
            self._check_rows()
        owner = Owner(None) if finished else find_owner(self.path)
        silent = max(now - self._written_at, 0.0)
        phase = self._find_phase(finished, owner, silent)
        active = phase in ("training", "testing")
        _, each = self._usual
        done, rounds = max(self._rows, default=0), int(self._about.get("rounds", 0))
        left = max((rounds - done) * each - min(silent, each), 0.0) if active and each else None
        values = [row.accuracy for _, row in sorted(self._rows.items())]
        personal = all(value is None for value in values)
        if personal:
            values = [row.pooled for _, row in sorted(self._rows.items())]
        return RunView(
            self.path,
            str(self._about.get("method", "?")),
            self._about.get("seed"),
            phase,
            done,
            rounds,
            tuple(value for value in values if value is not None),
            personal and any(value is not None for value in values),
            1 / each if each else None,
            left,
            sum(row.excluded for row in self._rows.values()),
            sum(row.dropped for row in self._rows.values()),
            measure_memory(owner.pid) if owner.pid is not None else None,
            self._explain(phase, owner, silent),
        )

    def _read_about(self) -> None:
        """What is run: once, and again where run.toml changes."""
        with suppress(OSError):
            changed = (self.path / "run.toml").stat().st_mtime
            if changed == self._named_at:
                return
            self._named_at, self._problem = changed, ""
            try:
                self._about = SavedRun(self.path).about
                self._every = read_file(self.path / "run.toml").get("evaluation", {}).get("every", 1)
            except InputError as error:
                self._problem = str(error)

    def _check_rows(self) -> None:
        """Whether the rows of a finished run are those that it wrote: once, and again where they change."""
        with suppress(OSError):
            changed = (self.path / "rounds.jsonl").stat().st_mtime
            if changed != self._checked_at:
                self._checked_at, self._edited = changed, ""
                try:
                    SavedRun(self.path).rounds  # noqa: B018
                except InputError as error:
                    self._edited = str(error)

    @property
    def _written_at(self) -> float:
        for name in ("rounds.jsonl", "run.toml"):
            with suppress(OSError):
                return (self.path / name).stat().st_mtime
        return time.time()

    @property
    def _usual(self) -> tuple[float, float]:
        """Seconds that a round's training and a whole round take."""
        recent = [row for number, row in sorted(self._rows.items())[-RECENT:] if number]
        if not recent:
            return 0.0, 0.0
        return statistics.median(row.train for row in recent), statistics.fmean(row.whole for row in recent)

    def _find_phase(self, finished: bool, owner: Owner, silent: float) -> Phase:
        rows = self._rows.values()
        if self._edited or (self._problem and not self._about):
            return "damaged"
        if finished:
            if any(row.stopped for row in rows):
                return "stopped"
            return "diverged" if any(row.diverged for row in rows) else "finished"
        if owner.held is False:
            return "interrupted"
        if owner.held is None and self._is_long(silent):
            return "silent"
        if not self._rows:
            return "starting"
        done, rounds = max(self._rows), int(self._about.get("rounds", 0))
        if done >= rounds or any(row.stopped for row in rows):
            return "finishing"
        train, whole = self._usual
        tested = self._every and ((done + 1) % self._every == 0 or done + 1 == rounds)
        return "testing" if tested and train and train < silent <= PATIENCE * whole else "training"

    def _is_long(self, silent: float) -> bool:
        return silent > max(LEAST, PATIENCE * self._usual[1])

    def _explain(self, phase: Phase, owner: Owner, silent: float) -> str:
        ago = describe_seconds(silent)
        if phase == "damaged":
            return self._edited or self._problem
        if phase == "interrupted":
            command = f"unskew resume {shlex.quote(str(self.path))}"
            return f"interrupted or killed {ago} ago{self._describe_checkpoint()}; '{command}' continues"
        if phase == "silent":
            return f"nothing written for {ago}; killed, or a long round"
        if phase not in ENDED and owner.held and self._is_long(silent):
            return f"nothing written for {ago}; a long round, or rounds that are run again after an interruption"
        if self._tail.damaged:
            return f"{count_of(self._tail.damaged, 'line')} of rounds.jsonl cannot be read"
        return ""

    def _describe_checkpoint(self) -> str:
        found = [_CHECKPOINT.match(path.name) for path in (self.path / "checkpoint").glob("round-*")]
        last = max((int(match[1]) for match in found if match), default=None)
        return ", before its first checkpoint" if last is None else f", checkpoint of round {last}"

    _every: int = 1


def _pick(row: Row) -> _Figures:
    seconds = {name: value for name, value in row.get("seconds", {}).items() if isinstance(value, (int, float))}
    train = seconds.get("local", 0.0) + seconds.get("aggregate", 0.0)
    return _Figures(
        row.get("accuracy"), (row.get("personal") or {}).get("pooled"), train,
        train + seconds.get("evaluate", 0.0) + seconds.get("measure", 0.0), len(row.get("excluded", ())),
        len(row.get("dropped", ())), bool(row.get("diverged")), "stopped" in row,
    )  # fmt: skip


class Watching:
    """A folder that is a run or holds some, now or later."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs: dict[Path, WatchedRun] = {}
        self._seen_running = False
        self._changed_at = 0.0
        self._last: tuple[object, ...] = ()

    def look(self, now: float | None = None) -> View:
        """How everything stands."""
        now = time.time() if now is None else now
        self._find()
        plan = read_plan(self.folder)
        place = {name: number for number, name in enumerate(plan)}
        ordered = sorted(self._runs, key=lambda path: (place.get(path.name, len(plan)), path))
        shown = tuple(self._runs[path].look(now) for path in ordered if not self._runs[path].gone)
        newest = tuple((run.path, run.done, run.phase) for run in shown)
        if newest != self._last:
            self._last, self._changed_at = newest, now
        self._seen_running = self._seen_running or not all(run.ended for run in shown)
        awaited = len(place.keys() - {run.path.name for run in shown})
        return View(shown, self._is_over(shown, awaited, now), self._make_notes(shown), awaited if shown else 0)

    def _find(self) -> None:
        for path in [path for path, run in self._runs.items() if run.gone]:
            del self._runs[path]
        for place, folders, files in os.walk(self.folder):
            folders[:] = sorted(name for name in folders if name != "checkpoint" and not name.startswith("."))
            if "run.toml" in files:
                self._runs.setdefault(Path(place), WatchedRun(Path(place)))

    def _is_over(self, shown: Sequence[RunView], awaited: int, now: float) -> bool:
        """All runs are finished, and the comparison has its table, or no other run began for a while."""
        if not shown or not all(run.ended for run in shown):
            return False
        if self._is_one(shown):
            return True
        if not awaited and self._is_comparison and self._has_table(shown):
            return True
        return not (self._seen_running or self._is_comparison or awaited) or now - self._changed_at >= GRACE

    @property
    def _is_comparison(self) -> bool:
        return (self.folder / "runs").is_dir()

    def _is_one(self, shown: Sequence[RunView]) -> bool:
        return len(shown) == 1 and shown[0].path == self.folder

    def _has_table(self, shown: Sequence[RunView]) -> bool:
        """Whether the table of these runs is there."""
        with suppress(OSError, ValueError, AttributeError, TypeError):
            table = json.loads((self.folder / "table.json").read_text(encoding="utf-8"))
            return {run.path.name for run in shown if run.path.parent.name == "runs"} <= set(
                table["comparison"]["runs"]
            )
        return False

    def _make_notes(self, shown: Sequence[RunView]) -> tuple[str, ...]:
        if shown:
            return ()
        if not self.folder.is_dir():
            return (f"waiting for {self.folder}, which is not there yet",)
        return (f"waiting for a run in {self.folder}",)


def draw_sparkline(values: Sequence[float], width: int, low: float, high: float, plain: bool = False) -> str:
    """Values as a line of bars, from `low` to `high`; more values than room are taken together by their means."""
    bars = PLAIN_BARS if plain else BARS
    if not values or width < 1:
        return ""
    if len(values) > width:
        edges = [round(place * len(values) / width) for place in range(width + 1)]
        values = [statistics.fmean(values[start:end]) for start, end in itertools.pairwise(edges)]
    spread = high - low
    places = [(value - low) / spread if spread > 0 else 0.5 for value in values]
    return "".join(bars[min(max(math.floor(place * len(bars)), 0), len(bars) - 1)] for place in places)


def describe_seconds(seconds: float) -> str:
    """A time as people say it: 42 s, 5 min, 2 h 10 min, 3 d 4 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def describe_rate(rate: float) -> str:
    """Rounds a second, or a minute or hour where that is below one: 3.3/s."""
    for unit, seconds in (("s", 1), ("min", 60), ("h", 3600)):
        if rate * seconds >= 1 or unit == "h":
            return f"{rate * seconds:.1f}/{unit}"
    raise AssertionError
