"""A picture of a confusion matrix: which classes are taken for which."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from unskew.measures.classification import Confusion
from unskew.report.layout import DPI, save
from unskew.report.split_plot import INK, SHADES

MOST_NUMBERS = 15
"""Up to so many classes, each field has its number of samples."""
MOST_NAMES = 30


def plot_confusion(confusion: Confusion, path: Path, title: str) -> None:
    """Draws the shares of each true class as a heat map; the suffix sets the format."""
    counts, classes = confusion.counts, confusion.classes
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    side = min(12.0, 3.0 + 0.4 * len(classes))
    figure = Figure(figsize=(side + 1.4, side), dpi=DPI, layout="compressed")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    drawn = axes.imshow(shares, cmap=SHADES, vmin=0, vmax=1)
    shown = range(0, len(classes), -(-len(classes) // MOST_NAMES))
    names = [classes[place] if len(classes[place]) <= 20 else f"{classes[place][:19]}…" for place in shown]
    axes.set_xticks(shown, names, rotation=0 if max(map(len, names)) <= 3 else 90, fontsize=8)
    axes.set_yticks(shown, names, fontsize=8)
    axes.set_xlabel("predicted", fontsize=9)
    axes.set_ylabel("true", fontsize=9)
    axes.set_title(title, loc="left", fontsize=9, color=INK, wrap=True)
    for row, column in np.argwhere(counts) if len(classes) <= MOST_NUMBERS else ():
        colour = "white" if shares[row, column] > 0.5 else INK
        axes.text(column, row, str(counts[row, column]), ha="center", va="center", fontsize=7, color=colour)
    bar = figure.colorbar(drawn, ax=axes, fraction=0.04, pad=0.02)
    bar.set_label("share of the true class", fontsize=8)
    bar.ax.tick_params(labelsize=8)
    save(figure, path)
