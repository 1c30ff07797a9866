"""What a recipe is: a function from a printed row of a paper's table to the run that gives its figure.

A `Table` is one published table: its printed figures come with the package (`printed/*.csv`), and its recipe, a short
function below `recipes/`, returns a `Cell` for each of them: the run in the paper's protocol, and what is read from it.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from typing import Any, Literal, TypeVar

from unskew.base.errors import InputError
from unskew.base.registry import nearest
from unskew.runs.config import Run, from_table
from unskew.runs.folder import Row

Scale = Literal["full", "cpu", "smoke"]
SCALES: tuple[Scale, ...] = ("full", "cpu", "smoke")
Keys = Mapping[str, str]
"""What names a printed figure: the columns of its row in the CSV; `value` where a row holds several figures."""


@dataclass(frozen=True)
class Finished:
    """A finished run, as far as figures are read from it."""

    run: Run
    summary: Row
    rounds: Sequence[Row]
    clients: Sequence[Row]


Read = Callable[[Finished], "float | None"]
"""A figure in the table's unit; None where the run has none, such as an accuracy that it never reached."""


@dataclass(frozen=True)
class Cell:
    """How one printed figure is had: a run, and what is read from it."""

    run: Run
    """The run in the paper's protocol, under any seed."""
    read: Read
    against: Run | None = None
    """The run whose figure it is divided by (or, with `inverse`, divides): relative times and speed-ups."""
    inverse: bool = False
    images_matter: bool = True
    """False: generated images of the same number and classes give the same figure, such as bytes."""


@dataclass(frozen=True)
class Computed:
    """A figure that no training gives: a setting, the bytes of a message, the time of a loss."""

    compute: Callable[[Scale], float | str]


Recipe = Callable[[Keys], "Cell | Computed"]
R = TypeVar("R", bound=Recipe)


@dataclass(frozen=True)
class Printed:
    """One printed figure."""

    keys: Keys
    text: str
    """As printed: a number, or such as 200+ or failed."""
    std: float | None
    row: str
    column: str

    @property
    def value(self) -> float | None:
        """The number, if it is one."""
        return float(self.text) if _is_number(self.text) else None


@dataclass(frozen=True)
class Paper:
    """A paper, its seeds, and how its runs are reduced for a machine without a GPU."""

    name: str
    title: str
    seeds: tuple[int, ...]
    """The seeds of its runs where they are known, else as many as it ran, from our numbers."""
    cpu: Callable[[Run], Run]
    """The reduction: keeps what the claims depend on."""
    cpu_text: str
    """What the reduction is and keeps, in words."""
    tables: dict[str, Table] = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)

    def table(self, name: str, file: str, title: str, unit: str = "%", **layout: Any) -> Callable[[R], R]:
        """Registers the recipe of a table; see `Table` for the layout."""

        def register(recipe: R) -> R:
            self.tables[name] = Table(self, name, file, title, unit, recipe, **layout)
            return recipe

        return register

    def figure(self, name: str, title: str, runs: Runs) -> Callable[[Sketch], Sketch]:
        """Registers the recipe of a figure: its runs, and how it is drawn of them."""

        def register(sketch: Sketch) -> Sketch:
            self.figures[name] = Figure(self, name, title, runs, sketch)
            return sketch

        return register


@dataclass(frozen=True)
class Table:
    """A published table: printed figures and the recipe that gives each of them."""

    paper: Paper
    name: str
    file: str
    """The CSV of the printed figures, below `printed`."""
    title: str
    unit: str
    recipe: Recipe
    rows: tuple[str, ...] = ("method",)
    """CSV columns that name a row."""
    columns: tuple[str, ...] = ()
    """CSV columns that name a column of the table."""
    values: tuple[str, ...] = ("accuracy",)
    """CSV columns that hold printed figures; with several, their names are part of the column's name."""
    std: str | None = None
    """CSV column of the printed standard deviation."""
    derived: Keys = field(default_factory=dict)
    """Rows that the paper computed from others: not run, recomputed by the reader."""
    short: Keys = field(default_factory=dict)
    """Short names of CSV columns, as the paper has them: P for online_ratio."""
    seeds: int | None = None
    """How many runs its figures are of, where the paper's other tables have more."""
    spread: Literal["seeds", "clients"] = "seeds"
    """Over what the printed standard deviation is."""
    comparable: bool = True
    """Whether the printed figures depend on the method alone, not on the paper's machine."""

    @property
    def id(self) -> str:
        """`paper/name`, as the command line has it."""
        return f"{self.paper.name}/{self.name}"

    @cached_property
    def printed(self) -> tuple[Printed, ...]:
        """The printed figures, in the table's order."""
        return tuple(self._read())

    def _read(self) -> Iterator[Printed]:
        place = resources.files("unskew.recipes") / "printed" / f"{self.file}.csv"
        for line in csv.DictReader(place.read_text(encoding="utf-8").splitlines()):
            if any(line[key] == value for key, value in self.derived.items()):
                continue
            keys = {key: text for key, text in line.items() if key not in (*self.values, self.std)}
            for value in self.values:
                more = {"value": value} if len(self.values) > 1 else {}
                std = (
                    float(line[self.std])
                    if self.std and value == self.values[0] and _is_number(line[self.std])
                    else None
                )
                if line[value] == "":
                    continue
                yield Printed({**keys, **more}, line[value], std, self._label(keys, self.rows), self._head(keys, more))

    def _label(self, keys: Keys, names: Sequence[str]) -> str:
        shown = [keys[name] if name in ("method", "dataset", "domain", "variant", "configuration", "setting", "model")
                 else f"{self.short.get(name, name)}={keys[name]}" for name in names if keys[name]]  # fmt: skip
        return ", ".join(shown)

    def _head(self, keys: Keys, more: Keys) -> str:
        parts = [self._label(keys, self.columns), more.get("value", "")]
        return ", ".join(part for part in parts if part) or self.values[0]

    def select(self, rows: str | None, columns: str | None) -> tuple[Printed, ...]:
        """The figures of these rows (names, by commas) and columns (`P=0.2`, or a word of the column's name)."""
        chosen = self.printed
        if rows is not None:
            known = list(dict.fromkeys(figure.row for figure in self.printed))
            wanted = _split_rows(rows, known)
            if not wanted:
                raise InputError(f"{self.id}: --rows names no row; known: {'; '.join(known)}")
            for word in wanted:
                if not any(_names(word, row) for row in known):
                    raise InputError(f"{self.id} has no row '{word}'; {nearest(word, known, '; ')}")
            self._check_one_kind(wanted, known)
            chosen = tuple(figure for figure in chosen if any(_names(word, figure.row) for word in wanted))
        if columns is not None and not _split(columns):
            raise InputError(f"{self.id}: --columns names no column; give one such as {self.printed[0].column}")
        conditions = _split(columns or "")
        for number, word in enumerate(conditions):
            found = tuple(figure for figure in chosen if self._in_column(word, figure))
            if not found:
                heads = list(dict.fromkeys(figure.column for figure in chosen))
                where = f" together with {', '.join(conditions[:number])}" if number else ""
                raise InputError(f"{self.id} has no column '{word}'{where} in these rows; known: {'; '.join(heads)}")
            chosen = found
        return chosen

    def _check_one_kind(self, wanted: Sequence[str], known: Sequence[str]) -> None:
        """Parts of names by commas must be of one kind: `PA=0, CS=0` is one row, not those with either."""
        kinds = {
            place for word in wanted for row in known if _plain(word) != _plain(row)
            for place, part in enumerate(row.split(", ")) if _plain(part) == _plain(word)
        }  # fmt: skip
        if len(kinds) > 1:
            raise InputError(
                f"{self.id}: --rows {', '.join(wanted)} names parts of different kinds; rows have commas in their "
                f"names here: give names whole, several with semicolons between them; known: {'; '.join(known)}"
            )

    def _in_column(self, word: str, figure: Printed) -> bool:
        key, equals, value = word.partition("=")
        long = {short.lower(): name for name, short in self.short.items()}
        name = long.get(key.strip().lower(), key.strip())
        if equals and name in figure.keys:
            return _same(figure.keys[name], value.strip())
        return word.lower() in [part.lower() for part in figure.column.split(", ")]


Runs = Callable[[], Mapping[Any, Run]]
"""A figure's runs in the paper's protocol, each under the name that the sketch knows it by."""
Found = Mapping[Any, Finished]
"""The same runs, finished, at the scale that the user chose."""
Sketch = Callable[[Found], "Drawn"]
"""Makes a figure of its finished runs."""


@dataclass(frozen=True)
class Drawn:
    """Lines to be drawn, with what they show."""

    lines: Mapping[str, Sequence[tuple[float, float]]]
    x: str
    y: str
    kind: Literal["line", "bar", "scatter"] = "line"
    ticks: tuple[str, ...] = ()
    """Names of the places 0, 1, … on the x axis."""
    note: str = ""
    """What the paper shows there, in words."""


@dataclass(frozen=True)
class Figure:
    """A figure of a paper, made anew."""

    paper: Paper
    name: str
    title: str
    runs: Runs
    sketch: Sketch

    @property
    def id(self) -> str:
        """`paper/name`, as the command line has it."""
        return f"{self.paper.name}/{self.name}"


def make_run(protocol: Mapping[str, Any], **more: Any) -> Run:
    """A run from a paper's protocol and what this cell has besides; `local` and `evaluation` are merged."""
    table = {**protocol, **more}
    for section in ("local", "evaluation"):
        table[section] = {**protocol.get(section, {}), **more.get(section, {})}
    return from_table(table)


def _split_rows(text: str, known: Sequence[str]) -> list[str]:
    """The named rows, by semicolons, or by commas where no name of a row has them: such names count first, whole."""
    if ";" in text:
        return [word.strip() for word in text.split(";") if word.strip()]
    words, found, names = _split(text), [], {_plain(row) for row in known}
    while words:
        size = next((size for size in range(len(words), 1, -1) if _plain(", ".join(words[:size])) in names), 1)
        found.append(", ".join(words[:size]))
        words = words[size:]
    return found


def _split(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _names(word: str, row: str) -> bool:
    """Whether a word names a row: all of it, or one of its parts; case and hyphens do not matter."""
    plain = _plain(word)
    return plain == _plain(row) or plain in [_plain(part) for part in row.split(", ")]


def _plain(text: str) -> str:
    return text.lower().replace("-", "").replace("_", "").replace(" ", "")


def _same(one: str, other: str) -> bool:
    if _is_number(one) and _is_number(other):
        return float(one) == float(other)
    return _plain(one) == _plain(other)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
