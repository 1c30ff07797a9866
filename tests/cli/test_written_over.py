"""What commands write over: their own earlier file, and no file of a run, a comparison, a tuning or a user."""

import shutil
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from safetensors.torch import save_file

import unskew
from cli.calling import Call, assert_refused, contents
from small_runs import SMALL
from unskew.report.split_plot import plot_split
from unskew.runs.folder import FILES

# ---------------------------------------------------------------------------------------- files of runs and comparisons

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


def test_of_a_comparison_only_report_and_curves_are_made_anew(call: Call, place: Path):
    quick = "--model mlp --split iid --clients 3 --rounds 2 --steps 2 --quiet --seeds 1 --jobs 1"
    assert call(f"compare --methods fedavg {quick} --out c").code == 0
    before = contents(place)
    for line in ("plot run -o c/split.png", "plot run -o c/measures.png", "predict run -o c/table.csv"):
        assert_refused(call(line), "belongs to the comparison in c; choose another --out")
    assert contents(place) == before
    for line in ("plot c -o c/curves.png", "report c -o c/report.html", "plot run -o run/curves.png"):
        assert call(line).code == 0


# ------------------------------------------------------------------------------------------------------ files of others

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


# -------------------------------------------------------------------------------------------- two tunings in one folder


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
