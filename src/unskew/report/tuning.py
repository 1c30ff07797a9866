"""Tuned methods in a table: how many settings each had, which was chosen; and the table of all trials."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace

from unskew.report.comparison import table as comparison_table
from unskew.report.tables import Cell, Table
from unskew.runs.comparison import Metric
from unskew.runs.tuning.space import describe
from unskew.runs.tuning.tune import Trial, Tuned, Tuning

COLUMNS = ("method", "setting", "rounds", "validation %", "chosen", "runs")


def table(tuning: Tuning, title: str, metric: Metric = "last") -> Table:
    """The comparison's table with what tuning did for each method."""
    made = comparison_table(tuning.cells, title, metric, tuning.notes)
    by_name = {str(own.run.method): own for own in tuning.tuned}
    rows = tuple((name, (*cells, *_tell(by_name[name]))) for name, cells in made.rows)
    borders = tuple(f"{own.method}: {line}; a better value may lie beyond it" for own in tuning.tuned
                    for line in own.borders)  # fmt: skip
    explained = "settings: how many different ones were tried, and how many there are; validation %: of the chosen one"
    return replace(
        made, columns=(*made.columns, "settings", "chosen", "validation %"), rows=rows,
        notes=(*made.notes, explained, *borders),
    )  # fmt: skip


def _tell(own: Tuned) -> tuple[Cell, ...]:
    number = f"{own.tried}" if own.possible is None else f"{own.tried} of {own.possible}"
    assert own.chosen.score is not None
    return Cell((), words=number), Cell((), words=describe(own.chosen.setting)), Cell((100 * own.chosen.score,))


def render_trials(trials: Sequence[Trial], tuned: Sequence[Tuned]) -> dict[str, str]:
    """All trials as files: the same rows in three forms."""
    chosen = [own.chosen for own in tuned]
    rows = [(trial, any(trial is own for own in chosen)) for trial in trials]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    lines = ["| " + " | ".join(COLUMNS[:-1]) + " |", "|---" * (len(COLUMNS) - 1) + "|"]
    for trial, best in rows:
        score = None if trial.score is None else 100 * trial.score
        shown = "diverged" if score is None else f"{score:.2f}"
        writer.writerow([trial.method, describe(trial.setting), trial.rounds, "diverged" if score is None else score,
                         "yes" if best else "", " ".join(trial.folders)])  # fmt: skip
        lines.append(
            f"| `{trial.method}` | {describe(trial.setting)} | {trial.rounds} | {shown} | {'yes' if best else ''} |"
        )
    records = [
        {"method": trial.method, "setting": trial.setting, "rounds": trial.rounds, "validation": trial.score,
         "diverged": trial.score is None, "chosen": best, "runs": list(trial.folders)}
        for trial, best in rows
    ]  # fmt: skip
    return {
        "trials.json": json.dumps(records, indent=1, ensure_ascii=False, default=str) + "\n",
        "trials.md": "\n".join(lines) + "\n",
        "trials.csv": text.getvalue(),
    }
