"""A comparison as a table: mean ± std over seeds, best and second best marked, in five forms."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from unskew.base.errors import InputError
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
    words: str = ""
    """What is not a figure."""

    @property
    def text(self) -> str:
        """`mean ± std`; without the deviation where there is one seed."""
        if self.words:
            return self.words
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
    personal: tuple[str, ...] = ()
    """Methods that have personal models only, where others have a global one."""
    metric: str = ""
    runs: tuple[str, ...] = ()
    """What was compared, by the names of the runs' folders: they tell two comparisons apart."""

    diverged: tuple[str, ...] = ()
    """Methods of which a run diverged."""
    unfinished: tuple[str, ...] = ()
    """Methods of which a run goes on, or was interrupted."""
    own: tuple[str, ...] = ()
    """Methods whose clients use models of their own, where others' do not: the last rows."""

    @property
    def legend(self) -> tuple[str, ...]:
        """The notes, and what the marks mean if there are any: for forms that show them."""
        marked = any(cell.mark for _, cells in self.rows for cell in cells)
        return (*self.notes, LEGEND) if marked else self.notes

    def tag(self, name: str, personal: bool = True) -> str:
        """What stands behind a method's name; under the headings of `blocks` it need not say `personal` again."""
        said = {"personal": self.personal if personal else (), "diverged": self.diverged,
                "not finished": self.unfinished}  # fmt: skip
        return "".join(f" ({word})" for word, names in said.items() if name in names)

    def blocks(self) -> list[tuple[str, list[tuple[str, tuple[Cell, ...]]]]]:
        """The rows under their headings; one block without a heading where all methods are of one kind."""
        if not self.own:
            return [("", list(self.rows))]
        one = [row for row in self.rows if row[0] not in self.own]
        own = [row for row in self.rows if row[0] in self.own]
        found = (("one global model", one), ("a model for each client", own))
        return [(heading, rows) for heading, rows in found if rows]


def mark_best(values: Sequence[tuple[float, ...]], higher_is_better: bool = True) -> list[Mark]:
    """Marks the best and the second best mean; equal means share a mark."""
    means = [mean_and_std(seeds)[0] if seeds else math.nan for seeds in values]
    ranking = sorted({round(mean, 10) for mean in means if not math.isnan(mean)}, reverse=higher_is_better)
    places: list[Mark] = ["best", "second"]
    marks = dict(zip(ranking, places, strict=False))
    return [marks.get(round(mean, 10), "") if len(ranking) > 1 and not math.isnan(mean) else "" for mean in means]


LEGEND = "bold: best; underlined: second best"
"""What the marks mean, where they are seen."""


def render(table: Table, form: Format) -> str:
    """The table as text in one of the forms."""
    known = {"md": _markdown, "csv": _csv, "latex": _latex, "json": _json}
    if not isinstance(form, str) or form not in known:
        raise InputError(f"there is no form '{form}' of a table; known: {', '.join(sorted(known))}")
    return known[form](table)


def _markdown(table: Table) -> str:
    def cell(value: Cell) -> str:
        return {"best": f"**{value.text}**", "second": f"<u>{value.text}</u>", "": value.text}[value.mark]

    lines = [f"**{table.title}**", "", "| method | " + " | ".join(table.columns) + " |"]
    lines.append("|---" * (len(table.columns) + 1) + "|")
    lines += [
        f"| `{name}`{table.tag(name)} | " + " | ".join(cell(value) for value in cells) + " |"
        for name, cells in table.rows
    ]
    return "\n".join([*lines, "", *(f"{note}  " for note in table.legend)]) + "\n"


def _csv(table: Table) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", *(f"{column} {part}" for column in table.columns for part in ("mean", "std"))])
    for name, cells in table.rows:
        numbers = [part for cell in cells for part in (mean_and_std(cell.values) if cell.values else (cell.words, ""))]
        writer.writerow([name, *("" if isinstance(n, float) and math.isnan(n) else n for n in numbers)])
    return text.getvalue()


def _latex(table: Table) -> str:
    def cell(value: Cell) -> str:
        if value.words:
            return plain(value.words)
        text = value.text.replace(" ± ", r" \pm ").replace("–", r"\text{--}")
        return {"best": rf"$\mathbf{{{text}}}$", "second": rf"\underline{{${text}$}}", "": f"${text}$"}[value.mark]

    def plain(text: str) -> str:
        for char in "\\&%$#_{}":
            text = text.replace(char, "\\textbackslash{}" if char == "\\" else f"\\{char}")
        return text.replace("×", r"$\times$").replace("±", r"$\pm$")

    head = " & ".join(["method", *map(plain, table.columns)]) + r" \\"
    body = [" & ".join([plain(name + table.tag(name)), *map(cell, cells)]) + r" \\" for name, cells in table.rows]
    columns = "l" + "r" * len(table.columns)
    return "\n".join(
        [rf"% {table.title}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *body,
         r"\bottomrule", r"\end{tabular}", *(f"% {note}" for note in table.legend), ""]
    )  # fmt: skip


def _json(table: Table) -> str:
    def cell(value: Cell) -> Any:
        if value.words:
            return value.words
        mean, std = mean_and_std(value.values) if value.values else (None, None)
        return {
            "mean": mean,
            "std": None if std is None or math.isnan(std) else std,
            "seeds": list(value.values),
            "mark": value.mark,
        }

    rows = [
        {
            "method": name,
            "personal": name in table.personal,
            "diverged": name in table.diverged,
            **{column: cell(value) for column, value in zip(table.columns, cells, strict=True)},
        }
        for name, cells in table.rows
    ]
    compared = {"metric": table.metric, "runs": list(table.runs)}
    made = {"title": table.title, "rows": rows, "notes": list(table.notes), "comparison": compared}
    return json.dumps(made, ensure_ascii=False) + "\n"
