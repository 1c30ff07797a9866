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
from small_runs import SMALL
from unskew.report.split_plot import plot_split


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


WRITTEN = ("export run -o x.safetensors", "export run -o x.pt2", "export run -o x.onnx", "predict run -o x.csv",
           "plot run -o x.png", "plot run -o x.pdf", "plot run -o x.svg", "plot run --confusion -o x.png",
           "report run -o x.html")  # fmt: skip


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


# ----------------------------------------------------------------------------------------- two tunings in one folder


# ----------------------------------------------------------------------------------------- lines that misled


QUICK = "run --model mlp(hidden=[8]) --split iid --clients 3 --rounds 1 --quiet --no-picture --out new"


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
