"""Bad input: one clear line on standard error, exit code 2, no traceback, and every file stays as it is."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save_file

import unskew
from cli.calling import Call, assert_refused, contents
from cli.refusals import REFUSED


@pytest.mark.parametrize(("line", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(call: Call, bad_files: Path, monkeypatch: pytest.MonkeyPatch, line: str, text: str):
    monkeypatch.chdir(bad_files)
    before = contents(bad_files)
    assert_refused(call(line), text)
    assert contents(bad_files) == before


@pytest.mark.parametrize("name", ["unknown method", "corrupt TOML", "emoji in a name"])
def test_refused_by_the_installed_command(bad_files: Path, name: str):
    line, text = REFUSED[name]
    done = subprocess.run(
        [sys.executable, "-m", "unskew", *line.split()], cwd=bad_files, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and text in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_standard_output_on_a_full_disk():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "unskew", "methods"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 2
    assert done.stderr.startswith("error: No space left on device") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("line", ["--help", "methods", "methods --json"])
def test_closed_pipe(line: str):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "unskew", *line.split()], stdout=writing, stderr=subprocess.PIPE, text=True
    )
    os.close(writing)
    assert done.returncode == 141 and done.stderr == ""


# ------------------------------------------------------------------------------------ runs that were damaged


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of three rounds whose clients keep states."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    unskew.run("scaffold", clients=4, split="iid", rounds=3, model="mlp", checkpoint_every=1, out=folder)
    return folder


@pytest.fixture
def interrupted(finished: Path, tmp_path: Path) -> Path:
    """The same run as a crash before its end leaves it."""
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    (folder / "summary.json").unlink()
    (folder / "model.safetensors").unlink()
    return folder


def checkpoints(folder: Path) -> list[Path]:
    return sorted((folder / "checkpoint").glob("round-*.safetensors"))


def test_damaged_newest_checkpoint_falls_back(call: Call, finished: Path, interrupted: Path):
    newest = checkpoints(interrupted)[-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    said = call(f"resume {interrupted} --quiet --json")
    assert said.code == 0
    assert "warning: " in said.err and f"{newest} is damaged" in said.err
    assert json.loads(said.out)["rounds"] == 3
    assert (interrupted / "model.safetensors").read_bytes() == (finished / "model.safetensors").read_bytes()


def test_all_checkpoints_damaged(call: Call, interrupted: Path):
    for path in checkpoints(interrupted):
        path.write_bytes(b"")
    before = contents(interrupted)
    said = call(f"resume {interrupted} --quiet")
    (line,) = said.err.splitlines()
    assert said.code == 2 and said.out == ""
    assert line.startswith("error: no checkpoint in ") and "start the run again in another folder" in line
    assert contents(interrupted) == before


DAMAGES = {
    "split.json": (b"{", "is not valid JSON"),
    "rounds.jsonl": (b"\xff\xfe\n", "rounds.jsonl is damaged at line 1: expected a JSON object with round"),
    "clients.jsonl": (b"3\n", "clients.jsonl is damaged at line 1: expected a JSON object with round and client"),
    "summary.json": (b"[]", "summary.json: it lacks figures that every run has; remove the file"),
    "run.toml": (b"\xff", "run.toml is not a valid TOML file"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_file_of_a_run(call: Call, interrupted: Path, name: str):
    content, text = DAMAGES[name]
    (interrupted / name).write_bytes(content)
    before = contents(interrupted)
    assert_refused(call(f"resume {interrupted} --quiet"), text)
    assert contents(interrupted) == before


def test_other_partition_in_a_run(call: Call, bad_files: Path, interrupted: Path):
    shutil.copy(bad_files / "other_data.json", interrupted / "split.json")
    assert_refused(call(f"resume {interrupted} --quiet"), "was made for other data than 'digits' gives now")


def test_resume_with_an_unknown_executor(call: Call, interrupted: Path):
    assert_refused(
        call(f"resume {interrupted} --executor gpu"),
        "input should be 'serial', 'pool', 'stacked', 'ray' or 'auto', got 'gpu'",
    )


def test_resume_with_an_executor_that_rounds_otherwise(call: Call, interrupted: Path):
    before = contents(interrupted)
    assert_refused(
        call(f"resume {interrupted} --executor stacked"), "continues with serial, pool, ray or auto only, got 'st"
    )
    assert contents(interrupted) == before


def test_resume_after_the_data_changed(call: Call, bad_files: Path, tmp_path: Path):
    data, run = tmp_path / "data.npz", tmp_path / "run"
    shutil.copy(bad_files / "good.npz", data)
    assert call(f"run --data npz:{data} --split iid --clients 2 --rounds 2 --model mlp --out {run} --quiet").code == 0
    (run / "summary.json").unlink()
    arrays = dict(np.load(data))
    np.savez(data, images=arrays["images"], labels=3 - arrays["labels"])
    before = contents(run)
    assert_refused(call(f"resume {run} --quiet"), "was made for other data than")
    assert contents(run) == before


def test_failed_client_is_exit_1_and_resumable(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "failing.py").write_text(
        "from unskew.core.method import methods\n"
        "from unskew.methods.fedavg import FedAvg\n\n"
        "@methods.register('failing')\n"
        "class Failing(FedAvg):\n"
        "    'Fails at work.'\n\n"
        "    def criterion(self, c, out, batch):\n"
        "        raise RuntimeError('no terms today')\n"
    )
    said = call("run --plugin failing.py --method failing --rounds 1 --out run --quiet")
    assert said.code == 1 and said.out == ""
    assert said.err.splitlines()[-1].startswith("error: client ") and "no terms today" in said.err
    assert (tmp_path / "run" / "run.toml").exists()


# ------------------------------------------------------------------------------------ disks


def test_read_only_place(call: Call, disk):
    place = disk("ro,size=256k")
    assert_refused(call(f"run --rounds 1 --out {place / 'run'} --quiet"), "Read-only file system; choose another --out")
    assert_refused(call(f"split --out {place / 'split.json'}"), "Read-only file system; choose a writable place")
    assert_refused(call(f"split --picture {place / 'split.png'}"), "Read-only file system; choose a writable place")
    assert_refused(call(f"compare --methods fedavg --rounds 1 --out {place / 'c'}"), "Read-only file system")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_place_without_the_right_to_write(call: Call, tmp_path: Path):
    (tmp_path / "closed").mkdir(mode=0o500)
    said = call(f"run --rounds 1 --out {tmp_path / 'closed' / 'run'} --quiet")
    assert_refused(said, "Permission denied; choose another --out")


def test_system_refuses_a_folder(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*args: object, **options: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    said = call(f"run --rounds 1 --out {tmp_path / 'run'} --quiet")
    assert_refused(said, "cannot create the run folder")


RUN = "run --method scaffold --model mlp --split iid --clients 10 --rounds 6 --quiet"


def assert_whole(folder: Path) -> None:
    """Every row can be read, every checkpoint and state has the checksum its name says, no half file is left."""
    for path in (path for path in folder.rglob("*") if path.is_file()):
        if path.suffix == ".safetensors" and path.parent.name == "checkpoint":
            assert hashlib.sha256(path.read_bytes()).hexdigest()[:16] == path.name.split(".")[-2]
        elif path.suffix == ".jsonl":
            assert all(isinstance(json.loads(line), dict) for line in path.read_text().splitlines())
        else:
            assert path.name in ("run.toml", "split.json", "labels.json", ".lock") or path.name == "clients.sqlite"


@pytest.mark.parametrize("every", [1, 100], ids=["in a checkpoint", "in a row"])
def test_full_disk(call: Call, disk, tmp_path: Path, every: int):
    place = disk("size=256k")
    run = place / "run"
    if every == 100:
        (place / "ballast").write_bytes(bytes(256 * 1024 - 10 * 4096))
    said = call(f"{RUN} --checkpoint-every {every} --out {run}")
    assert_refused(said, "No space left on device")
    assert_whole(run)
    subprocess.run(["mount", "-o", "remount,size=64m", str(place)], check=True)
    assert call(f"resume {run} --quiet").code == 0
    assert call(f"{RUN} --out {tmp_path / 'calm'}").code == 0
    assert (run / "model.safetensors").read_bytes() == (tmp_path / "calm" / "model.safetensors").read_bytes()
    rows = [json.loads(line)["round"] for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert sorted(set(rows)) == list(range(7))


# ------------------------------------------------------------------------- weights, classes and options that do not fit

QUICK = "run --model mlp(hidden=[8]) --split iid --clients 3 --rounds 1 --quiet --no-picture --out new"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_name_their_file_and_tensor(call: Call, place: Path, value: float):
    held = {name: tensor.clone() for name, tensor in unskew.open("run").model().state_dict().items()}
    held["head.bias"][1] = value
    save_file(held, "spoilt.safetensors")
    line = f"init (--init): {place / 'spoilt.safetensors'} holds NaN or infinite numbers in head.bias; start from"
    assert_refused(call(f"{QUICK} --init spoilt.safetensors"), line)
    assert not (place / "new").exists()
    assert call(f"{QUICK} --init spoilt.safetensors --init-only body.*").code == 0


def save_classes(names: list[str]) -> None:
    images, labels = np.zeros((10 * len(names), 8, 8), np.uint8), np.arange(10 * len(names)) % len(names)
    np.savez("other.npz", x=images, y=labels, classes=np.array(names))


DIGITS = list("0123456789")
OTHER_CLASSES = {
    "more": ([*DIGITS, "10", "11"], "expected the run's 10 classes, got 12; '10' is none of the run's"),
    "fewer": (DIGITS[:-1], "expected the run's 10 classes, got 9; '9' is not among them"),
    "another": ([*DIGITS[:-1], "nine"], "expected the run's 10 classes, got 10; 'nine' is none of the run's"),
    "order": ([*DIGITS[:7], "8", "7", "9"], "got 10 in another order: class 7 is '8', of the run '7'"),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHER_CLASSES)
def test_other_classes_are_told_by_what_differs(call: Call, place: Path, case: str):
    names, line = OTHER_CLASSES[case]
    save_classes(names)
    said = call("predict run --data npz:other.npz")
    assert_refused(said, line)
    assert said.err.startswith("error: npz:other.npz: expected the run's 10 classes, got ")


@pytest.mark.parametrize("more", ["", " --momentum 0.9"])
def test_nesterov_belongs_to_sgd(call: Call, place: Path, more: str):
    said = call(f"{QUICK} --optimiser adam --nesterov true{more}")
    assert_refused(said, "local.nesterov (--nesterov) = True belongs to sgd and means nothing to adam, whose own")


def test_what_an_optimiser_does_not_read_says_whose_it_is(call: Call, place: Path):
    said = call(f"{QUICK} --optimiser adam --momentum 0.9")
    assert_refused(
        said, "(--momentum) = 0.9 belongs to sgd and means nothing to adam, whose own options are beta1, beta2"
    )
    assert said.err.endswith("; leave it out, or use sgd\n")
    said = call(f"{QUICK} --optimiser adamw --weight-decay 0.1")
    assert_refused(said, "(--weight-decay) = 0.1 belongs to adam and sgd and means nothing to adamw")
    assert said.err.endswith('; leave it out, or write --optimiser "adamw(weight_decay=0.1)"\n')
