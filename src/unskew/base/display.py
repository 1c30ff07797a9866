"""How results show themselves: they ask the rooms above them, which draw and print, by name and only when it is wanted.

A run knows nothing of pictures, and matplotlib takes half a second: so nothing of this is imported before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Protocol

from unskew.base.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

X = Literal["rounds", "bytes", "seconds"]
"""What a curve is drawn over."""


class Shown(Protocol):
    """A table that notebooks show, and that gives itself as text."""

    def to_text(self, form: Literal["md", "csv", "latex", "json"] = "md") -> str:
        """The table in one of the forms."""
        ...

    def _repr_html_(self) -> str: ...


class Drawable:
    """What can be drawn, and shows itself in notebooks."""

    def plot(
        self, measure: str | None = None, *, x: X = "rounds", width: str | float | None = None, title: str = ""
    ) -> Figure:
        """Accuracy as a matplotlib figure, over rounds, bytes or seconds; `measure`: a recorded one.

        `width`: for a paper, "column", "full" or centimetres.
        """
        for what, given in (("measure", "" if measure is None else measure), ("x", x), ("title", title)):
            if not isinstance(given, str):
                raise InputError(f"{what}: expected a text, got {given!r}")
        found: Figure = import_module("unskew.report.notebook").draw(self, measure, x, width, title)
        return found

    def _repr_html_(self) -> str:
        return to_html(self)


def to_html(what: object) -> str:
    """A result as HTML, for notebooks."""
    found: str = import_module("unskew.report.notebook").to_html(what)
    return found


def make_table(what: object, title: str, **options: Any) -> Shown:
    """A comparison's table."""
    found: Shown = import_module("unskew.report.notebook").make_table(what, title, **options)
    return found


@contextmanager
def show_progress(wanted: bool) -> Iterator[Any]:
    """Bars for several runs, in a notebook or a terminal; lines elsewhere. Gives who is asked for each run, or None."""
    if not wanted:
        yield None
        return
    with import_module("unskew.cli.progress").Announcer(quiet=False) as announcer:
        yield announcer
