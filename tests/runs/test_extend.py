"""A run that is extended is the long run: model, states and rows, whoever did the work and however it was cut off."""

import json
import os
import signal
from pathlib import Path

import pytest

import unskew
from small_runs import SMALL, register, said
from unskew import InputError, tree
from unskew.base import storage
from unskew.runs.config import read_file

SHORT = {**SMALL, "rounds": 3, "sample": 0.67, "eval_every": 2, "lr_decay": 0.9}


def rows_of(folder, name):
    rows = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    return [{**row, "seconds": 0} for row in rows]


def states_of(folder):
    run = unskew.open(folder)
    return [storage.encode(run.client(client).state) for client in range(3)]


def plain_summary(folder):
    found = json.loads((folder / "summary.json").read_text())
    files = {name: mark for name, mark in found["files"].items() if name != "summary.json"}  # it has `extended`
    return {**found, "seconds": 0, "extended": 0, "files": files}


def assert_same_run(one, other):
    """Byte for byte, the times aside."""
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    for name in ("rounds.jsonl", "clients.jsonl"):
        assert rows_of(one, name) == rows_of(other, name)
    assert states_of(one) == states_of(other)
    assert plain_summary(one) == plain_summary(other)


@pytest.mark.parametrize(
    ("method", "executor"),
    [("fedavg", "serial"), ("scaffold", "pool"), ("fedas", "serial"), ("fedbabu(finetune=1)", "serial"),
     ("fedpac", "pool")],
)  # fmt: skip
def test_an_extended_run_is_the_long_run(method, executor, tmp_path):
    options = {**SHORT, "method": method, "executor": executor}
    unskew.run(**options, out=tmp_path / "short")
    before = {path: path.read_bytes() for path in (tmp_path / "short").rglob("*") if path.is_file()}
    result = unskew.extend(tmp_path / "short", 5)
    long = unskew.run(**{**options, "rounds": 5}, out=tmp_path / "long")
    assert result.folder == tmp_path / long.run.title and result.run.hash == long.run.hash
    assert_same_run(result.folder, tmp_path / "long")
    assert storage.encode(result.server) == storage.encode(long.server)
    assert before == {path: path.read_bytes() for path in (tmp_path / "short").rglob("*") if path.is_file()}
    assert not list(tmp_path.glob(".*")), "nothing is left of the folder's making"


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """A finished run, and the one of five rounds that it shall become."""
    place = tmp_path_factory.mktemp("extend")
    unskew.run(**SHORT, method="scaffold", out=place / "short")
    unskew.run(**{**SHORT, "rounds": 5}, method="scaffold", out=place / "long")
    return place


def test_another_executor_and_twice(short, tmp_path):
    unskew.extend(short / "short", 4, out=tmp_path / "four", executor="pool")
    unskew.extend(tmp_path / "four", 5, out=tmp_path / "five")
    assert_same_run(tmp_path / "five", short / "long")
    assert [each["after"] for each in unskew.open(tmp_path / "five").extended] == [3, 4]


def test_a_run_that_stopped_is_extended(short, tmp_path):
    def stop(row):
        if row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        unskew.run(**SHORT, method="scaffold", checkpoint_every=1, out=tmp_path / "cut", watch=stop)
    unskew.extend(tmp_path / "cut", 5, out=tmp_path / "five")
    assert_same_run(tmp_path / "five", short / "long")


def test_killed_while_it_goes_on_it_is_resumed(short, tmp_path):
    child = os.fork()
    if child == 0:
        unskew.extend(short / "short", 5, out=tmp_path / "five", watch=lambda row: os.kill(os.getpid(), signal.SIGKILL))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    run = unskew.open(tmp_path / "five")
    assert not run.finished and len(run.rounds) == 5  # the killed round had written its row
    unskew.resume(tmp_path / "five")
    assert_same_run(tmp_path / "five", short / "long")


def test_killed_while_its_folder_is_made_nothing_is_left_but_a_part(short, tmp_path, monkeypatch):
    child = os.fork()
    if child == 0:
        monkeypatch.setattr(Path, "replace", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        unskew.extend(short / "short", 5, out=tmp_path / "five")
    os.waitpid(child, 0)
    assert not (tmp_path / "five").exists()
    unskew.extend(short / "short", 5, out=tmp_path / "five")
    assert_same_run(tmp_path / "five", short / "long")
    assert [path.name for path in tmp_path.iterdir()] == ["five"]


def test_a_comparison_takes_it_for_its_cell(tmp_path):
    options = {**SHORT, "seeds": [3], "out": tmp_path / "all"}
    (cell,) = unskew.compare("fedavg", **options)
    unskew.extend(cell.folder, 4)
    (longer,) = unskew.compare("fedavg", **{**options, "rounds": 4})
    assert longer.reused and longer.folder != cell.folder and longer.summary["rounds"] == 4


def test_what_depends_on_the_number_of_rounds_is_another_run(tmp_path, caplog):
    options = {**SMALL, "schedule": "cosine"}
    unskew.run(**options, out=tmp_path / "short")
    result = unskew.extend(tmp_path / "short", 3, out=tmp_path / "longer")
    assert "schedule cosine depends on the number of rounds: the first 2 are not those of a run of 3" in said(caplog)
    assert result.run.hash != unskew.run(**{**options, "rounds": 3}).run.hash
    assert result.summary["extended"][0]["same"] is False
    assert (
        unskew.resume(tmp_path / "longer").run.hash == result.run.hash == unskew.open(tmp_path / "longer").config.hash
    )
    assert len(read_file(tmp_path / "longer" / "run.toml")["extended"]) == 1


def test_own_code_that_reads_the_number_of_rounds(tmp_path, caplog, own_names):
    def train(self, c, params):
        return unskew.sgd(c, params, self.gradient) if c.rounds else params

    register("methods", "reads_rounds", unskew.Method, train=train)
    unskew.run(**{**SMALL, "method": "reads_rounds"}, out=tmp_path / "short")
    unskew.extend(tmp_path / "short", 3, out=tmp_path / "longer")
    assert "reads_rounds (your own code reads 'rounds') depends on the number of rounds" in said(caplog)


REFUSED = {
    "fewer": ({"rounds": 2}, "expected more than the 3 rounds of"),
    "as many": ({"rounds": 3}, "expected more than the 3 rounds of"),
    "no number": ({"rounds": "many"}, "rounds: expected a whole number from 1 up, got 'many' (str)"),
    "taken": ({"rounds": 5, "out": "long"}, "holds a finished run; choose another --out"),
    "stacked": ({"rounds": 5, "executor": "stacked"}, "to the last bit it continues with serial, pool, ray or auto"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case, short):
    options, line = REFUSED[case]
    if "out" in options:
        options = {**options, "out": short / options["out"]}
    before = sorted(short.rglob("*"))
    with pytest.raises(InputError, match=line.replace("(", r"\(").replace(")", r"\)")):
        unskew.extend(short / "short", **options)
    assert sorted(short.rglob("*")) == before


def test_a_run_without_a_checkpoint_or_that_diverged(tmp_path, own_names):
    def update(self, s, server, merged):
        return {**server, "model": tree.scale(server["model"], float("inf") if s.round == 2 else 1.0)}

    register("methods", "bursts", unskew.Method, update=update)
    with pytest.raises(KeyboardInterrupt):
        unskew.run(**SMALL, out=tmp_path / "begun", watch=lambda row: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(InputError, match=r"holds no checkpoint, .*run.toml --rounds 4' runs all of it"):
        unskew.extend(tmp_path / "begun", 4)
    unskew.run(**{**SMALL, "method": "bursts", "rounds": 4}, out=tmp_path / "diverged")
    assert unskew.open(tmp_path / "diverged").summary["stopped"]
    with pytest.raises(InputError, match="diverged and stopped in round 2, as it would in a longer run"):
        unskew.extend(tmp_path / "diverged", 6)
