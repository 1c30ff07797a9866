"""What commands print: tables for people, JSON for programs, notes and errors beside them on standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer
from rich.console import Console

from unskew.base.json_text import to_json
from unskew.base.text import count_of
from unskew.cli import streams

if TYPE_CHECKING:
    from rich.table import Table as RichTable

    from unskew.runs.folder import Row


DIVERGED = 3
"""Exit code of a run that diverged."""


class ErrorConsole(Console):
    """A console whose reader may leave, and whose disk may be full: the work continues."""

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Prints, if that is possible."""
        try:
            super().print(*args, **kwargs)
        except OSError:
            streams.discard("stderr")

    def on_broken_pipe(self) -> None:
        """Nobody reads any more; rich would end the program."""


# a pipe or file has no width of its own: wide enough for a table not to fold
console = Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout and sys.stdout.isatty() else 160)
errors = ErrorConsole(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)
"""Text stays as it is: [brackets] and :colons: are parts of methods and paths, not styles and emoji."""


def note(text: Any) -> None:
    """Prints one line on standard error."""
    errors.print(text)


_waiting: list[str] | None = None
"""What is to be printed on standard output when the command is done, while nothing else may be."""


def print_json(value: Any) -> None:
    """Prints one JSON object on standard output, and nothing else there."""
    print_result(to_json(value) + "\n")


def print_result(text: str) -> None:
    """Prints on standard output; while that is reserved, when the command is done."""
    if _waiting is None:
        sys.stdout.write(text)
    else:
        _waiting.append(text)


@contextmanager
def reserve_output() -> Iterator[None]:
    """Keeps standard output for results: what plugins print, also in workers and programs, goes to standard error."""
    global _waiting
    real, _waiting = sys.stdout, []
    try:
        with _redirect_descriptor(real), redirect_stdout(sys.stderr):
            yield
        real.write("".join(_waiting))
    finally:
        _waiting = None


@contextmanager
def _redirect_descriptor(real: TextIO) -> Iterator[None]:
    """The same for what does not go through `sys.stdout`; not where it is no file of the system."""
    try:
        real.flush()
        number, error = real.fileno(), sys.stderr.fileno()
        kept = os.dup(number)
    except (OSError, ValueError, AttributeError):
        yield
        return
    try:
        os.dup2(error, number)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, number)
        os.close(kept)


def make_table(*columns: str, title: str | None = None) -> RichTable:
    """An empty table in the house's style."""
    from rich.table import Table

    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column, header_style="bold", overflow="fold")
    return made


def show_result(summary: Row, folder: Path, as_json: bool) -> None:
    """Prints a run's figures."""
    if as_json:
        print_json(summary)
        return
    length = count_of(summary["rounds"], "round")
    rows = make_table("figure", "value", title=f"{summary['method']} on {summary['data']}, {length}")
    for name, value in summary["accuracy"].items():
        rows.add_row(f"accuracy, {name.replace('_', ' ')}", f"{100 * value:.2f} %")
    for name, value in (summary.get("personal_accuracy") or {}).items():
        rows.add_row(f"clients' own models, {name.replace('_', ' ')}", f"{100 * value:.2f} %")
    for key, whose in (("figures", ""), ("personal_figures", "clients' own models, ")):
        for name, text in describe_figures(summary.get(key) or {}).items():
            rows.add_row(whose + name, text)
    if summary["personal"]:
        figures = summary["personal"]
        rows.add_row("clients: mean accuracy", f"{100 * figures['mean']:.2f} % over {figures['clients_tested']}")
        rows.add_row("clients: worst decile", f"{100 * figures['worst_decile']:.2f} %")
    if summary["loss"] is not None:
        rows.add_row("loss", f"{summary['loss']:.4f}")
    rows.add_row("sent down / up", f"{summary['bytes_down'] / 2**20:.1f} / {summary['bytes_up'] / 2**20:.1f} MiB")
    seconds = summary["seconds"]
    rows.add_row("seconds", ", ".join(f"{kind} {seconds[kind]:.1f}" for kind in seconds))
    if summary["diverged"]:
        rows.add_row("diverged", _explain_divergence(summary))
    console.print(rows)
    console.print(f"results in {folder}", soft_wrap=True)


def exit_if_diverged(summary: Row) -> None:
    """Ends the command with the exit code of a run that diverged, if it did."""
    if summary["diverged"]:
        raise typer.Exit(DIVERGED)


def describe_figures(figures: Mapping[str, float | None]) -> dict[str, str]:
    """Figures beyond accuracy as they are shown; those that are not defined are left out."""
    from unskew.measures.classification import NAMES

    found = {label: figures.get(name) for name, label in NAMES.items()}
    return {label: f"{100 * value:.2f} %" for label, value in found.items() if value is not None}


def _explain_divergence(summary: Row) -> str:
    where = f"in round {summary['diverged_in']}" if summary.get("diverged_in") else "in some round"
    why = summary.get("stopped") or "no client sent finite numbers, or a loss in the tests is not finite"
    return f"{where}: {why}; lower lr, or see the warnings"
