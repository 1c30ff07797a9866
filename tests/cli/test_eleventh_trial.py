"""What an eleventh trial found: files written over, tunings mixed up, trackers not shown, lines that misled."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from safetensors.torch import save_file

import unskew
from cli.calling import Call, assert_refused, contents
from small_runs import SMALL
from unskew.report.split_plot import plot_split
from unskew.runs.folder import FILES


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run, to be copied."""
    place = tmp_path_factory.mktemp("eleventh")
    unskew.run(**{**SMALL, "out": place / "run"})
    return place


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a copy of the run, from which commands are called."""
    shutil.copytree(made / "run", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    return tmp_path


# ----------------------------------------------------------------------------------------- what is written over


OF_A_RUN = (
    "export run -o run/model.safetensors", "export run -o run/../run/model.safetensors",
    "export run -o run/checkpoint/mine.safetensors", "predict run -o run/confusion.csv",
    "predict run -o run/per_class.csv", "plot run -o run/checkpoint/x.png", "report run -o run/checkpoint/x.html",
    "predict run -o run/personal_confusion.csv",  # not there: it would be taken for the run's
)  # fmt: skip


@pytest.mark.parametrize("line", OF_A_RUN)
def test_a_file_of_a_run_is_never_written_over(call: Call, place: Path, line: str):
    before, out = contents(place), line.rpartition(" ")[2]
    assert_refused(call(line), f"'{out}' belongs to the run in {place / 'run'}; choose another --out")
    assert contents(place) == before and call("show run").code == 0


def test_a_link_into_a_run_is_seen_through(call: Call, place: Path):
    (place / "link").symlink_to("run/checkpoint")
    assert_refused(call("export run -o link/x.safetensors"), "'link/x.safetensors' belongs to the run in ")


def test_every_file_that_a_run_writes_is_known(place: Path):
    unskew.run(**{**SMALL, "method": "ditto", "out": place / "ditto"})
    written = {path.name for path in (place / "ditto").iterdir() if path.is_file()}
    assert written <= set(FILES) and "personal_confusion.csv" in written


def test_beside_a_run_and_in_its_folder_there_is_room(call: Call, place: Path):
    (place / "run.toml").write_text("rounds = 2\n")  # a file for `unskew run`, and no run
    for line in ("predict run -o confusion.csv", "predict run -o run/mine.csv", "export run -o model.safetensors"):
        for _ in range(2):
            assert call(line).code == 0


WRITTEN = ("export run -o x.safetensors", "export run -o x.pt2", "export run -o x.onnx", "predict run -o x.csv",
           "plot run -o x.png", "plot run -o x.pdf", "plot run -o x.svg", "plot run --confusion -o x.png",
           "report run -o x.html")  # fmt: skip


@pytest.mark.parametrize("line", WRITTEN)
def test_only_an_earlier_one_is_replaced(call: Call, place: Path, line: str):
    out = place / line.rpartition(" ")[2]
    out.write_text("mine")
    assert_refused(call(line), f"'{out.name}' exists and was not written by this command; remove it or choose another")
    assert out.read_text() == "mine"
    out.write_bytes(b"")  # as mktemp makes them
    for _ in range(2):
        assert call(line).code == 0 and out.stat().st_size > 100
    assert {path.name for path in place.iterdir()} == {"run", out.name}


def draw(name: str) -> None:
    Figure().savefig(name)


def save_tensors(name: str) -> None:
    save_file({"w": torch.ones(3)}, name)


OTHERS = {
    "plot run -o x.png": draw, "plot run -o x.pdf": draw, "plot run -o x.svg": draw,
    "plot run -o split.png": lambda name: plot_split([[1, 2]], ["a", "b"], name, "mine"),
    "export run -o x.safetensors": save_tensors,
    "export run -o kept.safetensors": lambda name: shutil.copy("run/model.safetensors", name),
    "predict run -o x.csv": lambda name: Path(name).write_text("sample,label\n1,2\n"),
    "report run -o x.html": lambda name: Path(name).write_text("<!doctype html><title>unskew: my notes</title>"),
}  # fmt: skip


@pytest.mark.parametrize("line", OTHERS)
def test_a_file_of_the_same_kind_by_somebody_else_stays(call: Call, place: Path, line: str):
    OTHERS[line](line.rpartition(" ")[2])
    before = contents(place)
    assert_refused(call(line), "exists and was not written by this command")
    assert contents(place) == before


def test_of_a_comparison_only_report_and_curves_are_made_anew(call: Call, place: Path):
    quick = "--model mlp --split iid --clients 3 --rounds 2 --steps 2 --quiet --seeds 1 --jobs 1"
    assert call(f"compare --methods fedavg {quick} --out c").code == 0
    before = contents(place)
    for line in ("plot run -o c/split.png", "plot run -o c/measures.png", "predict run -o c/table.csv"):
        assert_refused(call(line), "belongs to the comparison in c; choose another --out")
    assert contents(place) == before
    for line in ("plot c -o c/curves.png", "report c -o c/report.html", "plot run -o run/curves.png"):
        assert call(line).code == 0


# ----------------------------------------------------------------------------------------- two tunings in one folder


def test_run_files_of_an_earlier_tuning_move_with_its_table(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    quick = "--clients 3 --rounds 2 --steps 2 --model mlp --split iid --seeds 1 --jobs 1 --out t"
    assert call(f"tune --methods fedavg,fedprox --grid lr=0.3 {quick} -q").code == 0
    with (tmp_path / "t/tuned/fedavg.toml").open("a") as file:
        file.write("# my note\n")
    first = contents(tmp_path / "t/tuned")
    said = call(f"tune --methods fedavg --grid lr=0.01 {quick}")
    assert said.code == 0 and "the chosen settings as run files: t/tuned/fedavg.toml\n" in said.err
    (kept,) = (tmp_path / "t/earlier").iterdir()
    assert contents(kept / "tuned") == first and (kept / "table.json").exists()
    assert set(contents(tmp_path / "t/tuned")) == {"fedavg.toml"}
    assert "lr = 0.01\n" in (tmp_path / "t/tuned/fedavg.toml").read_text()
    before = contents(tmp_path / "t/earlier")
    assert call(f"tune --methods fedavg --grid lr=0.01 {quick} -q").code == 0  # the same again: nothing to keep
    assert contents(tmp_path / "t/earlier") == before


def test_tuning_over_run_files_of_the_users_is_refused_at_once(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t/tuned").mkdir(parents=True)
    (tmp_path / "t/tuned/fedavg.toml").write_text("mine")
    assert_refused(
        call("tune --methods fedavg --grid lr=0.3 --out t"),
        "t/tuned/fedavg.toml already exists and belongs to no tuning",
    )
    assert contents(tmp_path / "t") == {"tuned": None, "tuned/fedavg.toml": b"mine"}


# ----------------------------------------------------------------------------------------- lines that misled


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


def test_weights_that_a_program_hands_over_name_the_tensor(place: Path):
    held = {name: tensor.clone() for name, tensor in unskew.open("run").model().state_dict().items()}
    held["head.bias"][1] = float("nan")
    with pytest.raises(unskew.InputError, match=r"init \(--init\): handed over holds NaN .* in head\.bias"):
        unskew.run(**SMALL, init=held)


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


@pytest.mark.parametrize("given", ["folder", "folder/", "./folder"])
def test_a_folder_is_no_plugin(call: Call, place: Path, given: str):
    (place / "folder").mkdir()
    (place / "folder/notes.txt").write_text("mine")
    line = (
        f"plugin {given}: expected a Python file or module, got a folder, of which nothing is imported; name a Python"
    )
    assert_refused(call(f"{QUICK} --plugin {given}"), line)
    (place / "folder/mine.py").write_text("import unskew\n")
    assert_refused(call(f"{QUICK} --plugin {given}"), line)
    assert call(f"{QUICK} --plugin folder.mine").code == 0


def test_a_package_is_a_plugin(call: Call, place: Path):
    (place / "package").mkdir()
    (place / "package/__init__.py").write_text("import unskew\n")
    assert call(f"{QUICK} --plugin package").code == 0
