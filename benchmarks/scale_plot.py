"""The picture of `benchmarks.scale`: time above, memory below, one column a kind of size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from unskew.report.curves import COLOURS

INK, MUTED, FAINT, EDGE, GUIDE = "#1b2733", "#5b6b7a", "#e8ecf0", "#c9d1d9", "#a9b5c0"
MARKS = ("o", "s", "^", "D", "v", "P", "X")
Row = Mapping[str, Any]


def plot(rows: Sequence[Row], columns: Mapping[str, str], path: Path, subtitle: str) -> None:
    """Log-log panels: seconds a round (start-up dotted) above, peak memory below; `columns` names the axes' sizes."""
    rows = [row for row in rows if row["axis"] in columns and "median" in row]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    if not rows:
        return
    figure = Figure(figsize=(11.4, 6.6), dpi=150)
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, len(columns), sharey="row", sharex="col", squeeze=False)
    figure.subplots_adjust(left=0.068, right=0.985, top=0.88, bottom=0.145, wspace=0.07, hspace=0.1)
    for column, (axis, name) in enumerate(columns.items()):
        time, memory = panels[0][column], panels[1][column]
        own = [row for row in rows if row["axis"] == axis]
        for axes in (time, memory):
            _style(axes, sorted({row["size"] for row in own}))
        _guide(time, own)
        for number, method in enumerate(methods):
            shown = [row for row in own if row["method"] == method]
            _line(time, shown, lambda row: max(row["startup"], 1e-3), number, startup=True)
            _line(time, shown, lambda row: row["median"], number)
            _line(memory, shown, lambda row: row["peak_pss"] / 2**20, number)
        memory.set_xlabel(name, color=INK, fontsize=10, labelpad=6)
    _limits(panels[0][0], [max(row[key], 1e-3) for row in rows for key in ("median", "startup")], "{:g}")
    _limits(panels[1][0], [row["peak_pss"] / 2**20 for row in rows], "{:,.0f}", steps=(1, 2, 5))
    panels[0][0].set_ylabel("seconds", color=INK, fontsize=10)
    panels[1][0].set_ylabel("peak memory (PSS), MiB", color=INK, fontsize=10)
    figure.align_ylabels(panels[:, 0])
    figure.text(0.012, 0.962, "What size costs", fontsize=13, fontweight="bold", color=INK)
    figure.text(0.012, 0.927, subtitle, fontsize=9, color=MUTED)
    figure.legend(handles=_legend(methods), loc="lower center", ncols=8, frameon=False, fontsize=9, labelcolor=INK)
    figure.savefig(path, facecolor="white")


def _style(axes: Axes, sizes: Sequence[int]) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(EDGE)
    axes.tick_params(length=0, labelcolor=INK, labelsize=9)
    axes.xaxis.set_major_locator(FixedLocator(sizes))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    if sizes:
        room = (sizes[-1] / sizes[0]) ** 0.06 if len(sizes) > 1 else 2
        axes.set_xlim(sizes[0] / room, sizes[-1] * room)


def _short(value: float) -> str:
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{name}"
    return f"{value:g}"


def _limits(axes: Axes, values: Sequence[float], text: str, steps: Sequence[int] = (1,)) -> None:
    """From the tick below the smallest value to the one above the largest."""
    decades = range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    low = max((tick for tick in ticks if tick <= min(values)), default=ticks[0])
    high = min((tick for tick in ticks if tick >= max(values)), default=ticks[-1])
    axes.set_ylim(low * 0.85, high * 1.15)
    axes.yaxis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: text.format(value)))


def _guide(axes: Axes, rows: Sequence[Row]) -> None:
    """A grey line of slope one from the smallest size: a steeper line grows faster than size."""
    if rows:
        first = min(rows, key=lambda row: (row["size"], row["median"]))
        sizes = [first["size"], max(row["size"] for row in rows)]
        axes.plot(sizes, [first["median"] * size / first["size"] for size in sizes], color=GUIDE, linewidth=0.9)


def _line(axes: Axes, rows: Sequence[Row], value: Callable[[Row], float], number: int, startup: bool = False) -> None:
    """One method's line; later ones are thinner, so that equal values do not hide each other."""
    axes.plot(
        [row["size"] for row in rows],
        [value(row) for row in rows],
        color=COLOURS[number % len(COLOURS)],
        linestyle=(0, (1, 2)) if startup else "-",
        linewidth=1.2 if startup else max(1.2, 2.4 - 0.7 * number),
        marker=MARKS[number % len(MARKS)],
        markersize=3.5 if startup else max(3.5, 6.5 - 1.5 * number),
        markerfacecolor="white" if startup else COLOURS[number % len(COLOURS)],
        markeredgewidth=0.9 if startup else 0.5,
        markeredgecolor=COLOURS[number % len(COLOURS)] if startup else "white",
    )


def _legend(methods: Sequence[str]) -> list[Line2D]:
    own = [
        Line2D([], [], color=COLOURS[k % len(COLOURS)], marker=MARKS[k % len(MARKS)], linewidth=2, label=method)
        for k, method in enumerate(methods)
    ]
    dotted = Line2D([], [], color=MUTED, linewidth=1.2, linestyle=(0, (1, 2)), marker="o", markerfacecolor="white",
                    markersize=3.5, label="start-up")  # fmt: skip
    return [
        *own,
        Line2D([], [], color=MUTED, linewidth=2, label="median round"),
        dotted,
        Line2D([], [], color=GUIDE, linewidth=0.9, label="in proportion to size"),
    ]
