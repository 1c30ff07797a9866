"""Run folders with damaged, edited or copied files: every command shows what is left, or says it in one line."""

import json
import shutil
from pathlib import Path

import pytest

import unskew
from cli.calling import Call
from small_runs import EVEN
from unskew.base.errors import InputError

pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.fixture
def done(own_folder: Path) -> Path:
    """A finished run of four rounds, with checkpoints of rounds 2 and 4."""
    unskew.run("fedavg", out="done", **{**EVEN, "rounds": 4, "checkpoint_every": 2})
    return Path("done")


def edit_last(file, **values):
    """Changes values of a file's last line."""
    *lines, last = file.read_text().splitlines()
    file.write_text("\n".join([*lines, json.dumps({**json.loads(last), **values})]) + "\n")


@pytest.mark.parametrize("how", ["checkpoint gone", "checkpoint damaged", "row gone"])
def test_a_finished_run_gives_its_last_model_or_none(call: Call, done: Path, how: str):
    (newest,) = done.glob("checkpoint/round-000004*")
    if how == "checkpoint gone":
        newest.unlink()
    elif how == "checkpoint damaged":
        newest.write_bytes(newest.read_bytes()[:-100])
    else:
        rows = (done / "rounds.jsonl").read_text().splitlines(keepends=True)
        (done / "rounds.jsonl").write_text("".join(rows[:-1]))
    with pytest.raises(InputError, match=r"newest whole checkpoint is of round 2|was edited"):
        unskew.open("done").model()
    said = call("export done -o m.safetensors")
    assert said.code == 2 and not Path("m.safetensors").exists(), said


BAD = {
    "seconds": [None, "x"], "accuracy": ["x", [1]], "personal": ["x"], "round": [10**30, -1], "bytes_up": ["x"],
    "measures": ["x"], "class_accuracy": ["x"], "clients": [None], "diverged": ["x"],
}  # fmt: skip


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in BAD.items() for value in values])
@pytest.mark.parametrize("finished", [True, False], ids=["finished", "unfinished"])
def test_rows_of_wrong_types_are_one_line(call: Call, done: Path, key, value, finished):
    edit_last(done / "rounds.jsonl", **{key: value})
    if not finished:
        (done / "summary.json").unlink()
    for line in ("show done", "plot done", "report done -o r.html", "resume done -q"):
        said = call(line)
        assert said.code == 2 and "rounds.jsonl" in said.err, (line, said)
    assert call("watch done --once").code == 0
    assert call("list .").code in (0, 2)


def test_very_deep_json_is_one_line(call: Call, done: Path):
    with (done / "rounds.jsonl").open("a") as file:
        file.write("[" * 100_000 + "\n")
    for line in ("show done", "report done -o r.html", "resume done -q"):
        assert call(line).code == 2


@pytest.mark.parametrize(("key", "value"), [("accuracy", None), ("accuracy", {"last": "x"}), ("seconds", "x")])
def test_summaries_of_wrong_types_are_one_line(call: Call, done: Path, key, value):
    held = json.loads((done / "summary.json").read_text())
    (done / "summary.json").write_text(json.dumps({**held, key: value}))
    for line in ("show done", "report done -o r.html", "resume done -q"):
        said = call(line)
        assert said.code == 2 and "summary.json" in said.err, (line, said)


def test_an_edited_table_and_edited_rows_are_noticed(call: Call, done: Path):
    table = done / "confusion.csv"
    table.write_text(table.read_text().replace("0,", "1,", 1))
    with pytest.raises(InputError, match=r"confusion.csv was edited"):
        unskew.open("done").confusion()
    edit_last(done / "rounds.jsonl", accuracy=0.99)
    said = call("watch done --once")
    assert said.code == 0 and "damaged" in said.out and "was edited" in said.out


def test_a_copy_of_a_comparison_is_left_out(call: Call):
    unskew.compare("fedavg,fedprox", seeds=2, out="all/c", **EVEN)
    shutil.copytree("all/c", "all/backup")
    said = call("report all -o r.html")
    assert said.code == 0 and said.err.count("is a copy of") == 4 and "wrote r.html: 4 runs" in said.out


def test_a_run_file_that_no_run_wrote_is_one_line(call: Call):
    Path("y").mkdir()
    Path("y/run.toml").write_text('method = "fedavg"\n')
    said = call("report y -o r.html")
    assert said.code == 2 and "error:" in said.err
