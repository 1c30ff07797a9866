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
    figure = Figure(figsize=(7.2, 4.2), dpi=150, layout="constrained")
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
    axes.legend(frameon=False, fontsize=9, title=title, title_fontsize=8)
    figure.savefig(path)
