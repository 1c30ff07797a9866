"""A comparison as a table: mean ± std over seeds, best and second best marked, in five forms."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from unskew.measures.figures import mean_and_std

Format = Literal["md", "csv", "latex", "json"]
Mark = Literal["best", "second", ""]


@dataclass(frozen=True)
class Cell:
    """A figure over seeds, in the unit it is shown in."""

    values: tuple[float, ...]
    mark: Mark = ""
    exact: bool = False
    """The same under every seed by its nature: shown without a deviation."""

    @property
    def text(self) -> str:
        """`mean ± std`; without the deviation where there is one seed."""
        if not self.values:
            return "–"
        mean, std = mean_and_std(self.values)
        return f"{mean:.2f}" + ("" if math.isnan(std) or (self.exact and std < 0.005) else f" ± {std:.2f}")


@dataclass(frozen=True)
class Table:
    """Rows of methods, columns of figures."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    notes: tuple[str, ...] = ()


def mark_best(values: Sequence[tuple[float, ...]], higher_is_better: bool = True) -> list[Mark]:
    """Marks the best and the second best mean; equal means share a mark."""
    means = [mean_and_std(seeds)[0] if seeds else math.nan for seeds in values]
    ranking = sorted({round(mean, 10) for mean in means if not math.isnan(mean)}, reverse=higher_is_better)
    places: list[Mark] = ["best", "second"]
    marks = dict(zip(ranking, places, strict=False))
    return [marks.get(round(mean, 10), "") if len(ranking) > 1 and not math.isnan(mean) else "" for mean in means]


def render(table: Table, form: Format) -> str:
    """The table as text in one of the forms."""
    return {"md": _markdown, "csv": _csv, "latex": _latex, "json": _json}[form](table)


def _markdown(table: Table) -> str:
    def cell(value: Cell) -> str:
        return {"best": f"**{value.text}**", "second": f"<u>{value.text}</u>", "": value.text}[value.mark]

    lines = [f"**{table.title}**", "", "| method | " + " | ".join(table.columns) + " |"]
    lines.append("|---" * (len(table.columns) + 1) + "|")
    lines += [f"| `{name}` | " + " | ".join(cell(value) for value in cells) + " |" for name, cells in table.rows]
    return "\n".join([*lines, "", *(f"{note}  " for note in table.notes)]) + "\n"


def _csv(table: Table) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", *(f"{column} {part}" for column in table.columns for part in ("mean", "std"))])
    for name, cells in table.rows:
        numbers = [part for cell in cells for part in (mean_and_std(cell.values) if cell.values else ("", ""))]
        writer.writerow([name, *("" if isinstance(n, float) and math.isnan(n) else n for n in numbers)])
    return text.getvalue()


def _latex(table: Table) -> str:
    def cell(value: Cell) -> str:
        text = value.text.replace(" ± ", r" \pm ").replace("–", r"\text{--}")
        return {"best": rf"$\mathbf{{{text}}}$", "second": rf"\underline{{${text}$}}", "": f"${text}$"}[value.mark]

    def plain(text: str) -> str:
        for char in "\\&%$#_{}":
            text = text.replace(char, "\\textbackslash{}" if char == "\\" else f"\\{char}")
        return text.replace("×", r"$\times$").replace("±", r"$\pm$")

    head = " & ".join(["method", *map(plain, table.columns)]) + r" \\"
    body = [" & ".join([plain(name), *map(cell, cells)]) + r" \\" for name, cells in table.rows]
    columns = "l" + "r" * len(table.columns)
    return "\n".join(
        [rf"% {table.title}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *body,
         r"\bottomrule", r"\end{tabular}", *(f"% {note}" for note in table.notes), ""]
    )  # fmt: skip


def _json(table: Table) -> str:
    def cell(value: Cell) -> dict[str, Any]:
        mean, std = mean_and_std(value.values) if value.values else (None, None)
        return {
            "mean": mean,
            "std": None if std is None or math.isnan(std) else std,
            "seeds": list(value.values),
            "mark": value.mark,
        }

    rows = [
        {"method": name, **{column: cell(value) for column, value in zip(table.columns, cells, strict=True)}}
        for name, cells in table.rows
    ]
    return json.dumps({"title": table.title, "rows": rows, "notes": list(table.notes)}, ensure_ascii=False) + "\n"
