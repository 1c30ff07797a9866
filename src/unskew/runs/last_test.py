"""What a run's last test says beyond accuracy, in its folder: per_class.csv and confusion.csv.

They are of the models that `accuracy` is of. Where clients have models of their own beside the global one,
personal_per_class.csv and personal_confusion.csv are of these, pooled over the clients' tests.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unskew.base.errors import DamagedRun, InputError, let_pass
from unskew.measures.classification import ClassRow, Confusion, Tested
from unskew.runs.folder import RunFolder

FIGURES = {"figures": "", "personal_figures": "personal_"}
"""The keys of summary.json, and how the names of the files begin."""
_COLUMNS = ("class", *ClassRow._fields[1:])
_CORNER = "true \\ predicted"


def arrange_tests(tested: dict[str, Tested]) -> dict[str, Tested]:
    """The tests by the keys of the summary: what is the clients' own comes first where there is nothing else."""
    if "figures" not in tested and "personal_figures" in tested:
        return {"figures": tested["personal_figures"]}
    return tested


def write_tests(folder: RunFolder, tested: dict[str, Tested]) -> None:
    """Writes the tables of each test."""
    for key, own in tested.items():
        folder.write_text(f"{FIGURES[key]}per_class.csv", _to_csv([_COLUMNS, *own.confusion.per_class]))
        rows = zip(own.confusion.classes, own.confusion.counts.tolist(), strict=True)
        lines = [[_CORNER, *own.confusion.classes], *([name, *counts] for name, counts in rows)]
        folder.write_text(f"{FIGURES[key]}confusion.csv", _to_csv(lines))


def read_confusion(folder: Path, personal: bool = False) -> Confusion:
    """The confusion matrix that a finished run left; `personal`: of the clients' models beside the global one."""
    if not isinstance(personal, bool):
        raise InputError(f"personal: expected True or False, got {personal!r}")
    path = folder / f"{FIGURES['personal_figures' if personal else 'figures']}confusion.csv"
    try:
        RunFolder.at(folder).check_table(path.name)
        (_, *classes), *rows = csv.reader(path.read_text(encoding="utf-8").splitlines())
        counts = np.array([[int(value) for value in row[1:]] for row in rows], np.int64)
        if counts.shape != (len(classes), len(classes)) or [row[0] for row in rows] != classes or counts.min() < 0:
            raise ValueError("expected a row and a column for each class, and counts")
    except FileNotFoundError:
        raise InputError(
            f"there is no {path}: the run is not finished, or it is of a version that wrote none"
            + "; or clients use the global model" * personal
        ) from None
    except (OSError, ValueError) as error:
        let_pass(error)
        raise DamagedRun(f"cannot read {path}: {error}; restore it") from None
    return Confusion(counts, tuple(classes))


def _to_csv(rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
