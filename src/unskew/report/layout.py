"""Figures whose axes keep their size whatever stands around them: text is measured first, then everything is placed."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties

from unskew.base.version import MAKER

FONTS: dict[Any, Any] = {"pdf.fonttype": 42, "ps.fonttype": 42}
CM = 1 / 2.54
"""Inches."""
DPI = 150
GAP = 0.14
"""Inches between blocks."""
PAD = 0.05
INK, MUTED = "#1b2733", "#51606e"
FEW = 4
"""A legend with more entries than these has two columns, if its names can be cut to fit."""
HANDLE, TEXT_PAD, COLUMN_PAD = 1.9, 0.6, 1.4
"""Of a legend, in letters' heights: a line's length, its distance to the text, and that of columns."""


class Picture(Figure):
    """A matplotlib figure that notebooks show, whether pyplot is there or not; its PDFs embed their fonts as fonts."""

    def savefig(self, fname: Any, **options: Any) -> None:
        """Writes it, as matplotlib does."""
        with mpl.rc_context(FONTS):
            super().savefig(fname, **options)

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()


@dataclass
class Block:
    """Axes, and what stands below them."""

    axes: Axes
    handles: Sequence[Artist] = ()
    labels: Sequence[str] = ()
    words: str = ""
    """A paragraph below the legend."""
    heading: str = ""
    """Above the axes."""


@dataclass
class _Below:
    """What stands below axes, measured."""

    legend: Any = None
    legend_height: float = 0.0
    text: Any = None
    text_height: float = 0.0

    @property
    def height(self) -> float:
        """In inches."""
        return sum(PAD + part for part in (self.legend_height, self.text_height) if part)


@dataclass
class _Around:
    """How far labels reach beyond axes, in inches."""

    left: float = 0.0
    right: float = 0.0
    below: list[float] = field(default_factory=list)
    above: list[float] = field(default_factory=list)


def start_figure(width: float) -> Picture:
    """An empty figure of this width in centimetres; `arrange` gives it its height."""
    figure = Picture(figsize=(width * CM, 4), dpi=DPI)
    FigureCanvasAgg(figure)
    return figure


def arrange(
    figure: Figure, blocks: Sequence[Block], across: int, height: float, size: float, title: str = "",
    last: Block | None = None,
) -> None:  # fmt: skip
    """Places the blocks, so many beside each other, all axes `height` centimetres high; `size`: of letters, in points.

    `last`: a legend and words for all of them, below; its axes are not looked at.
    """
    renderer: Any = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    width, tall = float(figure.get_figwidth()), height * CM
    column = (width - 2 * PAD - (across - 1) * GAP) / across
    below = [_make_below(figure, renderer, block, column, size) for block in blocks]
    foot = _make_below(figure, renderer, last, width - 2 * PAD, size) if last else _Below()
    heading, head = _write(figure, renderer, title, width - 2 * PAD, size + 1, INK) if title else (None, 0.0)
    above = [_write(figure, renderer, b.heading, column, size, INK) if b.heading else (None, 0.0) for b in blocks]
    around = _measure(figure, renderer, blocks, across, column, tall)
    rows = [range(start, min(start + across, len(blocks))) for start in range(0, len(blocks), across)]
    for number, row in enumerate(rows):
        around.above[number] += max(above[place][1] + PAD * bool(above[place][0]) for place in row)
    heights = [
        around.above[number] + tall + around.below[number] + max(below[place].height for place in row)
        for number, row in enumerate(rows)
    ]
    total = 2 * PAD + (head + PAD if head else 0.0) + sum(heights) + GAP * (len(rows) - 1) + foot.height
    figure.set_size_inches(width, total)
    top = total - PAD
    if heading is not None:
        heading.set_position((PAD / width, top / total))
        top -= head + PAD
    for number, row in enumerate(rows):
        for place in row:
            left = PAD + (place - row.start) * (column + GAP)
            floor = top - around.above[number] - tall
            room = column - around.left - around.right
            blocks[place].axes.set_position(((left + around.left) / width, floor / total, room / width, tall / total))
            if (words := above[place][0]) is not None:
                words.set_position((left / width, top / total))
            _place(below[place], left, floor - around.below[number], width, total)
        top -= heights[number] + GAP
    _place(foot, PAD, top + GAP, width, total)


def _measure(
    figure: Figure, renderer: Any, blocks: Sequence[Block], across: int, column: float, tall: float
) -> _Around:
    """How much room labels need; ticks depend on the axes' size, and that on the labels."""
    width, total = float(figure.get_figwidth()), 3 * tall + 4
    figure.set_size_inches(width, total)
    found = _Around(0.5, 0.1)
    for _ in range(2):
        room = max(column - found.left - found.right, 0.3)
        reach = []
        for block in blocks:
            block.axes.set_position((0.5 - room / width / 2, tall / total, room / width, tall / total))
            outer, inner = block.axes.get_tightbbox(renderer), block.axes.get_window_extent(renderer)
            assert outer is not None
            reach.append([max(v, 0.0) / figure.dpi for v in (
                inner.x0 - outer.x0, outer.x1 - inner.x1, inner.y0 - outer.y0, outer.y1 - inner.y1
            )])  # fmt: skip
        starts = range(0, len(blocks), across)
        found = _Around(
            max(each[0] for each in reach), max(each[1] for each in reach),
            [max(each[2] for each in reach[start : start + across]) for start in starts],
            [max(each[3] for each in reach[start : start + across]) for start in starts],
        )  # fmt: skip
    return found


def _make_below(figure: Figure, renderer: Any, block: Block, width: float, size: float) -> _Below:
    made = _Below()
    if block.handles:
        made.legend = _make_legend(figure, renderer, block, width, size)
        made.legend_height = made.legend.get_window_extent(renderer).height / figure.dpi
    if block.words:
        made.text, made.text_height = _write(figure, renderer, block.words, width, size - 1, MUTED)
    return made


def _make_legend(figure: Figure, renderer: Any, block: Block, width: float, size: float) -> Any:
    """A legend with as many columns as there is room for; a name that is longer than that is cut."""
    fixed = (HANDLE + TEXT_PAD) * size / 72
    labels = [_cut_name(renderer, figure, label, width - fixed - 0.02, size) for label in block.labels]
    widest = fixed + max(_measure_text(renderer, figure, label, size) for label in labels)
    pad = COLUMN_PAD * size / 72
    half = (width - pad) / 2
    if widest > half > 3 * CM and len(labels) > FEW:  # two columns, though a name or two are cut then
        labels = [_cut_name(renderer, figure, label, half - fixed - 0.02, size) for label in labels]
        widest = half
    columns = min(max(math.floor((width + pad + 1e-6) / (widest + pad)), 1), len(labels))
    columns = math.ceil(len(labels) / math.ceil(len(labels) / columns))
    return figure.legend(
        list(block.handles), labels, loc="upper left", ncols=columns, fontsize=size, frameon=False, borderpad=0,
        borderaxespad=0, handlelength=HANDLE, handletextpad=TEXT_PAD, columnspacing=COLUMN_PAD, labelspacing=0.35,
    )  # fmt: skip


def _place(below: _Below, left: float, top: float, width: float, total: float) -> None:
    if below.legend is not None:
        top -= PAD
        below.legend.set_bbox_to_anchor((left / width, top / total))
        top -= below.legend_height
    if below.text is not None:
        below.text.set_position((left / width, (top - PAD) / total))


def _write(figure: Figure, renderer: Any, text: str, width: float, size: float, colour: str) -> tuple[Any, float]:
    """A paragraph that is not wider than this, and its height in inches."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and _measure_text(renderer, figure, longer, size) > width:
            lines.append(_cut(renderer, figure, word, width, size))
        else:
            lines[-1] = _cut(renderer, figure, longer, width, size)
    made = figure.text(0, 0, "\n".join(lines), fontsize=size, color=colour, va="top", ha="left", linespacing=1.25)
    made.set_parse_math(False)
    return made, made.get_window_extent(renderer).height / figure.dpi


def _cut(renderer: Any, figure: Figure, text: str, width: float, size: float) -> str:
    """The text, with an ellipsis where it is wider than this."""
    if _measure_text(renderer, figure, text, size) <= width:
        return text
    while len(text) > 1 and _measure_text(renderer, figure, f"{text}…", size) > width:
        text = text[:-1]
    return f"{text}…"


def _cut_name(renderer: Any, figure: Figure, label: str, width: float, size: float) -> str:
    """A label whose name, where it is too wide, lacks its middle; a figure in brackets behind it stays whole."""
    name, gap, value = label.rpartition("  (")
    name, rest, cut = (name, gap + value, name) if gap else (label, "", label)
    length = len(name)
    while length > 2 and _measure_text(renderer, figure, cut + rest, size) > width:
        length -= 1
        tail = int(0.45 * length)
        cut = f"{name[: length - tail].rstrip('…')}…{name[len(name) - tail :].lstrip('…')}"
    return cut + rest


def _measure_text(renderer: Any, figure: Figure, text: str, size: float) -> float:
    """Its width in inches."""
    found = renderer.get_text_width_height_descent(text, FontProperties(size=size), False)[0]
    return float(found) / figure.dpi


def save(figure: Figure, path: Path) -> None:
    """Writes a figure; the same bytes for the same figure, which say who made it."""
    kind = path.suffix.lower().lstrip(".")
    about: dict[str, dict[str, Any]] = {
        "png": {"Software": MAKER}, "pdf": {"Creator": MAKER, "CreationDate": None},
        "svg": {"Creator": MAKER, "Date": None},
    }  # fmt: skip
    with mpl.rc_context(FONTS | {"svg.hashsalt": "unskew"}):
        figure.savefig(path, facecolor="white", metadata=about.get(kind))
