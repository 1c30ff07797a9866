"""What commands print: tables for people, JSON for programs, notes and errors beside them on standard error."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from unskew.base.json_text import to_json

if TYPE_CHECKING:
    from rich.table import Table as RichTable

    from unskew.runs.folder import Row


class ErrorConsole(Console):
    """A console whose reader may leave: the work continues."""

    def on_broken_pipe(self) -> None:
        """Nobody reads any more; rich would end the program."""


# a pipe or file has no width of its own: wide enough for a table not to fold
console = Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else 160)
errors = ErrorConsole(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)
"""Text stays as it is: [brackets] and :colons: are parts of methods and paths, not styles and emoji."""


def note(text: Any) -> None:
    """Prints one line on standard error."""
    errors.print(text)


def print_json(value: Any) -> None:
    """Prints one JSON object on standard output, and nothing else there."""
    sys.stdout.write(to_json(value) + "\n")


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
    rows = make_table("figure", "value", title=f"{summary['method']} on {summary['data']}, {summary['rounds']} rounds")
    for name, value in summary["accuracy"].items():
        rows.add_row(f"accuracy, {name.replace('_', ' ')}", f"{100 * value:.2f} %")
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
        rows.add_row("diverged", "yes: in some round no client sent finite numbers; lower lr")
    console.print(rows)
    console.print(f"results in {folder}", soft_wrap=True)
