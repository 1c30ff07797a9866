"""Results in notebooks: a table of figures and a small picture, as HTML in which every text is escaped."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from unskew.base.display import X
from unskew.base.errors import InputError
from unskew.base.text import count_of
from unskew.measures.classification import NAMES
from unskew.report.comparison import table as comparison_table
from unskew.report.figures import Played, draw_runs
from unskew.report.layout import Picture
from unskew.report.tables import Format, Table, render
from unskew.report.tuning import table as tuning_table
from unskew.runs.comparison import CellResult, Cells, Metric
from unskew.runs.engine import Result
from unskew.runs.folder import Row
from unskew.runs.saved import SavedRun
from unskew.runs.tuning.tune import Tuning


@dataclass(frozen=True)
class ShownTable:
    """A table that shows itself in notebooks; `str()` is Markdown."""

    table: Table

    def to_text(self, form: Format = "md") -> str:
        """The table in one of the forms."""
        return render(self.table, form)

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        return table_to_html(self.table)


def to_html(what: object) -> str:
    """A result, a run in its folder, a comparison or a tuning."""
    try:
        if isinstance(what, (Result, SavedRun)):
            return _figures_to_html(what)
        if isinstance(what, Tuning):
            return table_to_html(tuning_table(what, _make_title(what.cells))) + _picture(what.cells)
        assert isinstance(what, Cells)
        return table_to_html(comparison_table(what, _make_title(what))) + _picture(what)
    except InputError as error:  # a notebook shows a result, never a traceback for it
        return f"<pre>{escape(repr(what)[:500])}\n{escape(str(error))}</pre>"


def make_table(cells: object, title: str, metric: Metric = "last", columns: str | Sequence[str] = ()) -> ShownTable:
    """A comparison's table."""
    assert isinstance(cells, Cells)
    return ShownTable(comparison_table(cells, title or _make_title(cells), metric, columns=columns))


def draw(what: object, measure: str | None, x: X, width: str | float | None, title: str) -> Picture:
    """The curves of a result, a run in its folder, or a comparison."""
    return draw_runs(_list_played(what), measure=measure, x=x, width=width, title=title)


def _list_played(what: object) -> list[Played]:
    if isinstance(what, Result):
        return [Played(str(what.run.method), what.run.method.output, what.rounds)]
    if isinstance(what, SavedRun):
        return [Played(what.about["method"], what.output, what.rounds)]
    assert isinstance(what, list)
    return [Played(cell.method, cell.output, cell.rounds) for cell in what]


def table_to_html(table: Table) -> str:
    """A table with its notes: best bold, second best underlined."""
    marks = {"best": "<b>{}</b>", "second": "<u>{}</u>", "": "{}"}
    head = "".join(f"<th style='text-align:right'>{escape(column)}</th>" for column in table.columns)
    rows = "".join(
        f"<tr><td style='text-align:left'><code>{escape(name)}</code>{escape(table.tag(name))}</td>"
        + "".join(
            f"<td style='text-align:right;white-space:nowrap'>{marks[cell.mark].format(escape(cell.text))}</td>"
            for cell in cells
        )
        + "</tr>"
        for name, cells in table.rows
    )
    notes = "<br>".join(map(escape, table.legend))
    return (
        f"<div><b>{escape(table.title)}</b><table><thead><tr><th style='text-align:left'>method</th>{head}</tr></thead>"
        f"<tbody>{rows}</tbody></table><div style='font-size:85%;opacity:.75'>{notes}</div></div>"
    )


def _figures_to_html(run: Result | SavedRun) -> str:
    folder: Path | None
    if isinstance(run, SavedRun):
        about, summary, folder = run.about, run.summary if run.finished else None, run.path
        rounds = len(run.rounds) - 1
    else:
        about = {key: getattr(run.run, key) for key in ("method", "data", "seed", "rounds")}
        summary, folder, rounds = run.summary, run.folder, run.summary["rounds"]
    heading = f"{about['method']} on {about['data']}, seed {about['seed']}, {count_of(max(rounds, 0), 'round')}"
    if summary is None:
        heading += f" of {about['rounds']}, not finished"
    rows = "".join(
        f"<tr><td style='text-align:left'>{escape(name)}</td><td style='text-align:right'>{escape(value)}</td></tr>"
        for name, value in ([] if summary is None else _list_figures(summary))
    )
    place = f"<div style='font-size:85%;opacity:.75'>{escape(str(_shorten(folder)))}</div>" if folder else ""
    return f"<div><b>{escape(heading)}</b><table><tbody>{rows}</tbody></table>{place}</div>{_picture(run)}"


def _shorten(folder: Path) -> Path:
    """As the program sees it, without a machine's path where that is possible."""
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder


def _list_figures(summary: Row) -> list[tuple[str, str]]:
    own = str(summary.get("accuracy_of", "")).partition(";")[0]
    rows = [(f"accuracy, {name.replace('_', ' ')}", _share(value)) for name, value in summary["accuracy"].items()]
    rows += [
        (f"clients' own models, {name.replace('_', ' ')}", _share(value))
        for name, value in (summary.get("personal_accuracy") or {}).items()
    ]
    figures = summary.get("figures") or {}
    rows += [(label, _share(figures[name])) for name, label in NAMES.items() if figures.get(name) is not None]
    if summary["personal"]:
        rows.append(("clients: mean accuracy", _share(summary["personal"]["mean"])))
        rows.append(("clients: worst tenth", _share(summary["personal"]["worst_decile"])))
    sent = (summary["bytes_down"] + summary["bytes_up"]) / 2**20
    rows += [("accuracy of", own)] * bool(own) + [("sent, down and up", f"{sent:.1f} MiB")]
    return rows + [("diverged", f"in round {summary.get('diverged_in')}")] * bool(summary["diverged"])


def _share(value: float) -> str:
    return f"{100 * value:.2f} %"


def _picture(what: object) -> str:
    try:
        picture = draw(what, None, "rounds", 14, "")._repr_png_()
    except InputError:  # no round was tested yet
        return ""
    data = base64.b64encode(picture).decode()
    return f"<img alt='accuracy over rounds' style='max-width:100%;width:600px' src='data:image/png;base64,{data}'>"


def _make_title(cells: Sequence[CellResult]) -> str:
    """What was compared, in a few words."""
    if not cells:
        return "no runs"
    first = cells[0].summary
    seeds = count_of(len({cell.seed for cell in cells}), "seed")
    known = [str(first[key]) for key in ("data", "split", "model") if key in first]
    return ", ".join([*known, count_of(first["rounds"], "round"), seeds])
