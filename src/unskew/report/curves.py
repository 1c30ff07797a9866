"""Accuracy against rounds, a line a method, with the spread over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from unskew.base.text import count_of
from unskew.report.layout import Block, Picture, arrange, save, start_figure

# Okabe and Ito's colours, told apart by colour-blind readers too; line styles repeat the distinction
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", "-.", ":")
GREY = "#c3cad1"
MOST = 14
"""With more lines than this, the best are coloured and the rest is grey."""
BEST = 6
STEPS = (1, 2, 2.5, 5, 10)
"""Of ticks."""
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


@dataclass(frozen=True)
class Look:
    """What a picture is for: its width, its letters, what its axes say."""

    width: float = 18.3
    """In centimetres."""
    size: float = 8.0
    """Of letters, in points."""
    values: bool = True
    """Whether the legend has the last values and says what bands are; a paper's caption does that."""
    x: str = "round"
    y: str = "test accuracy (%)"
    percent: bool = True
    positions: Mapping[str, Mapping[int, float]] | None = None
    """Where a method's rounds stand on the x axis, if not at their numbers."""

    @property
    def across(self) -> int:
        """Panels beside each other."""
        return 2 if self.width > NARROW else 1


NARROW = 12.0
"""Centimetres: in narrower pictures panels stand below each other."""


def plot_curves(curves: Curves, path: Path, title: str) -> None:
    """Mean accuracy in per cent over rounds; the band is one standard deviation over seeds."""
    plot_panels({"": curves}, path, title)


def plot_panels(panels: Mapping[str, Curves], path: Path, title: str, look: Look | None = None) -> None:
    """The same for each kind of accuracy, with a heading each where there are several, as a file."""
    save(draw_panels(panels, title, look), path)


def draw_panels(panels: Mapping[str, Curves], title: str = "", look: Look | None = None) -> Picture:
    """The curves of each kind as a figure: legends below, so that they hide nothing and no axes shrink for them."""
    look = look or Look()
    panels = {
        heading: {name: seeds for name, seeds in curves.items() if any(seeds)} for heading, curves in panels.items()
    }
    figure, blocks = start_figure(look.width), []
    across = min(look.across, len(panels))
    chosen = {heading: highlight(curves) for heading, curves in panels.items()}
    order = list(dict.fromkeys(name for names in chosen.values() for name in names))  # one colour in all panels
    for number, (heading, curves) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(-(-len(panels) // across), across, number)
        blocks.append(_draw(axes, curves, chosen[heading], order, look, heading))
        axes.set_ylabel(look.y if (number - 1) % across == 0 else "", fontsize=look.size)
    if len(blocks) > 1 and look.percent:
        limits = [block.axes.get_ylim() for block in blocks]
        for block in blocks:
            block.axes.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
    arrange(figure, blocks, across, _find_height(look.width / across), look.size, title)
    return figure


def _find_height(width: float) -> float:
    """Of axes, in centimetres, for panels of this width."""
    return min(max(0.55 * width, 3.5), 8.5)


def _explain(curves: Curves) -> str:
    """What the legend's figures are, and the bands where there are some."""
    bands = any(len(seeds) > 1 for seeds in curves.values())
    return "In brackets: the last round." + " Band: ± 1 standard deviation over seeds." * bands


def highlight(curves: Curves) -> list[str]:
    """The methods that get a colour: all of a few; of many, the first, whom others are compared with, and the best."""
    if len(curves) <= MOST:
        return list(curves)
    last = {name: _sum_up(seeds, Look())[1][-1] for name, seeds in curves.items() if any(seeds)}
    best = sorted(last, key=lambda name: -last[name])[:BEST]
    return [name for name in curves if name in best or name == next(iter(curves))]


def _draw(axes: Axes, curves: Curves, coloured: Sequence[str], order: Sequence[str], look: Look, heading: str) -> Block:
    """Draws a panel; gives it with what stands below it."""
    summed = {name: _sum_up(seeds, look, name) for name, seeds in curves.items()}
    grey = [name for name in curves if name not in coloured]
    last = {name: mean[-1] for name, (_, mean, _) in summed.items()}
    if grey:
        coloured, grey = (sorted(names, key=lambda name: -last[name]) for names in (coloured, grey))
    wide = 1.8 if look.width > NARROW else 1.3
    handles, labels = [], []
    for name in coloured:
        where, mean, std = summed[name]
        colour, style = _look(order.index(name))
        # a single point is a test after the last round
        marker: Any = {"marker": "o", "markersize": 4} if len(where) == 1 else {}
        handles += axes.plot(where, mean, color=colour, linestyle=style, linewidth=wide, **marker)
        labels.append(f"{shorten(name)}  ({_describe(last[name], look)})" if look.values else shorten(name))
        if len(curves[name]) > 1:
            low, high = mean - std, mean + std
            if look.percent:
                low, high = low.clip(0, 100), high.clip(0, 100)
            axes.fill_between(where, low, high, color=colour, alpha=0.12 if grey else 0.15, linewidth=0)
    for name in grey:
        drawn = axes.plot(summed[name][0], summed[name][1], color=GREY, linewidth=wide / 2, zorder=1)
        if name == grey[0]:
            handles += drawn
            labels.append(f"{count_of(len(grey), 'other')} (below)" if look.values else count_of(len(grey), "other"))
    tidy(axes, look.x, look.size, whole=look.positions is None)
    words = [_explain(curves)] if look.values else []
    if grey:
        listed = (f"{shorten(n)} {_describe(last[n], look)}" if look.values else shorten(n) for n in grey)
        words.append(f"Grey, the {'best' if look.percent else 'highest'} first: {', '.join(listed)}.")
    return Block(axes, handles, labels, " ".join(words), heading)


def tidy(axes: Axes, x: str, size: float, whole: bool = True) -> None:
    """The house's look of axes over rounds; `whole`: ticks at whole numbers."""
    axes.set_xlabel(x, fontsize=size)
    axes.tick_params(labelsize=size - 0.5)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.01)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=whole, steps=STEPS))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=STEPS))


def _describe(value: float, look: Look) -> str:
    return f"{value:.1f} %" if look.percent else f"{value:.3g}"


def shorten(name: str) -> str:
    """A method's name for a legend, without its middle if it is long: names often differ at their ends alone."""
    tail = int(0.45 * LONGEST)
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1 - tail]}…{name[-tail:]}"


def _look(place: int) -> tuple[str, str]:
    return COLOURS[place % len(COLOURS)], STYLES[place % len(STYLES)]


def _sum_up(seeds: Sequence[Curve], look: Look, name: str = "") -> tuple[Floats, Floats, Floats]:
    """Places on the x axis, and mean and deviation over the seeds that came so far: one that diverged ends early."""
    points: dict[int, list[float]] = {}
    for round_, value in (point for curve in seeds for point in curve):
        points.setdefault(round_, []).append((100 if look.percent else 1) * value)
    rounds = sorted(points)
    where = rounds if look.positions is None else [look.positions[name][round_] for round_ in rounds]
    means = np.array([np.mean(points[round_]) for round_ in rounds])
    stds = np.array([np.std(points[round_], ddof=1) if len(points[round_]) > 1 else 0.0 for round_ in rounds])
    return np.array(where, dtype=np.float64), means, stds


def plot_measures(
    series: Mapping[str, Curves], methods: Sequence[str], path: Path, coloured: Sequence[str] = ()
) -> None:
    """A small plot for each measured figure: its mean over seeds against rounds, a line a method.

    `methods`: all of the comparison, in its order, so that each has the colour that it has elsewhere. Of many, those in
    `coloured` have one, and the rest is grey.
    """
    save(draw_measures(series, methods, coloured), path)


def draw_measures(series: Mapping[str, Curves], methods: Sequence[str], coloured: Sequence[str] = ()) -> Picture:
    """The same as a figure."""
    chosen = list(methods) if len(methods) <= MOST else [name for name in methods if name in coloured][: 2 * BEST]
    across = min(3, len(series))
    look = Look(width=9.2 * across if across < 3 else 24.0, percent=False)
    figure, blocks = start_figure(look.width), []
    handles: dict[str, Any] = {}
    for number, (name, curves) in enumerate(series.items(), 1):
        axes = figure.add_subplot(-(-len(series) // across), across, number)
        for method in sorted(curves, key=lambda method: method in chosen):  # grey below the others
            rounds, means, _ = _sum_up(curves[method], look)
            if method in chosen:
                colour, style = _look(chosen.index(method))
                (handles[method],) = axes.plot(rounds, means, linewidth=1.5, color=colour, linestyle=style)
            else:
                (handles["others"],) = axes.plot(rounds, means, linewidth=0.8, color=GREY, zorder=1)
        tidy(axes, "round", look.size)
        blocks.append(Block(axes, heading=name.replace("_", " ")))
    ordered = [label for label in (*methods, "others") if label in handles]
    legend = Block(figure.axes[0], [handles[label] for label in ordered], [shorten(label) for label in ordered])
    arrange(figure, blocks, across, 4.5, look.size, last=legend)
    return figure
