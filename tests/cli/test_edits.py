"""Edits between two commands, of code, data, run.toml, rows, comparisons: all is right, or one line says so."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import unskew
from cli.calling import Call, assert_refused, contents, write_images
from unskew.cli.progress import RoundProgress
from unskew.runs.config import read_file

QUICK = "--model mlp --split iid --clients 4 --rounds 3 --quiet"
PLUGIN = """
from unskew import Method, param, registries

@registries.methods.register("edited_mine")
class Mine(Method):
    "Mine."
    mu: float = param(default=1.0, ge=0, doc="strength")

    def weight(self, c, params):
        return {weight}
"""

pytestmark = pytest.mark.usefixtures("own_names")


@pytest.fixture(autouse=True)
def in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(PLUGIN.format(weight="1.0"))


def edit() -> None:
    Path("mine.py").write_text(PLUGIN.format(weight="2.0 + c.num_samples"))


def begin(call: Call, line: str, after: int = 2) -> None:
    """Begins a run and presses Ctrl-C after a round."""

    def press(self: RoundProgress, row: dict) -> None:
        if row["round"] == after:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RoundProgress, "__call__", press)
        assert call(line).code == 130


BEGUN = f"run --plugin mine.py --method edited_mine {QUICK} --out run"

# ------------------------------------------------------------------------------------ code


def test_compare_runs_an_edited_method_again_and_no_other(call: Call):
    flags = QUICK.replace("iid", "dirichlet:0.3")
    line = f"compare --plugin mine.py --methods fedavg,edited_mine {flags} --seeds 1 --out c --json"
    first = json.loads(call(line).out)
    assert len(list(Path("c/runs").iterdir())) == 2
    edit()
    said = call(line.replace(" --quiet", ""))
    assert said.code == 0 and "1 of 2 runs were finished already" in said.err
    second = json.loads(said.out)
    assert len(list(Path("c/runs").iterdir())) == 3
    assert first["rows"][0]["accuracy %"] == second["rows"][0]["accuracy %"]
    assert first["rows"][1]["accuracy %"]["seeds"] != second["rows"][1]["accuracy %"]["seeds"]
    alone = json.loads(call(f"run --plugin mine.py --method edited_mine {flags} --json").out)
    assert 100 * alone["accuracy"]["last"] == second["rows"][1]["accuracy %"]["seeds"][0]


def test_a_copied_run_file_is_not_believed(call: Call):
    assert call(BEGUN).code == 0
    edit()
    shutil.copy("run/run.toml", "copy.toml")
    assert call("run copy.toml --out again --quiet").code == 0
    one, two = read_file(Path("run/run.toml")), read_file(Path("again/run.toml"))
    assert one["code"].keys() == two["code"].keys() == {"mine.py"} and one["code"] != two["code"]


def test_resume_refuses_changed_code(call: Call):
    begin(call, BEGUN)
    edit()
    before = contents(Path("run"))
    assert_refused(call("resume run --quiet"), "run: the code in mine.py changed since the run was begun; restore it")
    with pytest.raises(unskew.InputError, match="accept_changed_code=True"):
        unskew.resume("run")
    assert contents(Path("run")) == before
    Path("mine.py").write_text(PLUGIN.format(weight="1.0"))
    assert call("resume run --quiet").code == 0
    assert call(BEGUN.replace("--out run", "--out calm")).code == 0
    assert Path("run/model.safetensors").read_bytes() == Path("calm/model.safetensors").read_bytes()


def test_accepted_code_is_recorded_and_can_be_resumed_and_refused_again(call: Call):
    begin(call, f"{BEGUN} --checkpoint-every 1 --rounds 4", after=1)
    old = read_file(Path("run/run.toml"))
    edit()

    def press(self: RoundProgress, row: dict) -> None:
        if row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RoundProgress, "__call__", press)
        said = call("resume run --accept-changed-code --quiet")
    assert said.code == 130 and "run goes on with changed code: mine.py" in said.err
    new = read_file(Path("run/run.toml"))
    assert new["code"].keys() == {"mine.py"} and new["code"] != old["code"]
    assert new["code_changes"] == [{"round": 1, "code": old["code"]}]
    newest = sorted(Path("run/checkpoint").glob("round-*"))[-1]
    newest.write_bytes(b"")  # the one before is of the earlier code
    said = call("resume run --quiet --json")
    assert said.code == 0 and "resuming after round 1" in said.err
    summary = json.loads(said.out)
    assert summary["rounds"] == 4 and summary["code_changes"] == new["code_changes"]
    assert call("resume run").code == 0


def test_the_table_says_that_code_changed(call: Call):
    line = f"compare --plugin mine.py --methods edited_mine {QUICK} --seeds 1 --out c"
    begin(call, line, after=1)
    (cell,) = Path("c/runs").iterdir()
    edit()
    assert call(f"resume {cell} --accept-changed-code --quiet").code == 0
    Path("mine.py").write_text(PLUGIN.format(weight="1.0"))
    said = call(line)
    assert said.code == 0 and "went on with changed code after round 1" in said.err
    assert "edited_mine, seed 0: went on with changed code after round 1" in Path("c/table.md").read_text()


@pytest.mark.parametrize("text", [None, "import nosuchmodule\n", PLUGIN.format(weight="3.0")])
def test_a_finished_run_is_shown_whatever_became_of_its_plugin(call: Call, text: str | None):
    assert call(BEGUN).code == 0
    Path("mine.py").unlink() if text is None else Path("mine.py").write_text(text)
    before = contents(Path("run"))
    said = call("resume run")
    assert said.code == 0 and "accuracy, last" in said.out and "run is finished already" in said.err
    assert contents(Path("run")) == before


def test_resume_from_anywhere(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    Path("net.py").write_text(
        "from torch import nn\nimport unskew\n\ndef net(shape, classes):\n"
        "    return unskew.Model(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    begin(call, BEGUN.replace("--model mlp", "--model python:net.py:net"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert call("resume ../run --quiet").code == 0
    assert read_file(tmp_path / "run/run.toml")["plugins"] == [str(tmp_path / "mine.py")]


def test_a_plugin_that_is_gone_is_named(call: Call, tmp_path: Path):
    begin(call, BEGUN)
    Path("mine.py").rename("moved.py")
    assert_refused(call("resume run"), f"run needs the plugin {tmp_path / 'mine.py'}, which is gone; put it back")
    run = Path("run/run.toml")
    run.write_text(run.read_text().replace("mine.py", "moved.py").replace('"moved.py" =', '"mine.py" ='))
    assert call("resume run --quiet").code == 0  # where code lies is not what it does


def test_a_run_of_a_version_that_recorded_no_code(call: Call):
    begin(call, BEGUN)
    text = Path("run/run.toml").read_text()
    text = re.sub(r"\[code\]\n.*\n", "", text).partition("\n")[2]
    Path("run/run.toml").write_text(text)
    assert_refused_after_notes(call("resume run --quiet"), "restore run.toml")  # its checkpoint knows better
    shutil.rmtree("run/checkpoint")
    said = call("resume run --quiet")
    assert said.code == 0 and "recorded no code; mine.py is taken to be unchanged" in said.err


# ------------------------------------------------------------------------------------ run.toml


def test_another_executor_is_written_down(call: Call):
    begin(call, f"run {QUICK} --out run")
    assert read_file(Path("run/run.toml"))["execution"]["executor"] == "serial"
    text = Path("run/run.toml").read_text()
    assert call("resume run --executor stacked --quiet").code == 2
    assert Path("run/run.toml").read_text() == text
    assert call("resume run --executor pool --quiet").code == 0
    assert Path("run/run.toml").read_text() == text.replace('executor = "serial"', 'executor = "pool"')


EDITS = {
    "lr": ("lr = 0.05", "lr = 0.06"),
    "rounds": ("\nrounds = 3", "\nrounds = 5"),
    "seed": ("\nseed = 0", "\nseed = 1"),
    "option": ("mu = 1.0", "mu = 2.0"),
}


@pytest.mark.parametrize("state", ["finished", "unfinished", "without a checkpoint", "without its first line"])
@pytest.mark.parametrize("option", EDITS)
def test_an_edited_option_is_another_run(call: Call, option: str, state: str):
    if state == "finished":
        assert call(BEGUN).code == 0
    else:
        begin(call, BEGUN)
    if state == "without a checkpoint":
        shutil.rmtree("run/checkpoint")
    text = Path("run/run.toml").read_text()
    assert EDITS[option][0] in text
    if state == "without its first line":
        text = text.partition("\n")[2]
    Path("run/run.toml").write_text(text.replace(*EDITS[option]))
    before = contents(Path("run"))
    said = call("resume run --quiet")
    assert_refused(said, "run.toml")
    assert contents(Path("run")) == before


def test_compare_notices_an_edited_cell(call: Call):
    line = f"compare --methods fedavg {QUICK} --seeds 1 --out c"
    assert call(line).code == 0
    (cell,) = Path("c/runs").iterdir()
    for name, change, said in (
        ("run.toml", ("lr = 0.05", "lr = 0.06"), "run.toml was edited"),
        ("summary.json", ('"last": 0.', '"last": 0.9'), "differ in 'accuracy'"),
        ("rounds.jsonl", ('"train_loss"', '"loss_train"'), "rounds.jsonl was edited: its rows are not those"),
        ("rounds.jsonl", ('"accuracy": 0.', '"accuracy": 0.9'), "differ in 'accuracy'"),
        ("rounds.jsonl", ('"diverged"', '"divorced"'), "differ in 'rounds'"),
        ("split.json", ("[[", "[[0, "), "split.json' is damaged"),
    ):
        text = (cell / name).read_text()
        assert change[0] in text
        (cell / name).write_text(text.replace(*change))
        answer = call(line)
        assert said in answer.err and answer.code == 2, name
        (cell / name).write_text(text)
    lines = (cell / "rounds.jsonl").read_text().splitlines(keepends=True)
    (cell / "rounds.jsonl").write_text("".join(lines[:-1]))
    assert_refused(call(line), "differ in 'rounds'")
    assert_refused(
        call(f"resume {cell}"), "differ in 'rounds', so one of them was edited; restore it, or remove summary"
    )
    (cell / "summary.json").unlink()
    assert call(f"resume {cell} --quiet").code == 0 and call(line).code == 0


def test_edited_rows_are_not_resumed(call: Call):
    begin(call, f"run {QUICK} --out run")
    rows = Path("run/rounds.jsonl")
    text = rows.read_text()
    rows.write_text(text.replace('"accuracy": 0.', '"accuracy": 0.9', 1))
    assert_refused_after_notes(call("resume run --quiet"), "rounds.jsonl was edited: its rows up to round 2")
    rows.unlink()
    assert call("resume run --quiet").code == 0
    assert call(f"run {QUICK} --out calm").code == 0
    assert Path("run/model.safetensors").read_bytes() == Path("calm/model.safetensors").read_bytes()


def assert_refused_after_notes(said, text: str) -> None:
    assert said.code == 2 and said.err.splitlines()[-1].startswith("error: ") and text in said.err


def test_the_partition_of_another_run_is_refused(call: Call):
    begin(call, f"run {QUICK} --out run")
    assert call(f"run {QUICK} --seed 5 --rounds 1 --out other").code == 0
    kept = Path("run/split.json").read_text()
    shutil.copy("other/split.json", "run/split.json")
    assert_refused(
        call("resume run --quiet"), "split.json is of another split, seed or number of clients than run.toml says"
    )
    Path("run/split.json").write_text(kept)
    Path("saved.json").write_text(kept)
    line = f"run {QUICK.replace('iid', 'file:saved.json')} --out from_file"
    begin(call, line)
    shutil.copy("other/split.json", "from_file/split.json")
    assert_refused_after_notes(call("resume from_file --quiet"), "belongs to another partition than split.json")


def test_compare_notices_another_partition_in_the_same_file(call: Call):
    for seed in (1, 2):
        assert call(f"split --split iid --clients 4 --seed {seed} --out saved{seed}.json").code == 0
    shutil.copy("saved1.json", "saved.json")
    line = f"compare --methods fedavg {QUICK.replace('iid', 'file:saved.json')} --seeds 1 --out c"
    assert call(line).code == 0
    shutil.copy("saved2.json", "saved.json")
    assert_refused(call(line), "was run with another partition than file(path='saved.json') is now")


# ------------------------------------------------------------------------------------ data


def save_npz(changed: str = "") -> None:
    images = np.random.RandomState(0).randint(0, 255, (3000, 4, 4)).astype(np.uint8)
    labels = np.arange(3000) % 4
    if changed == "pixel":
        images[1501, 2, 2] ^= 1
    if changed == "label":
        labels[17] = (labels[17] + 1) % 4
    np.savez("data.npz", images=images, labels=labels)


@pytest.mark.parametrize("changed", ["pixel", "label"])
def test_one_changed_value_of_an_npz_is_noticed(call: Call, changed: str):
    save_npz()
    begin(call, f"run --data npz:data.npz {QUICK} --out run")
    line = f"compare --data npz:data.npz --methods fedavg {QUICK} --seeds 1 --out c"
    assert call(line).code == 0
    save_npz(changed)
    assert_refused(call("resume run --quiet"), "was made for other data than 'npz")
    assert_refused(call(line), "was run on other data than 'npz")
    save_npz()
    shutil.move("run/split.json", "split.json")
    save_npz(changed)
    assert_refused_after_notes(call("resume run --quiet"), "was made on other data than the run gets now")
    Path("data.npz").unlink()
    assert_refused(call(line), "the file 'data.npz' does not exist")


def test_an_image_exchanged_under_the_same_size_and_time_is_noticed(call: Call):
    write_images(Path("images"))
    flags = f"--data 'folder(\"images\", size=8, grey=true)' {QUICK.replace('--clients 4', '--clients 2')}"
    begin(call, f"run {flags} --out run")
    line = f"compare --methods fedavg {flags} --seeds 1 --out c"
    assert call(line).code == 0
    image = Path("images/cat/3.png")
    pixels, stat = np.array(Image.open(image)), image.stat()
    time.sleep(0.02)  # the clock of file systems may tick only every hundredth of a second
    shape = pixels.shape
    other = np.roll(pixels.reshape(-1), 1).reshape(shape)
    Image.fromarray(other).save(image)
    with image.open("ab") as file:
        file.write(b"\0" * max(0, stat.st_size - image.stat().st_size))
    os.truncate(image, stat.st_size) if image.stat().st_size > stat.st_size else None
    os.utime(image, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (image.stat().st_size, image.stat().st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)
    assert_refused(call("resume run --quiet"), "was made for other data than 'folder")
    assert_refused(call(line), "was run on other data than 'folder")
    image.unlink()
    assert call("resume run --quiet").code == 2


# ------------------------------------------------------------------------------------ comparisons in one folder

COMPARE = f"compare {QUICK.replace('--rounds 3', '--rounds 1')} --out c"


def kept_below(folder: str = "c/earlier") -> list[Path]:
    return sorted(Path(folder).iterdir()) if Path(folder).exists() else []


def top(folder: Path = Path("c")) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name[0] != "."}


def test_another_comparison_keeps_the_earlier_one(call: Call):
    assert call(f"{COMPARE} --methods fedavg,fedprox --seeds 1,2").code == 0
    first = top()
    assert set(first) >= {"table.json", "table.md", "report.html", "curves.png", "split.png"}
    said = call(f"{COMPARE} --methods fedavg,scaffold --seeds 1,2")
    (kept,) = kept_below()
    assert said.code == 0 and f"of the earlier comparison in c are now in {kept}\n" in said.err
    assert top(kept) == first and "scaffold" in top()["table.md"].decode()
    second = top()
    # all of the second, and more: it is replaced, not kept
    said = call(f"{COMPARE} --methods fedavg,scaffold,feddecorr --seeds 1,2,3")
    assert said.code == 0 and said.err == "" and kept_below() == [kept]
    assert call(f"{COMPARE} --methods fedavg,scaffold --seeds 1,2").code == 0
    assert len(kept_below()) == 2 and json.loads(top()["table.json"]) == json.loads(second["table.json"])
    for other in ("--metric best_on_test", "--lr 0.01", "--seeds 1,"):
        number = len(kept_below())
        flags = "--methods fedavg,scaffold --seeds 1,2"
        assert call(f"{COMPARE} {flags if '--seeds' not in other else '--methods fedavg,scaffold'} {other}").code == 0
        assert len(kept_below()) == number + 1
    assert call(f"{COMPARE} --methods fedavg,fedprox --seeds 1,2").code == 0
    assert kept not in kept_below()  # it is at the top again


def test_a_table_of_an_older_version_is_kept(call: Call):
    assert call(f"{COMPARE} --methods fedavg --seeds 1").code == 0
    old = json.loads(Path("c/table.json").read_text())
    del old["comparison"]
    Path("c/table.json").write_text(json.dumps(old))
    assert call(f"{COMPARE} --methods fedavg,fedprox --seeds 1").code == 0
    (kept,) = kept_below()
    assert json.loads((kept / "table.json").read_text()) == old


def test_a_command_that_is_cut_off_loses_nothing(call: Call, monkeypatch: pytest.MonkeyPatch):
    assert call(f"{COMPARE} --methods fedavg --seeds 1").code == 0
    first = top()

    def cut_off(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("unskew.cli.compare.write_page", cut_off)
        assert call(f"{COMPARE} --methods fedprox --seeds 1").code == 130
    assert top() == first and {path.name for path in Path("c").iterdir()} == {*first, "runs"}


def test_a_file_where_earlier_ones_are_kept(call: Call):
    Path("c").mkdir()
    Path("c/earlier").write_text("mine")
    assert_refused(call(f"{COMPARE} --methods fedavg --seeds 1"), "c/earlier is a file, but earlier comparisons")


def test_measures_that_a_cell_was_begun_without_are_named(call: Call):
    line = f"{COMPARE} --methods fedavg --seeds 1"
    assert call(line).code == 0
    said = call(f"{line} --measure 'drift,rank(samples=50)'")
    assert said.code == 0 and "was begun without measure drift, rank(samples=50)" in said.err
    assert call(f"{line} --measure drift --out d").code == 0
    assert "begun without" not in call(f"{line} --measure drift --out d").err


def test_a_run_file_that_is_empty(call: Call):
    assert call("run --clients 2 --rounds 1 --out run -q").code == 0
    Path("run/summary.json").unlink()
    Path("run/run.toml").write_text("")
    assert_refused(call("resume run"), "run.toml is empty; restore it")


@pytest.mark.parametrize("change", ["deleted", "cut"])
def test_lost_rows_of_clients_are_said(call: Call, change: str):
    assert call("run --clients 2 --rounds 2 --checkpoint-every 1 --out run -q").code == 0
    Path("run/summary.json").unlink()
    rows = Path("run/clients.jsonl")
    assert "lost rows" not in call("resume run").err
    Path("run/summary.json").unlink()
    rows.unlink() if change == "deleted" else rows.write_text(rows.read_text().splitlines(True)[0])
    said = call("resume run")
    assert (
        said.code == 0
        and said.err.count("clients.jsonl lost rows or was edited: it is shorter than after round 2") == 1
    )


@pytest.mark.parametrize(("change", "text"), [
    ("deleted", "model.safetensors is gone"), ("cut", "model.safetensors cannot be read"),
    ("foreign", "model.safetensors is of run"),
])  # fmt: skip
def test_the_model_of_a_finished_run_is_its_own(call: Call, change: str, text: str):
    for seed in (0, 1):
        assert call(f"run --clients 2 --rounds 1 --seed {seed} --out run{seed} -q").code == 0
    model = Path("run0/model.safetensors")
    whole = model.read_bytes()
    model.unlink() if change == "deleted" else model.write_bytes(
        Path("run1/model.safetensors").read_bytes() if change == "foreign" else whole[:50]
    )
    assert_refused(call("resume run0"), text)
    Path("run0/summary.json").unlink()
    assert call("resume run0 -q").code == 0 and model.read_bytes() == whole
