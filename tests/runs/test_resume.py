"""Checkpoints: killed at any moment, damaged, torn; the resumed run equals the uninterrupted one byte for byte."""

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from unskew.base import storage
from unskew.base.errors import ClientError, InputError
from unskew.core.task import Task
from unskew.runs import building, checkpoint, engine
from unskew.runs.client_store import StateStore
from unskew.runs.config import from_table
from unskew.runs.folder import RunFolder
from unskew.runs.state_file import NAME

TABLE = {
    "method": "scaffold", "clients": 8, "sample": 0.5, "rounds": 6, "split": "dirichlet:0.5",
    "local": {"lr": 0.05, "momentum": 0.5}, "execution": {"checkpoint_every": 1},
}  # fmt: skip


def rows(path):
    found = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    for row in found:
        row.pop("seconds")
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    engine.run(from_table(TABLE), path)
    return path


def interrupted(path, after, **changes):
    def stop(row):
        if row["round"] == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.run(from_table({**TABLE, **changes}), path, watch=stop)
    return path


def newest(path):
    return sorted((path / "checkpoint").glob("round-*"))[-1]


def assert_equal(path, whole):
    assert (path / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert rows(path) == rows(whole)
    mine, theirs = (json.loads((p / "summary.json").read_text()) for p in (path, whole))
    assert {**mine, "seconds": 0} == {**theirs, "seconds": 0}


def test_a_damaged_newest_checkpoint_falls_back_and_says_so(tmp_path, whole, caplog):
    path = interrupted(tmp_path / "run", 4)
    data = newest(path).read_bytes()
    newest(path).write_bytes(data[: len(data) // 2])
    engine.resume(path)
    assert "damaged" in caplog.text and "from the checkpoint before it" in caplog.text
    assert_equal(path, whole)


def test_a_damaged_client_state_falls_back_too(tmp_path, whole, caplog):
    path = interrupted(tmp_path / "run", 4)
    with sqlite3.connect(path / "checkpoint" / "clients.sqlite") as file:
        row, client, data = file.execute("SELECT id, client, data FROM states ORDER BY id DESC").fetchone()
        file.execute("UPDATE states SET data = ? WHERE id = ?", (data[:-1] + bytes([data[-1] ^ 1]), row))
    file.close()
    engine.resume(path)
    assert f"clients.sqlite is damaged: the state of client {client}" in caplog.text
    assert_equal(path, whole)


def test_no_whole_checkpoint_is_an_error_that_loses_nothing(tmp_path):
    path = interrupted(tmp_path / "run", 3)
    for file in (path / "checkpoint").glob("round-*"):
        file.write_bytes(b"")
    before = sorted(p.name for p in path.rglob("*"))
    with pytest.raises(InputError, match="no checkpoint"):
        engine.resume(path)
    assert before == sorted(p.name for p in path.rglob("*"))


def test_a_torn_last_line_is_cut_off(tmp_path, whole):
    path = interrupted(tmp_path / "run", 3)
    with (path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 4, "clie')
    engine.resume(path)
    assert_equal(path, whole)


def test_rounds_whose_rows_are_lost_run_again(tmp_path, whole, caplog):
    path = interrupted(tmp_path / "run", 4)
    lines = (path / "rounds.jsonl").read_text().splitlines(keepends=True)
    (path / "rounds.jsonl").write_text("".join(lines[:4]) + lines[4][:-20])  # rounds 0 to 3, and a torn one
    engine.resume(path)
    assert_equal(path, whole)
    assert "lacks its last rows, from round 4 on" in caplog.text
    path = interrupted(tmp_path / "other", 4)
    lines = (path / "rounds.jsonl").read_text().splitlines(keepends=True)
    (path / "rounds.jsonl").write_text("".join(lines[:2] + lines[3:]))
    engine.resume(path)
    assert "lacks round 2" in caplog.text
    assert (path / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_two_processes_cannot_work_on_one_run(tmp_path):
    path = interrupted(tmp_path / "run", 2)
    script = "import sys, time; from pathlib import Path; from unskew.runs.folder import RunFolder\n"
    script += "with RunFolder(Path(sys.argv[1])).lock(): print('held', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(InputError, match="another process is working"):
            engine.resume(path)
        other.kill()
    engine.resume(path)


def test_killed_before_the_first_checkpoint_starts_over(tmp_path, whole):
    path = interrupted(tmp_path / "run", 2, execution={"checkpoint_every": 100})
    shutil.rmtree(path / "checkpoint")
    engine.resume(path)
    assert_equal(path, whole)


def test_only_two_checkpoints_and_their_states_are_kept(whole):
    kept = sorted(path.name[:12] for path in (whole / "checkpoint").glob("round-*"))
    assert kept == ["round-000005", "round-000006"]
    assert {path.name for path in (whole / "checkpoint").iterdir() if path.suffix != ".safetensors"} == {
        "clients.sqlite", ".lock",
    }  # fmt: skip
    run_hash = building.prepare(from_table(TABLE)).config.hash
    for last in (5, 6):
        found = checkpoint.load_newest(whole / "checkpoint", checkpoint.Identity(run_hash), last)
        assert found.round == last and found.states[1] > 4


def test_states_on_disk_change_nothing(tmp_path, whole, monkeypatch):
    tiny = StateStore.__init__
    monkeypatch.setattr(
        StateStore, "__init__", lambda self, folder=None, limit=0, name=NAME: tiny(self, folder, 1000, name)
    )
    engine.run(from_table(TABLE), tmp_path / "run")
    assert_equal(tmp_path / "run", whole)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    path = interrupted(tmp_path / "run", 3)
    text = (path / "run.toml").read_text()
    (path / "run.toml").write_text(text.replace("lr = 0.05", "lr = 0.06"))
    with pytest.raises(InputError, match=r"run\.toml was edited: it was run"):
        engine.resume(path)


def test_a_checkpoint_of_another_version_is_refused(tmp_path):
    storage.write_certified(tmp_path, "round-000003", storage.encode({}, {"run": "abc", "round": 3, "states": {}}))
    with pytest.raises(InputError, match="written by another version of unskew"):
        checkpoint.load_newest(tmp_path, checkpoint.Identity("abc"), 9)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_end_in_the_middle_of_a_round_keeps_states_and_model_together(tmp_path, whole, monkeypatch, error):
    path, work, calls = tmp_path / "run", Task.work, [0]

    def fails_later(self, job):
        calls[0] += job.kind == "train"
        if calls[0] == 15:  # the third of four clients of round 4
            raise error
        return work(self, job)

    monkeypatch.setattr(Task, "work", fails_later)
    with pytest.raises((KeyboardInterrupt, ClientError)):
        engine.run(from_table({**TABLE, "execution": {"checkpoint_every": 2}}), path)
    monkeypatch.undo()
    engine.resume(path)
    assert_equal(path, whole)


def test_nothing_is_overwritten(tmp_path, whole):
    before = {p: p.read_bytes() for p in whole.rglob("*") if p.is_file()}
    with pytest.raises(InputError, match="finished run"):
        engine.run(from_table(TABLE), whole)
    assert before == {p: p.read_bytes() for p in whole.rglob("*") if p.is_file()}
    path = interrupted(tmp_path / "run", 2)
    with pytest.raises(InputError, match="unskew resume"):
        engine.run(from_table(TABLE), path)


def test_folder_reads_back(whole):
    folder, run = RunFolder.open(whole)
    wanted = building.prepare(from_table(TABLE)).config
    assert replace(run, execution=wanted.execution) == wanted and folder.finished
    assert run.execution.memory_format != "auto"  # what a rule chose is written down
    assert sorted(folder.rounds()) == list(range(7))
    assert {row["round"] for row in folder.client_rows()} == set(range(1, 7))


@pytest.mark.parametrize("executor", [pytest.param("serial", marks=pytest.mark.slow), "pool"])
def test_kill_nine_at_random_moments(tmp_path, executor):
    """Three kills of a real process; `UNSKEW_KILLS` asks for more."""
    path = tmp_path / "run"
    command = [sys.executable, "-m", "unskew"]
    flags = [
        "--method", "scaffold", "--clients", "8", "--sample", "0.5", "--rounds", "90", "--split", "dirichlet:0.5",
        "--model", "mlp", "--checkpoint-every", "7", "--executor", executor, "--quiet",
    ]  # fmt: skip
    begin = subprocess.Popen([*command, "run", *flags, "--out", str(path)])
    kills = int(os.environ.get("UNSKEW_KILLS", "3"))
    rng = random.Random(executor)
    process, done = begin, 0
    for _ in range(kills):
        _wait_for_progress(path, process, done + rng.randint(1, 25))
        time.sleep(rng.random() * 0.1)
        process.send_signal(signal.SIGKILL)
        process.wait()
        done = _rounds(path)
        process = subprocess.Popen([*command, "resume", str(path), "--quiet"])
    assert process.wait(timeout=300) == 0
    subprocess.run([*command, "run", *flags, "--out", str(tmp_path / "whole")], check=True)
    assert_equal(path, tmp_path / "whole")


def _rounds(path: Path) -> int:
    file = path / "rounds.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def _wait_for_progress(path, process, rounds):
    deadline = time.monotonic() + 120
    while _rounds(path) < rounds and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process.poll() is None, "the run ended before it could be killed"


@pytest.mark.parametrize(("long", "kept"), [(0.0, [5, 6]), (3600.0, [6])])
def test_of_long_rounds_each_has_a_checkpoint(tmp_path, monkeypatch, long, kept):
    monkeypatch.setattr("unskew.runs.loop.LONG", long)
    engine.run(from_table({**TABLE, "execution": {}}), tmp_path / "run")
    found = sorted((tmp_path / "run" / "checkpoint").glob("round-*.safetensors"))
    assert [int(path.name[6:12]) for path in found] == kept
