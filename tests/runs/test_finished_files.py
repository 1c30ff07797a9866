"""Files of a run that were edited, damaged or removed after it ended: noticed in one line, or made again."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest

import unskew
from small_runs import ONE_STEP, SKEWED, SMALL, equal, play, play_one_step, resumed, said
from unskew.base import storage
from unskew.base.errors import InputError

pytestmark = pytest.mark.usefixtures("own_names")


# --------------------------------------------------------------------------------------------------------------- models


def zero(path):
    data = bytearray(path.read_bytes())
    data[-100:] = bytes(100)
    path.write_bytes(data)


def flip(path):
    data = bytearray(path.read_bytes())
    data[-7] ^= 1
    path.write_bytes(data)


def drop(path):
    groups = storage.decode(path.read_bytes())
    groups["model"].popitem()
    path.write_bytes(storage.encode(groups, storage.read_notes(path.read_bytes())))


@pytest.mark.parametrize("change", [zero, flip, drop])
def test_a_changed_model_of_a_finished_run_is_noticed(change, tmp_path):
    play_one_step("fedavg", out=tmp_path / "run")
    model = tmp_path / "run/model.safetensors"
    whole = model.read_bytes()
    change(model)
    with pytest.raises(InputError, match=r"model.safetensors was changed: .*; restore what was changed, or remove"):
        unskew.resume(tmp_path / "run")
    (tmp_path / "run/summary.json").unlink()
    unskew.resume(tmp_path / "run")
    assert model.read_bytes() == whole


def test_compare_notices_it_too(tmp_path):
    compare = partial(unskew.compare, ["fedavg"], seeds=1, out=tmp_path / "c", **ONE_STEP)
    compare()
    (model,) = (tmp_path / "c").rglob("model.safetensors")
    flip(model)
    with pytest.raises(InputError, match=r"model.safetensors was changed"):
        compare()


# --------------------------------------------------------------------------------------------------- rows and summaries


def test_edited_rows_of_a_finished_run_are_noticed(tmp_path, caplog):
    first = play_one_step("fedavg", out=tmp_path / "run")
    rows = tmp_path / "run/rounds.jsonl"
    text = rows.read_text()
    rows.write_text(text.replace('"train_loss": ', '"train_loss": 1', 1))
    with pytest.raises(InputError, match=r"rounds.jsonl was edited: .* restore it, or remove it and summary.json"):
        unskew.resume(tmp_path / "run")
    rows.unlink()
    (tmp_path / "run/summary.json").unlink()
    again = unskew.resume(tmp_path / "run")
    assert again.summary["files"] == first.summary["files"]
    (tmp_path / "run/clients.jsonl").unlink()
    caplog.clear()
    assert unskew.resume(tmp_path / "run").summary["files"] == first.summary["files"]
    assert "clients.jsonl lost rows: it has 0 of 6" in caplog.text


def test_edited_rows_are_not_drawn(tmp_path):
    play(out=tmp_path / "run")
    rows = tmp_path / "run" / "rounds.jsonl"
    rows.write_text(
        rows.read_text().replace('"accuracy": 0.', '"accuracy": 0.9').replace('"accuracy":0.', '"accuracy":0.9')
    )
    with pytest.raises(InputError, match=r"rounds\.jsonl was edited"):
        _ = unskew.open(tmp_path / "run").curve


@pytest.mark.parametrize(("key", "value"), [("method", "fedavg"), ("seed", 5), ("model", "cnn8")])
def test_a_summary_that_was_edited_is_refused(tmp_path, key, value):
    play(method="scaffold", out=tmp_path / "run")
    path = tmp_path / "run/summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(InputError, match=f"says {key} {value}, but run.toml|summary.json was edited"):
        unskew.resume(tmp_path / "run")


@pytest.mark.parametrize(
    ("key", "value"), [("clients", 99), ("train_samples", 5), ("split_hash", "x"), ("measures", {})]
)
def test_an_edited_summary_is_noticed(tmp_path, key, value):
    unskew.run(**{**SMALL, "out": tmp_path / "run", "measure": ["drift"]})
    place = tmp_path / "run" / "summary.json"
    summary = json.loads(place.read_text())
    assert summary[key] != value
    place.write_text(json.dumps({**summary, key: value}))
    with pytest.raises(InputError, match=r"summary.json was edited|summary.json"):
        unskew.resume(tmp_path / "run")
    place.write_text(json.dumps({**summary, "seconds": {**summary["seconds"], "clients": 1.0}}))
    unskew.resume(tmp_path / "run")


@pytest.mark.usefixtures("own_folder")
def test_an_unfinished_run_that_was_edited_says_so_when_it_is_shown():
    unskew.run(out="a", **SKEWED)
    Path("a/summary.json").unlink()
    text = Path("a/run.toml").read_text()
    Path("a/run.toml").write_text(text.replace("lr = 0.1", "lr = 0.2"))
    with pytest.raises(InputError, match=r"run.toml was edited"):
        _ = unskew.open("a").about


def test_what_is_recorded_of_the_files_does_not_depend_on_times(tmp_path):
    def files(name, **options):
        return play_one_step("scaffold", out=tmp_path / name, **options).summary["files"]

    assert files("serial") == files("pool", executor="pool") == resumed("scaffold", tmp_path / "cut").summary["files"]
    assert "files" not in play_one_step("scaffold").summary


def test_runs_of_older_versions_have_no_digests(tmp_path):
    play_one_step("fedavg", out=tmp_path / "run")
    path = tmp_path / "run/summary.json"
    summary = json.loads(path.read_text())
    del summary["files"]
    path.write_text(json.dumps(summary))
    assert "files" not in unskew.resume(tmp_path / "run").summary


# ---------------------------------------------------------------------------------------------------------- checkpoints


def test_rounds_that_are_run_again_leave_no_older_checkpoints(tmp_path):
    play_one_step("scaffold", out=tmp_path / "run", checkpoint_every=1)
    for _ in range(3):  # which of two of a round came first by name was chance
        (tmp_path / "run/rounds.jsonl").unlink()
        (tmp_path / "run/summary.json").unlink()
        unskew.resume(tmp_path / "run")
        assert len(list((tmp_path / "run/checkpoint").glob("round-*"))) == 2
        assert unskew.resume(tmp_path / "run").summary["rounds"] == 2


def test_a_finished_run_without_its_checkpoint_says_that_it_is_run_again(tmp_path, caplog):
    first = play(out=tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    again = unskew.resume(tmp_path / "run")
    assert "no checkpoint" in said(caplog)
    assert "run again" in said(caplog)
    assert equal(first, again)


def test_models_of_a_finished_run_without_its_checkpoint_name_a_way_out(tmp_path):
    play(out=tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    with pytest.raises(InputError, match=r"is finished, but its checkpoint.*remove summary\.json"):
        unskew.open(tmp_path / "run").model()
    (tmp_path / "run" / "summary.json").unlink()
    unskew.resume(tmp_path / "run")
    unskew.open(tmp_path / "run").model()


def test_rounds_that_are_run_again_for_want_of_a_checkpoint_are_said(tmp_path, caplog):
    first = play(out=tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    (tmp_path / "run" / "summary.json").unlink()
    assert equal(first, unskew.resume(tmp_path / "run"))
    assert "holds no checkpoint: its 2 rounds are run again" in said(caplog)
