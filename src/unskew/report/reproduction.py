"""A reproduced table in files: ours beside the printed figures, as Markdown, CSV and JSON, and its curves."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import logging
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unskew.base.errors import let_pass
from unskew.base.json_text import to_json
from unskew.measures.rounds_to import accuracy_of
from unskew.recipes.base import Drawn, Finished
from unskew.recipes.reproduce import Compared, FigurePlan, Plan, identify
from unskew.recipes.scales import describe
from unskew.report.curves import COLOURS, STYLES, plot_curves
from unskew.report.files import EARLIER

log = logging.getLogger(__name__)
NAMES = ("table.md", "table.csv", "curves.png", "table.json")
"""What a table is made of; the last one says which table it is."""
COLUMNS = ("row", "column", "printed", "ours", "difference", "mark")
MARKS = {
    "within noise": "≈", "equal": "=", "above": "▲", "below": "▼", "other": "≠", "not run": "·", "no figure": "–",
    "other machine": "⧖", "other scale": "⧖",
}  # fmt: skip
LEGEND = (
    "= equal as printed; ≈ within noise: two standard errors of the difference, or, where no spread is "
    "known, 2 points (of what is not an accuracy: 5 %); "
    "▲ ▼ above, below; – the run has no such figure; · not run; ⧖ of another scale or machine, not to be compared"
)
SPARSE = 30
"""A line of so few points shows them; of more they hide it."""


def to_row(figure: Compared) -> dict[str, str]:
    """A figure as texts."""
    printed = figure.printed
    spread = f" ± {printed.std:g}" if printed.std is not None else ""
    difference = "" if figure.difference is None else f"{figure.difference:+.2f}"
    return {
        "row": printed.row, "column": printed.column, "printed": printed.text + spread, "ours": figure.ours,
        "difference": difference,
        "mark": f"{MARKS[figure.mark]} {figure.mark}" + (f": {figure.note}" if figure.note else ""),
    }  # fmt: skip


def make_heading(plan: Plan) -> list[str]:
    """What the table is, at which scale, and what is to be said of its data."""
    table = plan.table
    unit = f" ({table.unit})" if table.unit else ""
    seeds = f"seeds {', '.join(map(str, plan.seeds))}" if plan.jobs else "no training"
    lines = [
        f"{table.id}: {table.title}{unit}",
        f"{table.paper.title}",
        f"scale {plan.scale}: {describe(table.paper, plan.scale)}; {seeds}",
    ]
    if plan.scale != "full":
        lines.append(
            "Figures of this scale are not of the paper's setting: compare them with each other, not with the printed."
        )
    return [*lines, *plan.notes]


def write(plan: Plan, figures: Sequence[Compared], finished: Mapping[Any, Finished], folder: Path) -> list[str]:
    """Writes table.md, table.csv, table.json and, where rounds were tested, curves.png; their names.

    A table of other cells that is there already is kept below `earlier`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _keep_earlier(folder, to_record(plan, figures))
    rows = [to_row(figure) for figure in figures]
    heading = make_heading(plan)
    lines = [f"# {heading[0]}", "", *(f"{line}  " for line in heading[1:]), "", "| " + " | ".join(COLUMNS) + " |"]
    lines += [
        "|" + "---|" * len(COLUMNS),
        *("| " + " | ".join(row[name] for name in COLUMNS) + " |" for row in rows),
        "",
        LEGEND,
    ]
    (folder / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    (folder / "table.csv").write_text(text.getvalue(), encoding="utf-8")
    (folder / "table.json").write_text(to_json(to_record(plan, figures)) + "\n", encoding="utf-8")
    names = ["table.md", "table.csv", "table.json"]
    curves = collect_curves(plan, finished)
    if curves:
        plot_curves(curves, folder / "curves.png", f"{heading[0]} (scale {plan.scale})")
        names.append("curves.png")
    return names


def _keep_earlier(folder: Path, new: dict[str, Any]) -> None:
    """Moves a table away that has figures which the new one lacks."""
    try:
        old = json.loads((folder / "table.json").read_text(encoding="utf-8"))
        lost = not _list_cells(old) <= _list_cells(new)
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:  # not ours, or damaged: it is kept, too
        let_pass(error)
        lost = True
    if lost:
        text = (folder / "table.json").read_bytes()
        place = folder / EARLIER / hashlib.sha256(text).hexdigest()[:12]
        place.mkdir(parents=True, exist_ok=True)
        for name in NAMES:
            if (folder / name).exists():
                (folder / name).replace(place / name)
        log.warning("the earlier table in %s had other cells; it is now in %s", folder, place)


def _list_cells(record: dict[str, Any]) -> set[tuple[str, int]]:
    """Every cell that has a figure of ours, once for each seed."""
    return {
        (json.dumps(figure["keys"], sort_keys=True), number)
        for figure in record["figures"]
        for number in range(len(figure["values"]))
    }


def to_record(plan: Plan, figures: Sequence[Compared]) -> dict[str, Any]:
    """The same for programs."""
    return {
        "table": plan.table.id, "title": plan.table.title, "unit": plan.table.unit, "scale": plan.scale,
        "about_scale": describe(plan.table.paper, plan.scale), "seeds": list(plan.seeds), "notes": list(plan.notes),
        "figures": [
            {"keys": dict(figure.printed.keys), "row": figure.printed.row, "column": figure.printed.column,
             "printed": figure.printed.value if figure.printed.value is not None else figure.printed.text,
             "printed_std": figure.printed.std, "values": list(figure.values), "difference": figure.difference,
             "mark": figure.mark, "note": figure.note}
            for figure in figures
        ],
    }  # fmt: skip


def collect_curves(plan: Plan, finished: Mapping[Any, Finished]) -> dict[str, list[list[tuple[int, float]]]]:
    """The accuracy over rounds of each cell that was run, a curve per seed; of global models, else pooled."""
    curves: dict[str, list[list[tuple[int, float]]]] = {}
    for job in plan.jobs:
        run = finished.get(identify(job.run))
        name = f"{job.printed.row}; {job.printed.column}" if len(plan.table.columns) else job.printed.row
        if run is None or len(curves.get(name, [])) >= len(plan.seeds):
            continue
        curve = [(row["round"], value) for row in run.rounds if (value := accuracy_of(row)) is not None]
        if len(curve) > 1:
            curves.setdefault(name, []).append(curve)
    return curves


def figure_to_record(plan: FigurePlan, drawn: Drawn) -> dict[str, Any]:
    """A figure for programs."""
    lines = {name: [list(point) for point in points] for name, points in drawn.lines.items()}
    return {
        "figure": plan.id, "title": plan.figure.title, "scale": plan.scale,
        "about_scale": describe(plan.paper, plan.scale), "notes": list(plan.notes), "paper_shows": drawn.note,
        "x": drawn.x, "y": drawn.y, "ticks": list(drawn.ticks), "lines": lines,
    }  # fmt: skip


def figure_to_csv(drawn: Drawn) -> str:
    """The points of a figure, a row each."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["line", drawn.x, drawn.y])
    for name, points in drawn.lines.items():
        writer.writerows((name, drawn.ticks[int(x)] if drawn.ticks else x, y) for x, y in points)
    return text.getvalue()


def draw(drawn: Drawn, title: str, path: Path) -> None:
    """A figure made anew: lines, bars or points."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7.2, 4.4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(wrap_title(title, 84), x=0.01, ha="left", fontsize=10)
    axes = figure.add_subplot()
    for number, (name, points) in enumerate(drawn.lines.items()):
        xs, ys = zip(*points, strict=True) if points else ((), ())
        colour = COLOURS[number % len(COLOURS)]
        if drawn.kind == "bar":
            width = 0.8 / len(drawn.lines)
            axes.bar(
                [x + (number - (len(drawn.lines) - 1) / 2) * width for x in xs], ys, width, label=name, color=colour
            )
        elif drawn.kind == "scatter":
            axes.plot(xs, ys, "o", label=name, color=colour, markersize=4)
        else:
            marker = "." if len(points) <= SPARSE else ""
            axes.plot(xs, ys, STYLES[number // len(COLOURS) % len(STYLES)], label=name, color=colour, marker=marker)
    if drawn.ticks:
        long = max(map(len, drawn.ticks)) > 60 // len(drawn.ticks)
        axes.set_xticks(
            range(len(drawn.ticks)), drawn.ticks, rotation=30 if long else 0, ha="right" if long else "center"
        )
    elif drawn.x == "round":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(drawn.x)
    axes.set_ylabel(drawn.y)
    axes.spines[["top", "right"]].set_visible(False)
    if len(drawn.lines) > 1:
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path)


def wrap_title(title: str, width: int) -> str:
    """A title in lines that do not part what stands in brackets or around an equals sign, where that can be."""
    joined = re.sub(r"\([^()]*\)", lambda found: found[0].replace(" ", "\0"), title).replace(" = ", "\0=\0")
    return "\n".join(textwrap.wrap(joined, width)).replace("\0", " ")
