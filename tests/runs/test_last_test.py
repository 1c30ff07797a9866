"""Figures beyond accuracy in runs: whose they are, where they stand, and that they are the same however a run goes."""

import csv
import json

import pytest

import unskew
from unskew.base.errors import InputError
from unskew.cli.app import main
from unskew.report.comparison import table
from unskew.runs.config import from_table
from unskew.runs.folder import RunFolder
from unskew.runs.last_test import read_confusion
from unskew.runs.summary import read_finished

TINY = {"model": "mlp", "clients": 4, "rounds": 2, "lr": 0.1, "steps": 5}


def call(*arguments):
    with pytest.raises(SystemExit) as end:
        main([str(each) for each in arguments])
    return end.value.code


@pytest.mark.parametrize("method", ["fedavg", "fedper", "ditto", "knnper"])
def test_the_tables_agree_with_accuracy(method, tmp_path):
    result = unskew.run(method, out=tmp_path / "run", **TINY)
    summary, run = result.summary, unskew.open(tmp_path / "run")
    assert run.summary["figures"] == summary["figures"] and all(v is not None for v in summary["figures"].values())
    confusion = run.confusion()
    assert (confusion.counts == result.confusion().counts).all()
    assert confusion.accuracy == pytest.approx(summary["accuracy"]["last"], abs=1e-12)
    assert confusion.macro_f1 == summary["figures"]["macro_f1"]
    if summary["class_accuracy"] is not None:
        assert [row.recall for row in confusion.per_class] == summary["class_accuracy"]
    rows = list(csv.DictReader((tmp_path / "run" / "per_class.csv").open()))
    assert [(row["class"], int(row["support"])) for row in rows] == [(r.name, r.support) for r in confusion.per_class]
    assert ("personal_figures" in summary) == (method in ("ditto", "knnper"))
    if "personal_figures" in summary:
        assert result.confusion(personal=True).accuracy == pytest.approx(summary["personal"]["pooled"], abs=1e-12)


def test_the_same_on_every_executor_and_after_a_crash(tmp_path):
    runs = {
        name: unskew.run("ditto", executor=name, out=tmp_path / name, **TINY) for name in ("serial", "pool", "stacked")
    }
    keys = ("figures", "personal_figures")
    serial, pool, stacked = ({key: run.summary[key] for key in keys} for run in runs.values())
    assert serial == pool
    assert all(stacked[key] == pytest.approx(serial[key], abs=0.02) for key in keys)
    kept = {path.name: path.read_bytes() for path in (tmp_path / "serial").glob("*.*")}
    for name in ("summary.json", "per_class.csv", "personal_confusion.csv"):
        (tmp_path / "serial" / name).unlink()
    again = unskew.resume(tmp_path / "serial")  # as after a crash between the last row and the summary
    assert {key: again.summary[key] for key in keys} == serial
    assert {path.name: path.read_bytes() for path in (tmp_path / "serial").glob("*.*")} == kept
    finished = unskew.resume(tmp_path / "serial")
    assert finished.summary["figures"] == serial["figures"]
    assert (finished.confusion(True).counts == runs["serial"].confusion(True).counts).all()


def test_of_every_round_if_asked(tmp_path):
    result = unskew.run("fedavg", figures=True, **TINY)
    plain = unskew.run("fedavg", **TINY)
    assert [set(row["figures"]) for row in result.rounds] == [set(result.summary["figures"])] * 3
    assert result.rounds[-1]["figures"] == result.summary["figures"] == plain.summary["figures"]
    assert "figures" not in plain.rounds[-1] and result.run.hash != plain.run.hash
    own = unskew.run("fedper", figures=True, **TINY)
    assert own.rounds[-1]["personal_figures"] == own.summary["figures"]


def test_the_default_changes_no_hash():
    assert from_table({"evaluation": {"figures": False}}).hash == from_table({}).hash


def test_distances_are_no_probabilities():
    figures = unskew.run("fedproto(form=original)", **TINY).summary["figures"]
    assert figures["auc"] is None and figures["calibration_error"] is None and figures["macro_f1"] > 0


def test_a_run_that_recorded_none_is_still_opened_shown_and_compared(tmp_path, capsys):
    cells = unskew.compare("fedavg", seeds=1, out=tmp_path, **TINY)
    folder = cells[0].folder
    summary = json.loads((folder / "summary.json").read_text())
    del summary["figures"], summary["files"]
    (folder / "summary.json").write_text(json.dumps(summary))
    for path in folder.glob("*.csv"):
        path.unlink()
    assert "figures" not in read_finished(RunFolder(folder))
    (again,) = unskew.compare("fedavg", seeds=1, out=tmp_path, **TINY)
    made = table([again], "", columns="macro_f1")
    place = made.columns.index("macro F1 %")
    assert made.rows[0][1][place].text == "–" and any("did not record" in note for note in made.notes)
    assert call("show", folder) == 0 and "macro F1" not in capsys.readouterr().out
    with pytest.raises(InputError, match="it is of a version that wrote none"):
        read_confusion(folder)


def test_commands_show_them(tmp_path, capsys):
    unskew.run("fedavg", out=tmp_path / "run", **TINY)
    assert call("show", tmp_path / "run") == 0
    shown = capsys.readouterr().out
    assert "balanced accuracy" in shown and "the last test by classes" in shown
    assert call("predict", tmp_path / "run", "--json") == 0
    found = json.loads(capsys.readouterr().out)["figures"]
    assert found == pytest.approx(unskew.open(tmp_path / "run").summary["figures"], abs=1e-12)
    assert call("plot", tmp_path / "run", "--confusion", "-o", tmp_path / "x.png") == 0
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "run" / "confusion.csv").write_text("true,a,b\na,1,2\n")
    assert call("plot", tmp_path / "run", "--confusion", "-o", tmp_path / "x.png") == 2
    assert "confusion.csv was edited" in capsys.readouterr().err


def test_columns_of_a_comparison(tmp_path):
    cells = unskew.compare("fedavg,fedprox(mu=1.0),fedper", seeds=1, out=tmp_path, **TINY)
    alike = cells[:2]
    made = table(alike, "", columns="all")
    for label, key in (("AUC %", "auc"), ("calibration error %", "calibration_error")):
        place = made.columns.index(label)
        for (_, row), cell in zip(made.rows, alike, strict=True):
            assert row[place].values == (100 * cell.summary["figures"][key],)
        best = (min if key == "calibration_error" else max)(alike, key=lambda cell: cell.summary["figures"][key])
        assert dict(made.rows)[best.method][place].mark == "best"
    made = table(cells, "", columns="auc")  # figures of different tests are never in one column
    shown = {name: dict(zip(made.columns, row, strict=True)) for name, row in made.rows}
    assert shown["fedper"]["personal AUC %"].values == (100 * cells[2].summary["figures"]["auc"],)
    assert shown["fedper"]["global AUC %"].text == shown["fedavg"]["personal AUC %"].text == "–"
    with pytest.raises(InputError, match="there is no figure 'f2'"):
        table(cells, "", columns="f2")
