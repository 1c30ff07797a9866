"""A picture of a split: who holds how much of which class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from numpy.typing import ArrayLike, NDArray

Counts = NDArray[np.int64]

MOST_CLIENTS = MOST_CLASSES = 200
MOST_BUBBLES = 600
INK, MUTED, FAINT, BAR = "#1b2733", "#5b6b7a", "#e8ecf0", "#8fa3b5"
# one hue whose lightness alone tells the count: reads the same for every kind of colour vision, and in grey
SHADES = LinearSegmentedColormap.from_list("counts", ["#dcebf5", "#8dbfdd", "#3a8bbf", "#125a8e", "#07294a"])


def plot_split(
    counts: ArrayLike, classes: Sequence[str], path: str | Path, title: str, clients: Sequence[str] = (), of: int = 0
) -> None:
    """Draws counts [clients, classes] as bubbles or a heat map with client sizes above; the suffix sets the format.

    `clients` names them; `of` says how many there are if the counts are of a random choice.
    """
    full = np.asarray(counts, dtype=np.int64)
    shown = thinned(len(full), MOST_CLIENTS)
    cells, names = _merged(full[shown], list(classes))
    cells = cells.T
    bubbles = cells.size <= MOST_BUBBLES
    figure = _figure(cells, bubbles)
    grid = figure.add_gridspec(2, 2, height_ratios=(1, 4.2), width_ratios=(40, 1), hspace=0.06, wspace=0.04)
    main = figure.add_subplot(grid[1, 0])
    top = figure.add_subplot(grid[0, 0], sharex=main)
    norm = PowerNorm(0.5, vmin=0, vmax=max(1, int(cells.max())))
    drawn = _bubbles(main, cells, norm) if bubbles else _heat_map(main, cells, norm)
    _scale(figure, figure.add_subplot(grid[1, 1]), drawn)
    _sizes(top, full.sum(axis=1)[shown])
    _ticks(main, [clients[k] if clients else str(k) for k in shown], names)
    _headings(top, title, full, of)
    figure.savefig(path, dpi=150, bbox_inches="tight", pad_inches=0.2, facecolor="white")


def thinned(total: int, most: int) -> Counts:
    """All positions, or `most` of them evenly spaced."""
    return np.unique(np.linspace(0, total - 1, min(total, most)).round().astype(np.int64))


def _merged(counts: Counts, names: list[str]) -> tuple[Counts, list[str]]:
    """Beyond the most classes that can be seen, neighbours are added up."""
    if len(names) <= MOST_CLASSES:
        return counts, names
    starts = thinned(len(names), MOST_CLASSES + 1)[:-1]
    ends = [*(starts[1:] - 1).tolist(), len(names) - 1]
    merged = [names[a] if a == b else f"{names[a]} to {names[b]}" for a, b in zip(starts.tolist(), ends, strict=True)]
    return np.add.reduceat(counts, starts, axis=1), merged


def _figure(cells: Counts, bubbles: bool) -> Figure:
    rows, columns = cells.shape
    cell = 0.34 if bubbles else 0.11
    width, height = np.clip(columns * cell + 1.2, 6.4, 13), np.clip(rows * cell * 1.25 + 1.2, 4.2, 9.5)
    figure = Figure(figsize=(float(width), float(height)))
    FigureCanvasAgg(figure)
    return figure


def _bubbles(axes: Axes, cells: Counts, norm: PowerNorm) -> Any:
    """A bubble's area is its count; the largest fills its cell."""
    rows, columns = cells.shape
    axes.set_xlim(-0.6, columns - 0.4)
    axes.set_ylim(rows - 0.4, -0.6)
    axes.figure.canvas.draw()
    box = axes.get_window_extent().transformed(axes.figure.dpi_scale_trans.inverted())  # type: ignore[union-attr]
    widest = 72 * min(box.width / (columns + 0.2), box.height / (rows + 0.2)) * 1.05
    y, x = np.nonzero(cells)
    count = cells[y, x]
    area = np.maximum(count / max(1, cells.max()) * widest**2, 3)
    axes.grid(color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    return axes.scatter(x, y, s=area, c=count, cmap=SHADES, norm=norm, edgecolors="white", linewidths=0.5)


def _heat_map(axes: Axes, cells: Counts, norm: PowerNorm) -> Any:
    image = np.ma.masked_equal(cells, 0)
    return axes.imshow(image, cmap=SHADES.with_extremes(bad="white"), norm=norm, aspect="auto", interpolation="nearest")


def _scale(figure: Figure, axes: Axes, drawn: Any) -> None:
    bar = figure.colorbar(drawn, cax=axes)
    bar.locator = MaxNLocator(5, integer=True)
    bar.update_ticks()
    bar.outline.set_visible(False)  # type: ignore[operator]
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.tick_params(length=0, labelsize=8, labelcolor=MUTED)
    axes.set_title("samples", fontsize=8, color=MUTED, loc="left", pad=6)


def _sizes(axes: Axes, sizes: Counts) -> None:
    axes.bar(np.arange(len(sizes)), sizes, width=0.72 if len(sizes) <= 60 else 1.0, color=BAR)
    axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_ylabel("size", fontsize=9, color=MUTED)
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="x", labelbottom=False, length=0)
    axes.tick_params(axis="y", length=0, labelsize=8, labelcolor=MUTED)
    axes.spines[:].set_visible(False)


def _ticks(axes: Axes, clients: list[str], classes: list[str]) -> None:
    """Every label where they fit, else evenly spaced ones."""
    for axis, texts, room in ((axes.xaxis, clients, 25 if len(clients[-1]) < 6 else 10), (axes.yaxis, classes, 40)):
        step = next(s for base in (1, 10, 100) for s in (base, 2 * base, 5 * base) if len(texts) <= s * room)
        axis.set_ticks(range(0, len(texts), step), [_short(text) for text in texts[::step]])
    axes.set_xlabel("client", fontsize=9, color=MUTED)
    axes.tick_params(length=0, labelcolor=INK, labelsize=8)
    axes.spines[:].set_visible(False)


def _short(text: str) -> str:
    return text if len(text) <= 24 else text[:23] + "…"


def _headings(axes: Axes, title: str, counts: Counts, of: int) -> None:
    held = np.median((counts > 0).sum(axis=1))
    facts = [f"{len(counts):,} clients", f"{counts.sum():,} samples", f"median {held:g} of {counts.shape[1]} classes"]
    if of > len(counts):
        facts[0] = f"{len(counts):,} of {of:,} clients, chosen at random"
    if len(counts) > MOST_CLIENTS:
        facts.append(f"{MOST_CLIENTS} clients shown")
    axes.annotate(title, (0, 1), (0, 26), "axes fraction", "offset points", fontsize=13, fontweight="bold", color=INK)
    axes.annotate(" · ".join(facts), (0, 1), (0, 10), "axes fraction", "offset points", fontsize=9, color=MUTED)
