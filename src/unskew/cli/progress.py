"""Progress on standard error: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from unskew.base import progress
from unskew.cli.output import errors
from unskew.runs import engine
from unskew.runs.config import Run
from unskew.runs.folder import Row


class RoundProgress:
    """Shows a run's rounds as they end; quiet shows nothing."""

    def __init__(self, title: str, rounds: int, quiet: bool = False) -> None:
        self.title, self.rounds, self.quiet = title, rounds, quiet
        self._bar: Progress | None = None
        self._first: int | None = None
        self._began, self._said, self._accuracy = time.monotonic(), 0.0, "…"

    def __enter__(self) -> RoundProgress:
        if not self.quiet and errors.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
                TextColumn("{task.fields[figures]}"), TimeRemainingColumn(), console=errors, transient=True,
            )  # fmt: skip
            self._task = self._bar.add_task(self.title, total=self.rounds, figures="")
            self._bar.start()
        progress.listen(None if self.quiet else self.show_part)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        progress.listen(None)
        if self._bar:
            self._bar.stop()

    def show_part(self, what: str, done: int, total: int) -> None:
        """Shows how far a round's long work has come."""
        text = f"{what} {done}/{total}"
        if self._bar:
            self._bar.update(self._task, figures=f"accuracy {self._accuracy} · {text}")
        elif time.monotonic() - self._said >= 5:
            self._said = time.monotonic()
            errors.print(f"{self.title}: {text}")

    def __call__(self, row: Row) -> None:
        """Shows a finished round."""
        number = row["round"]
        if self._first is None:
            self._first, self._began = number, time.monotonic()
        if "accuracy" in row:
            self._accuracy = f"{100 * row['accuracy']:.2f} %"
        elif row.get("personal", {}).get("pooled") is not None:
            self._accuracy = f"{100 * row['personal']['pooled']:.2f} %"
        passed = max(time.monotonic() - self._began, 1e-9)
        rate = (number - self._first) / passed
        figures = f"accuracy {self._accuracy}" + (f" · {rate:.1f} rounds/s" if rate else "")
        if self._bar:
            self._bar.update(self._task, completed=number, figures=figures)
        elif not self.quiet and (number == self.rounds or time.monotonic() - self._said >= 1):
            self._said = time.monotonic()
            left = (self.rounds - number) / rate if rate else 0.0
            tail = f" · {left:.0f} s left" if number < self.rounds and rate else ""
            errors.print(f"{self.title}: round {number}/{self.rounds} · {figures}{tail}")


class Announcer:
    """Gives each of several runs a progress of its own; one that is only read back has none."""

    def __init__(self, quiet: bool, tell_data: bool = False) -> None:
        self.quiet, self._tell_data = quiet, tell_data
        self._shown: RoundProgress | None = None

    def __enter__(self) -> Announcer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown is not None:
            self._shown.__exit__(None, None, None)
            self._shown = None

    def __call__(self, run: Run, number: int, total: int) -> engine.Watch:
        """Who watches the rounds of this run."""
        data = f", {run.data}" if self._tell_data else ""
        title = f"[{number}/{total}] {run.method}{data}, seed {run.seed}"

        def watch(row: Row) -> None:
            if self._shown is None or self._shown.title != title:
                self.__exit__()  # of a run that diverged and stopped early
                self._shown = RoundProgress(title, run.rounds, self.quiet).__enter__()
            self._shown(row)
            if row["round"] == run.rounds:
                self.__exit__()

        return watch


class DownloadProgress:
    """Shows a download's megabytes, a line every few seconds."""

    def __init__(self) -> None:
        self._said = 0.0

    def __call__(self, name: str, done: int, total: int | None) -> None:
        """Shows the bytes that have arrived."""
        if time.monotonic() - self._said >= 2 or done == total:
            self._said = time.monotonic()
            of = f" of {total / 2**20:.1f}" if total else ""
            errors.print(f"downloading {name}: {done / 2**20:.1f}{of} MB")
