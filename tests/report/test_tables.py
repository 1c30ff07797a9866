"""Tables of comparisons."""

import csv
import io
import json
import math

import pytest

import unskew
from small_runs import SKEWED
from unskew.base.errors import InputError
from unskew.report.comparison import table
from unskew.report.curves import plot_curves
from unskew.report.tables import Cell, Table, mark_best, render

ROWS = [(90.0, 92.0), (95.0, 95.0), (80.0, 81.0)]
TABLE = Table(
    "digits, 2 seeds",
    ("accuracy %", "time ×"),
    tuple(
        (name, (Cell(values, mark), Cell((1.0, 1.5))))
        for name, values, mark in zip(("fedavg", "fedprox(mu=0.1)", "a_b"), ROWS, mark_best(ROWS), strict=True)
    ),
    ("a note",),
)


def test_best_and_second_are_marked():
    assert mark_best(ROWS) == ["second", "best", ""]
    assert mark_best(ROWS, higher_is_better=False) == ["second", "", "best"]
    assert mark_best([(1.0,), (1.0,), (0.5,)]) == ["best", "best", "second"]
    assert mark_best([(1.0,)]) == [""] and mark_best([(1.0,), ()]) == ["", ""]


def test_cells():
    assert Cell((90.0, 92.0)).text == "91.00 ± 1.41"
    assert Cell((90.0,)).text == "90.00" and Cell(()).text == "–"


def test_markdown():
    text = render(TABLE, "md")
    assert "| `fedprox(mu=0.1)` | **95.00 ± 0.00** | 1.25 ± 0.35 |" in text
    assert "| `fedavg` | <u>91.00 ± 1.41</u> |" in text and "a note" in text


def test_csv():
    rows = list(csv.reader(io.StringIO(render(TABLE, "csv"))))
    assert rows[0] == ["method", "accuracy % mean", "accuracy % std", "time × mean", "time × std"]
    assert rows[1][0] == "fedavg" and float(rows[1][1]) == 91.0 and math.isclose(float(rows[1][2]), 2**0.5)


def test_latex():
    text = render(TABLE, "latex")
    assert r"fedprox(mu=0.1) & $\mathbf{95.00 \pm 0.00}$" in text and r"\underline{$91.00 \pm 1.41$}" in text
    assert r"a\_b" in text and r"accuracy \%" in text and text.count(r"\\") == 4


def test_json():
    found = json.loads(render(TABLE, "json"))
    assert found["rows"][0]["accuracy %"] == {"mean": 91.0, "std": 2**0.5, "seeds": [90.0, 92.0], "mark": "second"}


def test_curves_are_drawn(tmp_path):
    curve = [(0, 0.1), (1, 0.4), (2, 0.6)]
    plot_curves({"a": [curve, curve], "b": [curve]}, tmp_path / "c.png", "title")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("columns", [None, 3, [3]])
def test_columns_that_are_no_names_are_refused(columns, own_folder):
    cells = unskew.compare("fedavg", seeds=1, out="c", **SKEWED)
    with pytest.raises(InputError, match="columns: expected names of figures"):
        table(cells, "digits", columns=columns)
