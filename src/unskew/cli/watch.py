"""`unskew watch`: runs while they go on, in a terminal or as a local page; reads their folders and nothing else."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from unskew.base.errors import InputError
from unskew.base.text import count_of
from unskew.cli import signals
from unskew.cli.output import console
from unskew.report.watching import (
    RunView,
    View,
    Watching,
    describe_rate,
    describe_seconds,
    draw_sparkline,
)

LOOKS = {
    "finished": "green", "diverged": "red", "stopped": "red", "interrupted": "yellow", "silent": "yellow",
    "damaged": "red", "training": "cyan", "testing": "cyan", "starting": "dim", "finishing": "cyan",
}  # fmt: skip
STEP = 0.2
"""Seconds between two looks at the terminal's size."""


def watch(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="a run, a comparison, or a folder that holds runs")],
    every: Annotated[float, typer.Option(help="seconds between two looks", min=0.1, max=3600)] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="print one view and end")] = False,
    serve: Annotated[
        bool, typer.Option("--serve", help="also show the report as a page of this machine that refreshes itself")
    ] = False,
    port: Annotated[int, typer.Option(help="of that page; 0: any that is free", min=0, max=65535)] = 0,
) -> None:
    """Shows runs while they go on, from another terminal or machine: curves, phase, time left; or as a local page.

    It ends when all is finished; Ctrl-C leaves it, the runs go on.
    """
    if once and serve:
        raise InputError("--once ends at once, and --serve goes on; give one of them")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give a run's folder, or one that holds runs")
    watching = Watching(folder)
    live = console.is_terminal and not console.is_dumb_terminal and not once
    if not live and not serve:
        _print_once(watching)
        return
    signals.explain(lambda: "the runs go on")
    # not of the size that a shell may have exported long ago
    fresh = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    screen = Console(highlight=False, markup=False, emoji=False, _environ=fresh)
    try:
        with ExitStack() as stack:
            line = ""
            if serve:
                from unskew.report.serving import serve_page

                line = f"report: {stack.enter_context(serve_page(folder, port))}"
            view = _follow(watching, screen, every, line) if live else _wait(line)
    except KeyboardInterrupt:
        if not signals.take_interrupt():
            raise
        view = watching.look()
    if live:
        screen.print(draw(view, folder, screen))


def _print_once(watching: Watching) -> None:
    view = watching.look()
    if not view.runs:
        raise InputError(f"there are no runs in {watching.folder}; give a run's folder, or one that holds runs")
    console.print(draw(view, watching.folder, console, whole=True))


def _wait(line: str) -> View:
    """Serves the page until a signal comes."""
    console.print(line, soft_wrap=True)
    console.file.flush()
    while True:
        time.sleep(3600)


def _follow(watching: Watching, screen: Console, every: float, line: str) -> View:
    """Shows view after view until all is finished; with a page, until Ctrl-C. Gives the last one."""
    view = watching.look()
    with Live(console=screen, screen=True, auto_refresh=False) as live:
        while not view.over or line:
            live.update(draw(view, watching.folder, screen, line), refresh=True)
            until, size = time.monotonic() + every, screen.size
            while (left := until - time.monotonic()) > 0:
                time.sleep(min(STEP, left))
                if screen.size != size:  # the terminal was resized
                    size = screen.size
                    live.update(draw(view, watching.folder, screen, line), refresh=True)
            view = watching.look()
    return view


def draw(view: View, folder: Path, on: Console, line: str = "", whole: bool = False) -> RenderableType:
    """A view for a terminal of this size; `line` stands below it, `whole`: all runs, however many."""
    parts: list[RenderableType] = []
    if len(view.runs) == 1 and not view.awaited:
        parts.append(_draw_one(view.runs[0], on))
    elif view.runs:
        room = len(view.runs) if whole else max(on.height - 6 - bool(line), 3)
        parts.append(_draw_many(view, folder, on, room))
    parts += [Text(note, style="yellow") for note in view.notes]
    if line:
        parts.append(Text(line, style="bold"))
    if not view.over and not whole:
        parts.append(Text("Ctrl-C leaves; runs go on", style="dim"))
    return Group(*parts)


def _draw_one(run: RunView, on: Console) -> RenderableType:
    width = on.width
    lines = Table.grid(padding=(0, 2, 0, 0), expand=False)
    lines.add_column(style="dim", no_wrap=True)
    lines.add_column(overflow="fold")
    seed = "" if run.seed is None else f", seed {run.seed}"
    lines.add_row("run", Text(f"{run.method}{seed}", style="bold"))
    share = run.done / run.rounds if run.rounds else 0.0
    bar = max(min(width - 40, 40), 0)
    filled = round(bar * share)
    done = Text(f"{run.done}/{run.rounds} rounds  ")
    done.append(("#" if _is_plain(on) else "━") * filled, style="cyan")
    done.append(("-" if _is_plain(on) else "─") * (bar - filled), style="dim")
    lines.add_row("phase", Text(run.phase, style=LOOKS[run.phase]))
    if run.note:
        lines.add_row("", Text(run.note, style="yellow"))
    lines.add_row("progress", done)
    if run.curve:
        low, high = min(run.curve), max(run.curve)
        spark = draw_sparkline(run.curve, max(min(width - 14, 60), 4), low, high, _is_plain(on))
        whose = "clients' own models, pooled" if run.personal else "global model"
        lines.add_row("accuracy", Text(spark, style="blue", no_wrap=True, overflow="crop"))
        lines.add_row("", f"{100 * run.curve[-1]:.2f} % last, {100 * low:.2f} to {100 * high:.2f} %; {whose}")
    pace = [
        f"rounds at {describe_rate(run.rate)}" if run.rate else "",
        f"{describe_seconds(run.left)} left" if run.left else "",
    ]
    if any(pace):
        lines.add_row("pace", ", ".join(text for text in pace if text))
    if run.excluded or run.dropped:
        lines.add_row("clients", f"{run.excluded} replies excluded, {run.dropped} dropped out")
    if run.memory is not None:
        lines.add_row("memory", _describe_bytes(run.memory))
    lines.add_row("folder", str(run.path))
    return lines


def _draw_many(view: View, folder: Path, on: Console, room: int) -> RenderableType:
    """One line a run; where there is no room for all, those at work first."""
    runs = sorted(view.runs, key=lambda run: run.ended)[: max(room - 1, 1)] if len(view.runs) > room else view.runs
    shown = [run for run in view.runs if run in runs]
    noted = {run.path: run.note for run in shown if run.note}
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), expand=False, show_edge=False)
    columns = _choose_columns(view, on.width)
    known = [(run.method, run.seed) for run in view.runs]
    names = [_name(run, "seed" not in columns, known.count((run.method, run.seed)) > 1) for run in shown]
    taken = sum(width + 1 for width in columns.values())
    free = on.width - taken
    curve = 0 if free < 24 else min(max(free // 3, 8), 24)
    longest = max(free - (curve + 1 if curve else 0) - 1, 8)
    table.add_column("method", header_style="bold", no_wrap=True, overflow="ellipsis", max_width=longest)
    for name, width in columns.items():
        left = name == "phase"
        table.add_column(name, header_style="bold", no_wrap=True, width=width, justify="left" if left else "right")
    if curve:
        table.add_column(
            "accuracy over rounds" if curve >= 20 else "accuracy", header_style="bold", no_wrap=True, width=curve
        )
    values = [value for run in view.runs for value in run.curve]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    for run, name in zip(shown, names, strict=True):
        spark = draw_sparkline(run.curve, curve, low, high, _is_plain(on))
        cells = [Text(_fill(run, column), style=LOOKS[run.phase] if column == "phase" else "") for column in columns]
        table.add_row(Text(name), *cells, *([Text(spark, style="blue")] if curve else []))
    counts = ", ".join(f"{count} {phase}" for phase, count in view.counts.items())
    heading = Text(f"{folder}: {count_of(len(view.runs), 'run')}, {counts}", style="bold", no_wrap=True)
    heading.overflow = "ellipsis"
    parts: list[RenderableType] = [heading, table]
    if hidden := len(view.runs) - len(shown):
        parts.append(Text(f"and {count_of(hidden, 'more run')}, which do not fit here", style="dim"))
    if curve and values:
        parts.append(Text(f"curves from {100 * low:.1f} to {100 * high:.1f} %", style="dim"))
    parts += _group_notes(noted)
    return Group(*parts)


def _group_notes(noted: dict[Path, str]) -> list[RenderableType]:
    lines = [Text(f"{path.name}: {note}", style="yellow") for path, note in noted.items()]
    if len(lines) > 3:
        return [*lines[:2], Text(f"and {len(lines) - 2} more such notes: unskew watch --once", style="yellow")]
    return [*lines]


WIDTHS = {"seed": 4, "phase": 11, "rounds": 9, "acc. %": 6, "left": 10, "pace": 9, "excl.": 5, "drop.": 5, "memory": 8}
"""Columns beside the method, in their order, and how wide they are."""
LEAVING = ("memory", "drop.", "excl.", "pace", "left", "seed", "rounds")
"""Those that a narrow terminal lacks, the first first."""
NAME = 18
"""Letters that a method's name has at least."""


def _choose_columns(view: View, width: int) -> dict[str, int]:
    empty = {
        "excl.": not any(run.excluded for run in view.runs), "drop.": not any(run.dropped for run in view.runs),
        "memory": all(run.memory is None for run in view.runs), "left": all(run.left is None for run in view.runs),
    }  # fmt: skip
    chosen = {name: size for name, size in WIDTHS.items() if not empty.get(name)}
    for name in LEAVING:
        if NAME + 1 + sum(size + 1 for size in chosen.values()) <= width:
            break
        chosen.pop(name, None)
    return chosen


def _name(run: RunView, with_seed: bool, with_folder: bool) -> str:
    if with_folder:  # several runs of one method and seed
        return f"{run.path.name}: {run.method}"
    return f"{run.method}, seed {run.seed}" if with_seed and run.seed is not None else run.method


def _fill(run: RunView, column: str) -> str:
    found = {
        "seed": "" if run.seed is None else str(run.seed), "phase": run.phase, "rounds": f"{run.done}/{run.rounds}",
        "acc. %": f"{100 * run.curve[-1]:.2f}" if run.curve else "",
        "left": "" if run.left is None else describe_seconds(run.left),
        "pace": describe_rate(run.rate) if run.rate else "", "excl.": str(run.excluded or ""),
        "drop.": str(run.dropped or ""), "memory": "" if run.memory is None else _describe_bytes(run.memory),
    }  # fmt: skip
    return found[column]


def _is_plain(on: Console) -> bool:
    """Whether the terminal shows nothing but ASCII."""
    return not (on.encoding or "").lower().startswith("utf")


def _describe_bytes(number: int) -> str:
    return f"{number / 1e9:.2f} GB" if number >= 1e9 else f"{number / 1e6:.0f} MB"
