"""Progress: a bar in a terminal (standard error) or a notebook (below its cell), plain lines elsewhere."""

from __future__ import annotations

import itertools
import sys
import time
from html import escape
from types import TracebackType
from typing import Any, Protocol

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from unskew.base import progress
from unskew.cli.output import errors
from unskew.runs import engine
from unskew.runs.config import Run
from unskew.runs.folder import Row


class Bars(Protocol):
    """A display of bars, as rich has it."""

    def add_task(self, description: str, *, total: float | None, figures: str) -> Any:
        """A new bar; gives its number."""
        ...

    def update(self, task_id: Any, **fields: Any) -> None:
        """Moves a bar."""
        ...

    def remove_task(self, task_id: Any) -> None:
        """Takes a bar away."""
        ...

    def start(self) -> None:
        """Begins to show them."""
        ...

    def stop(self) -> None:
        """Ends it, and leaves no bar behind."""
        ...


class NotebookBars:
    """Bars below a notebook's cell, which every notebook can show; gone when the work is done."""

    def __init__(self) -> None:
        from IPython.display import display

        self._bars: dict[int, dict[str, Any]] = {}
        self._shown_at, self._numbers = 0.0, itertools.count()
        self._handle = display(self._make(), display_id=True)  # type: ignore[no-untyped-call]

    def add_task(self, description: str, *, total: float | None, figures: str) -> int:
        """A new bar; gives its number."""
        number = next(self._numbers)
        self._bars[number] = {"description": description, "total": total, "figures": figures, "completed": 0}
        self._show()
        return number

    def update(self, task_id: int, **fields: Any) -> None:
        """Moves a bar; shown a few times a second."""
        self._bars[task_id] |= fields
        if time.monotonic() - self._shown_at >= 0.2:
            self._show()

    def remove_task(self, task_id: int) -> None:
        """Takes a bar away."""
        self._bars.pop(task_id, None)
        self._show()

    def start(self) -> None:
        """They are there from the beginning."""

    def stop(self) -> None:
        """Takes all bars away."""
        self._bars.clear()
        self._show()

    def _show(self) -> None:
        self._shown_at = time.monotonic()
        self._handle.update(self._make())

    def _make(self) -> Any:
        from IPython.display import HTML

        lines = (
            f"<div><code>{escape(bar['description'])}</code> <progress value='{bar['completed']}' max='{bar['total']}'>"
            f"</progress> {bar['completed']}/{bar['total']} {escape(bar['figures'])}</div>"
            for bar in self._bars.values()
        )
        return HTML("".join(lines))  # type: ignore[no-untyped-call]


def is_notebook() -> bool:
    """Whether a notebook's kernel runs this program."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def make_bars(quiet: bool) -> Bars | None:
    """A display of bars in a terminal or notebook; None: lines, or nothing."""
    if quiet:
        return None
    if is_notebook():
        return NotebookBars()
    if not errors.is_terminal:
        return None
    return Progress(
        TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"), TimeRemainingColumn(), console=errors, transient=True,
    )  # fmt: skip


class RoundProgress:
    """Shows a run's rounds as they end; quiet shows nothing."""

    def __init__(self, title: str, rounds: int, quiet: bool = False, bars: Bars | None = None) -> None:
        self.title, self.rounds, self.quiet = title, rounds, quiet
        self._bar, self._shared = bars, bars is not None
        """A display of its own, or one with the bars of other runs."""
        self._first: int | None = None
        self._began, self._said, self._accuracy = time.monotonic(), 0.0, "…"

    def __enter__(self) -> RoundProgress:
        if self._bar is None:
            self._bar = make_bars(self.quiet)
        if self._bar:
            self._task = self._bar.add_task(self.title, total=self.rounds, figures="")
            self._bar.start()
        progress.listen(None if self.quiet else self.show_part)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        progress.listen(None)
        if self._bar and self._shared:
            self._bar.remove_task(self._task)
        elif self._bar:
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
    """One display for several runs, which take turns or work side by side; one that is only read back is not in it."""

    def __init__(self, quiet: bool, tell_data: bool = False) -> None:
        self.quiet, self._tell_data = quiet, tell_data
        self._bars: Bars | None = None

    def __enter__(self) -> Announcer:
        self._bars = make_bars(self.quiet)
        return self

    def __exit__(self, *_: object) -> None:
        progress.listen(None)
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, run: Run, number: int, total: int) -> engine.Watch:
        """Who watches the rounds of this run."""
        data = f", {run.data}" if self._tell_data else ""
        title = f"[{number}/{total}] {run.method}{data}, seed {run.seed}"
        return _Announced(RoundProgress(title, run.rounds, self.quiet, self._bars))


class _Announced:
    """Shows one of several runs from its first row to its last."""

    def __init__(self, shown: RoundProgress) -> None:
        self._shown, self._begun = shown, False

    def __call__(self, row: Row) -> None:
        """Shows a finished round."""
        if not self._begun:
            self._begun = True
            self._shown.__enter__()
        self._shown(row)
        if row["round"] == self._shown.rounds or "stopped" in row:
            self._shown.__exit__(None, None, None)

    def show_part(self, what: str, done: int, total: int) -> None:
        """Shows how far a round has come that is played in another process."""
        if self._begun:
            self._shown.show_part(what, done, total)


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
