"""A queue of reproductions: a file of lines, worked through at low priority, side by side, for days if need be.

A line is what follows `unskew reproduce`: a table with its --rows, --columns, --scale and --seeds, or a figure with its
--scale. Runs are taken in the order of the file; one that another queue's process has is passed over, one that was
interrupted is resumed.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from unskew.base.errors import InputError, let_pass
from unskew.recipes import find
from unskew.recipes.base import Figure, Scale, Table
from unskew.recipes.reproduce import Data, FigurePlan, Plan, identify, list_cells, make_plan, plan_figure
from unskew.runs.cells_here import play_here, run_place
from unskew.runs.comparison import Announce, Place
from unskew.runs.engine import Watch
from unskew.runs.folder import RunFolder
from unskew.runs.side_by_side import Ended

LOWEST = 19
"""The lowest priority of a process."""

TERMINAL = Path("/proc/self/autogroup")
"""Where Linux keeps the priority of all that runs in one terminal."""


@dataclass(frozen=True)
class Line:
    """One line of a queue."""

    name: str
    """The table or figure."""
    rows: str | None = None
    columns: str | None = None
    scale: Scale = "full"
    seeds: int | None = None


def read_queue(path: Path) -> list[Line]:
    """The lines of a queue's file; empty ones and comments are passed over."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # Windows begins a file with an invisible mark
    except (OSError, UnicodeDecodeError) as error:
        let_pass(error)
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise InputError(f"cannot read the queue {path}: {why}; give a text file, a line per table") from None
    lines = [
        _read_line(line, f"{path}, line {number}")
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not lines:
        raise InputError(f"the queue {path} is empty; write a line such as: fedas/t3 --rows fedper,fedas --seeds 1")
    return lines


def _read_line(text: str, where: str) -> Line:
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        raise InputError(f"{where}: {error}; close the quotes") from None
    values: dict[str, str] = {}
    name, *rest = words
    for option in rest[::2]:
        if option not in ("--rows", "--columns", "--scale", "--seeds"):
            raise InputError(f"{where}: expected --rows, --columns, --scale or --seeds, got '{option}'")
    if len(rest) % 2:
        raise InputError(f"{where}: every option needs a value, such as --rows fedas; got '{text.strip()}'")
    for option, value in zip(rest[::2], rest[1::2], strict=True):
        values[option.removeprefix("--")] = value
    scale = values.pop("scale", "full")
    if scale not in get_args(Scale):
        raise InputError(f"{where}: --scale is one of {', '.join(get_args(Scale))}, got '{scale}'")
    seeds = values.pop("seeds", None)
    if seeds is not None and not (seeds.isdecimal() and int(seeds) > 0):
        raise InputError(f"{where}: --seeds is a number of at least 1, got '{seeds}'")
    line = Line(name, values.get("rows"), values.get("columns"), scale, int(seeds) if seeds else None)  # type: ignore[arg-type]
    try:
        found = find(line.name)
        if isinstance(found, Table):
            found.select(line.rows, line.columns)
        else:
            refuse_options_of_tables({"--rows": line.rows, "--columns": line.columns, "--seeds": line.seeds}, found)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    return line


def refuse_options_of_tables(given: Mapping[str, object], figure: Figure) -> None:
    """Options that a figure does not have must not be passed over."""
    for option, value in given.items():
        if value is not None:
            raise InputError(f"{option} is for tables, and {figure.id} is a figure; leave it out")


def plan_all(lines: Sequence[Line], data: Data) -> list[Plan | FigurePlan]:
    """The plans of all lines."""
    return [plan_line(line, data) for line in lines]


def plan_line(line: Line, data: Data) -> Plan | FigurePlan:
    """What a table's or a figure's line takes."""
    found = find(line.name)
    if isinstance(found, Figure):
        return plan_figure(found, line.scale, data)
    return make_plan(found, line.scale, line.rows, line.columns, line.seeds, data)


def join_plans(plans: Sequence[Plan | FigurePlan]) -> list[Plan | FigurePlan]:
    """The lines of one table (or one figure) at one scale as one plan: they share its files."""
    joined: dict[tuple[str, Scale], Plan | FigurePlan] = {}
    for plan in plans:
        before = joined.get((plan.id, plan.scale))
        if isinstance(before, Plan) and isinstance(plan, Plan):
            plan = _join(before, plan)
        joined[plan.id, plan.scale] = plan
    return list(joined.values())


def _join(one: Plan, other: Plan) -> Plan:
    known = {(id(job.printed), identify(job.run)) for job in one.jobs}
    chosen = {id(printed) for printed in (*one.figures, *other.figures)}
    computed = {id(printed): (printed, cell) for printed, cell in (*one.computed, *other.computed)}
    return replace(
        one,
        seeds=tuple(dict.fromkeys((*one.seeds, *other.seeds))),
        figures=tuple(printed for printed in one.table.printed if id(printed) in chosen),
        jobs=(*one.jobs, *(job for job in other.jobs if (id(job.printed), identify(job.run)) not in known)),
        computed=tuple(computed.values()),
        notes=tuple(dict.fromkeys((*one.notes, *other.notes))),
    )


def work(places: Sequence[Place], jobs: int, announce: Announce | None = None, ended: Ended | None = None) -> None:
    """Takes runs until none is left that nobody has, so many at a time; what one fails with is raised at the end."""
    with _let_others_first():
        play_here(places, jobs, announce, ended=ended, play=_claim_and_run, nice=LOWEST, patient=True)


@contextmanager
def _let_others_first() -> Iterator[None]:
    """Linux shares cores between terminals first, whatever their priorities; so this one steps back as a whole."""
    before = None
    with suppress(OSError, ValueError, IndexError):  # other systems have no such thing; it is empty outside a terminal
        before = int(TERMINAL.read_text().split()[-1])
        TERMINAL.write_text(str(LOWEST))
    try:
        yield
    finally:
        if before is not None:
            with suppress(OSError):
                TERMINAL.write_text(str(before))


def _claim_and_run(place: Place, watch: Watch | None) -> None:
    with _claim(place.path) as mine:
        if mine and not RunFolder(place.path).finished:
            run_place(place, watch)


@contextmanager
def _claim(place: Path) -> Iterator[bool]:
    """Whether this process may play the run; the system lets go of the claim when the process ends, however it ends."""
    import fcntl  # not on Windows, where everything else works

    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / f".{place.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def list_places(plans: Sequence[Plan | FigurePlan], out: Path, data: Data) -> list[Place]:
    """All runs with their folders, each once."""
    cells = (cell for plan in plans for cell in list_cells(plan.runs, out / plan.scale, data))
    return list({cell.path: cell for cell in cells}.values())
