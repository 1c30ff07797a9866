"""Folders that cannot be written, are full, or that another process is working on: one line, nothing is lost."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import unskew
from cli.calling import Call, assert_refused, contents
from unskew.runs import engine
from unskew.runs.folder import RunFolder

QUICK = "--model mlp --split iid --clients 4 --executor serial --quiet"


def interrupt(row) -> None:
    if row["round"] == 2:
        raise KeyboardInterrupt


def cut(path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        unskew.run(
            "fedper", model="mlp", split="iid", clients=4, rounds=4, executor="serial", out=path, watch=interrupt
        )


def remount(place: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(place)], check=True)


def test_a_read_only_run_is_refused_and_a_finished_one_is_read(call: Call, disk: Callable[[str], Path]):
    place = disk("size=8m")
    cut(place / "cut")
    done = unskew.run("fedper", model="mlp", split="iid", clients=4, rounds=2, executor="serial", out=place / "done")
    before = contents(place)
    remount(place, "ro")
    try:
        assert_refused(
            call(f"resume {place / 'cut'} --quiet"), "Read-only file system; resume it where it can be written"
        )
        assert call(f"resume {place / 'done'} --json").code == 0
        again = unskew.resume(place / "done")
        assert again.summary["accuracy"] == done.summary["accuracy"]
        again.client_model(1)
    finally:
        remount(place, "rw")
    assert contents(place) == before


def test_a_run_that_another_process_works_on_is_left_alone(call: Call, tmp_path: Path):
    cut(tmp_path / "run")
    with (tmp_path / "run" / "rounds.jsonl").open("a") as file:
        file.write('{"round": 3, "cli')  # the other process is writing this row
    script = "import sys, time; from pathlib import Path; from unskew.runs.folder import RunFolder\n"
    script += "with RunFolder(Path(sys.argv[1])).lock(): print('held', flush=True); time.sleep(60)"
    before = contents(tmp_path / "run")
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "run")], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        assert_refused(call(f"resume {tmp_path / 'run'} --quiet"), "another process is working on")
        other.kill()
    assert contents(tmp_path / "run") == before
    assert call(f"resume {tmp_path / 'run'} --quiet").code == 0


@pytest.mark.slow
def test_a_full_disk_in_a_run_and_in_a_comparison(call: Call, disk: Callable[[str], Path], monkeypatch):
    place = disk("size=400k")
    said = call(f"run {QUICK} --method fedavg --rounds 3000 --out {place / 'run'}")
    assert_refused(said, "No space left on device")
    for line in (place / "run" / "rounds.jsonl").read_text().splitlines():
        json.loads(line)
    remount(place, "size=20m")
    folder, _ = RunFolder.open(place / "run")
    whole = len(folder.rounds())
    text = (place / "run" / "run.toml").read_text()
    assert whole > 10 and "rounds = 3000" in text
    remount(place, "size=1m")
    line = f"compare {QUICK} --methods fedavg,scaffold --seeds 1 --rounds 3000 --out {place / 'c'}"
    assert_refused(call(line), "No space left on device")
    assert call(f"resume {place / 'c/runs'} --quiet").code == 2
    first = next((place / "c/runs").iterdir())
    rows = RunFolder(first).rounds()
    assert sorted(rows) == list(range(len(rows)))


def test_a_clock_that_goes_backwards_changes_nothing(tmp_path: Path, monkeypatch):
    plain = unskew.run("scaffold", model="mlp", clients=4, rounds=2, executor="serial")
    now = [2e9]

    def backwards() -> float:
        now[0] -= 3600
        return now[0]

    monkeypatch.setattr(time, "time", backwards)
    result = unskew.run("scaffold", model="mlp", clients=4, rounds=2, executor="serial", out=tmp_path / "run")
    assert result.accuracy == plain.accuracy and engine.resume(tmp_path / "run").accuracy == plain.accuracy
    assert all(value >= 0 for row in result.rounds for value in row["seconds"].values())
