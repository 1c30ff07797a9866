"""Accuracy against rounds, a line a method, with the spread over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

# Okabe and Ito's colours, told apart by colour-blind readers too; line styles repeat the distinction
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", "-.", ":")
GREY = "#c3cad1"
MOST = 8
"""With more lines than this, the best are coloured and the rest is grey."""
BEST = 6
LONGEST = 24
"""Letters of a method's name in a legend."""

Floats = npt.NDArray[np.float64]
Curve = Sequence[tuple[int, float]]
"""(round, accuracy) of one seed."""
Curves = Mapping[str, Sequence[Curve]]
"""Those of each method."""


GLOBAL, OWN = "global models, on the global test set", "models that clients use, pooled over their own test sets"

_READ: dict[str, Callable[[Mapping[str, Any]], float | None]] = {
    GLOBAL: lambda row: row.get("accuracy"), OWN: lambda row: row.get("personal", {}).get("pooled"),
}  # fmt: skip


def collect_panels(runs: Sequence[tuple[str, str, Sequence[Mapping[str, Any]]]]) -> dict[str, Curves]:
    """The accuracy curves of each kind from runs (method, its output, its rows); the first is whom all are compared
    with. One panel without a heading where there is only one kind."""
    found: dict[str, dict[str, list[Curve]]] = {GLOBAL: {}, OWN: {}}
    mixed = any(output != "global" for _, output, _ in runs)
    for method, output, rows in runs:
        kinds: list[str] = []
        if output != "tuned":  # whose global model is that of the method inside it
            kinds.append(GLOBAL)
        if output != "global" or (mixed and method == runs[0][0]):
            kinds.append(OWN)
        for kind in kinds:
            values = ((row["round"], _READ[kind](row)) for row in rows)
            curve = [(number, value) for number, value in values if value is not None]
            if curve:
                found[kind].setdefault(method, []).append(curve)
    panels: dict[str, Curves] = {kind: curves for kind, curves in found.items() if curves}
    return panels if len(panels) > 1 else {"": next(iter(panels.values()), {})}


def plot_curves(curves: Curves, path: Path, title: str) -> None:
    """Mean accuracy in per cent over rounds; the band is one standard deviation over seeds."""
    plot_panels({"": curves}, path, title)


def plot_panels(panels: Mapping[str, Curves], path: Path, title: str) -> None:
    """The same beside each other for each kind of accuracy, with a heading each where there are several."""
    panels = {
        heading: {name: seeds for name, seeds in curves.items() if any(seeds)} for heading, curves in panels.items()
    }
    lines = max(min(len(curves), MOST + 1) for curves in panels.values())
    crowded = len(panels) > 1 or lines > 4  # then the legend would hide curves
    rows = -(-lines // _columns(panels)) if crowded else 0
    figure = Figure(figsize=(7.2 if len(panels) == 1 else 10.4, 4.2 + 0.2 * rows), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    for number, (heading, curves) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(1, len(panels), number, sharey=figure.axes[0] if figure.axes else None)
        _draw(axes, curves)
        axes.set_ylabel("test accuracy (%)" if number == 1 else "")
        axes.set_title(heading, loc="left", fontsize=9)
        if crowded:
            below: Any = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.12), "ncols": _columns(panels)}
            axes.legend(frameon=False, fontsize=8, title=_explain(curves), title_fontsize=7, **below)
        else:
            axes.legend(frameon=False, fontsize=9, title=_explain(curves), title_fontsize=8)
    figure.savefig(path)


def _explain(curves: Curves) -> str:
    """What the legend's figures are, and the bands where there are some."""
    bands = any(len(seeds) > 1 for seeds in curves.values())
    return "in brackets: the last round" + "; band: ± 1 standard deviation over seeds" * bands


def _columns(panels: Mapping[str, Curves]) -> int:
    return 3 if len(panels) == 1 else 2


def highlight(curves: Curves) -> list[str]:
    """The methods that get a colour: all of a few; of many, the first, whom others are compared with, and the best."""
    if len(curves) <= MOST:
        return list(curves)
    last = {name: _sum_up(seeds)[1][-1] for name, seeds in curves.items() if any(seeds)}
    best = sorted(last, key=lambda name: -last[name])[:BEST]
    return [name for name in curves if name in best or name == next(iter(curves))]


def _draw(axes: Axes, curves: Curves) -> None:
    coloured = highlight(curves)
    grey = [name for name in curves if name not in coloured]
    by_accuracy = sorted(coloured, key=lambda name: -_sum_up(curves[name])[1][-1]) if grey else coloured
    for name in by_accuracy:
        rounds, mean, std = _sum_up(curves[name])
        colour, style = _look(coloured.index(name))
        # a single point is a test after the last round
        marker: Any = {"marker": "o", "markersize": 5} if len(rounds) == 1 else {}
        axes.plot(
            rounds,
            mean,
            color=colour,
            linestyle=style,
            linewidth=1.8,
            label=f"{shorten(name)}  ({mean[-1]:.1f} %)",
            **marker,
        )
        if len(curves[name]) > 1:
            axes.fill_between(rounds, mean - std, mean + std, color=colour, alpha=0.12 if grey else 0.15, linewidth=0)
    for number, name in enumerate(grey):
        rounds, mean, _ = _sum_up(curves[name])
        label = f"{len(grey)} others  (up to {max(_sum_up(curves[each])[1][-1] for each in grey):.1f} %)"
        axes.plot(rounds, mean, color=GREY, linewidth=0.9, zorder=1, label=label if number == 0 else None)
    axes.set_xlabel("round")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.01)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def shorten(name: str) -> str:
    """A method's name for a legend; its options are in the table."""
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


def _look(place: int) -> tuple[str, str]:
    return COLOURS[place % len(COLOURS)], STYLES[place % len(STYLES)]


def _sum_up(seeds: Sequence[Curve]) -> tuple[Floats, Floats, Floats]:
    """Rounds, and mean and deviation in per cent over the seeds that reached them: one that diverged ends early."""
    points: dict[int, list[float]] = {}
    for round_, value in (point for curve in seeds for point in curve):
        points.setdefault(round_, []).append(100 * value)
    rounds = sorted(points)
    means = np.array([np.mean(points[round_]) for round_ in rounds])
    stds = np.array([np.std(points[round_], ddof=1) if len(points[round_]) > 1 else 0.0 for round_ in rounds])
    return np.array(rounds, dtype=np.float64), means, stds


def plot_measures(
    series: Mapping[str, Curves], methods: Sequence[str], path: Path, coloured: Sequence[str] = ()
) -> None:
    """A small plot for each measured figure: its mean over seeds against rounds, a line a method.

    `methods`: all of the comparison, in its order, so that each has the colour that it has elsewhere. Of many, those in
    `coloured` have one, and the rest is grey.
    """
    across = min(3, len(series))
    down = -(-len(series) // across)
    chosen = list(methods) if len(methods) <= MOST else [name for name in methods if name in coloured][: 2 * BEST]
    figure = Figure(figsize=(3.6 * across, 2.6 * down + 0.5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    for number, (name, curves) in enumerate(series.items(), 1):
        axes = figure.add_subplot(down, across, number)
        for method in sorted(curves, key=lambda method: method in chosen):  # grey below the others
            values: dict[int, list[float]] = {}
            for round_, value in (point for curve in curves[method] for point in curve):
                values.setdefault(round_, []).append(value)
            rounds = sorted(values)
            means = [float(np.mean(values[round_])) for round_ in rounds]
            if method in chosen:
                colour, style = _look(chosen.index(method))
                axes.plot(rounds, means, linewidth=1.5, label=method, color=colour, linestyle=style)
            else:
                axes.plot(rounds, means, linewidth=0.8, label="others", color=GREY)
        axes.set_title(name.replace("_", " "), loc="left", fontsize=9)
        axes.set_xlabel("round", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    handles = {label: line for ax in figure.axes for line, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    ordered = [label for label in (*methods, "others") if label in handles]
    figure.legend(
        [handles[label] for label in ordered],
        [shorten(label) for label in ordered],
        loc="outside lower center",
        frameon=False,
        fontsize=8,
        ncols=across,
    )
    figure.savefig(path)
