"""Accuracy against rounds, a line a method, with the spread over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

# Okabe and Ito's colours, told apart by colour-blind readers too; line styles repeat the distinction
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", "-.", ":")

Curve = Sequence[tuple[int, float]]
"""(round, accuracy) of one seed."""


def plot_curves(curves: Mapping[str, Sequence[Curve]], path: Path, title: str) -> None:
    """Mean accuracy in per cent over rounds; the band is one standard deviation over seeds."""
    crowded = len(curves) > 4  # then the legend would hide curves
    figure = Figure(figsize=(7.2, 5.0 if crowded else 4.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, (method, seeds) in enumerate(curves.items()):
        rounds = np.array([round_ for round_, _ in seeds[0]])
        values = 100 * np.array([[value for _, value in curve] for curve in seeds])
        mean = values.mean(0)
        colour, style = COLOURS[number % len(COLOURS)], STYLES[number % len(STYLES)]
        axes.plot(rounds, mean, color=colour, linestyle=style, linewidth=1.8, label=f"{method}  ({mean[-1]:.1f} %)")
        if len(seeds) > 1:
            std = values.std(0, ddof=1)
            axes.fill_between(rounds, mean - std, mean + std, color=colour, alpha=0.15, linewidth=0)
    axes.set_xlabel("round")
    axes.set_ylabel("test accuracy (%)")
    axes.set_title(title, loc="left", fontsize=10)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.01)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    title = "in brackets: the last round; band: ± 1 standard deviation over seeds"
    if crowded:
        figure.legend(loc="outside lower center", frameon=False, fontsize=9, title=title, title_fontsize=8, ncols=3)
    else:
        axes.legend(frameon=False, fontsize=9, title=title, title_fontsize=8)
    figure.savefig(path)


def plot_measures(series: Mapping[str, Mapping[str, Sequence[Curve]]], methods: Sequence[str], path: Path) -> None:
    """A small plot for each measured figure: its mean over seeds against rounds, a line a method.

    `methods`: all of the comparison, in its order, so that each has the colour that it has elsewhere.
    """
    across = min(3, len(series))
    down = -(-len(series) // across)
    figure = Figure(figsize=(3.6 * across, 2.6 * down + 0.5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    for number, (name, curves) in enumerate(series.items(), 1):
        axes = figure.add_subplot(down, across, number)
        for method, seeds in curves.items():
            values: dict[int, list[float]] = {}
            for round_, value in (point for curve in seeds for point in curve):
                values.setdefault(round_, []).append(value)
            rounds, place = sorted(values), methods.index(method)
            means = [float(np.mean(values[round_])) for round_ in rounds]
            style = {"color": COLOURS[place % len(COLOURS)], "linestyle": STYLES[place % len(STYLES)]}
            axes.plot(rounds, means, linewidth=1.5, label=method, **style)  # type: ignore[arg-type]
        axes.set_title(name.replace("_", " "), loc="left", fontsize=9)
        axes.set_xlabel("round", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    handles = {label: line for ax in figure.axes for line, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", frameon=False, fontsize=8, ncols=across)
    figure.savefig(path)
