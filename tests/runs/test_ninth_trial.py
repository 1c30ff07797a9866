"""What trials had left: files with two meanings, options that do nothing, a finished run without its checkpoint."""

import shutil

import numpy as np
import pytest
from PIL import Image

import unskew
from small_runs import equal, play, said
from unskew.base import once
from unskew.base.errors import InputError


def arrays(n=40):
    rng = np.random.RandomState(0)
    return rng.randint(0, 255, (n, 8, 8)).astype(np.uint8), np.arange(n) % 4


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("train_images", "train_labels", "test_images", "test_labels"), ("x_train", "y_train", "x_test", "y_test")),
        (("images", "labels"), ("x", "y")),
        (("train_images", "train_labels", "test_images", "test_labels"), ("images", "labels")),
    ],
)
def test_an_npz_with_two_layouts_is_refused(first, second, tmp_path):
    held = {name: arrays()["label" in name or name[0] == "y"] for name in (*first, *second)}
    np.savez(tmp_path / "two.npz", **held)
    with pytest.raises(InputError, match=f"holds '{first[0]}' and '{second[0]}'.*keep one"):
        unskew.run(data=f"npz:{tmp_path / 'two.npz'}", split="iid", clients=2, rounds=1)


@pytest.mark.parametrize("suffix", ["gif", "tif"])
def test_a_file_of_several_pictures_is_refused(suffix, tmp_path):
    for label in "ab":
        (tmp_path / "images" / label).mkdir(parents=True)
        for number in range(10):
            Image.new("L", (8, 8), 20 * number).save(tmp_path / "images" / label / f"{number}.png")
    first, *more = (Image.new("L", (8, 8), grey) for grey in (0, 100, 200))
    first.save(tmp_path / "images" / "a" / f"film.{suffix}", save_all=True, append_images=more)
    with pytest.raises(InputError, match=rf"film\.{suffix}: holds 3 pictures.*one picture a file"):
        unskew.run(data=f"folder:{tmp_path / 'images'}", split="iid", clients=2, rounds=1)


@pytest.mark.parametrize(
    ("option", "line"),
    [
        ({"checkpoint_every": 2}, "checkpoint_every = 2 does nothing without out"),
        ({"clients_every": 5}, "clients_every = 5 is more than the 2 rounds: clients are tested after the last one"),
        ({"evaluation.last_k": 7}, "last_k = 7 is more than the 2 tests: last_7_mean is over those"),
    ],
)
def test_options_that_do_less_than_they_say_are_named(option, line, caplog):
    once.warn_once.cache_clear()
    play(**option)
    assert line in said(caplog)


def test_options_that_work_are_not_named(tmp_path, caplog):
    once.warn_once.cache_clear()
    play(checkpoint_every=2, clients_every=2, out=tmp_path / "run", **{"evaluation.last_k": 2})
    assert not caplog.records


def test_a_finished_run_without_its_checkpoint_says_that_it_is_run_again(tmp_path, caplog):
    first = play(out=tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    again = unskew.resume(tmp_path / "run")
    assert "no checkpoint" in said(caplog)
    assert "run again" in said(caplog)
    assert equal(first, again)


# ------------------------------------------------------------------------------------- what the next one found


def test_an_npz_with_clients_and_domains_is_refused(tmp_path):
    x, y = arrays()
    np.savez(tmp_path / "both.npz", images=x, labels=y, clients=np.arange(40) % 5, domains=np.arange(40) % 3)
    with pytest.raises(InputError, match=r"holds 'clients' and 'domains'.*keep one"):
        unskew.run(data=f"npz:{tmp_path / 'both.npz'}", split="domain", rounds=1)


def test_a_group_without_a_name_is_refused(tmp_path):
    x, y = arrays()
    parts = {"train_images": x, "train_labels": y, "test_images": x, "test_labels": y}
    groups = np.where(np.arange(40) == 7, np.nan, np.arange(40) % 2)
    np.savez(tmp_path / "nan.npz", **parts, train_clients=groups)
    with pytest.raises(InputError, match="group ids must be finite, got nan at position 7"):
        unskew.run(data=f"npz:{tmp_path / 'nan.npz'}", split="natural", rounds=1)


def test_a_share_of_test_samples_that_does_nothing_is_named(tmp_path, caplog):
    once.warn_once.cache_clear()
    x, y = arrays()
    np.savez(tmp_path / "own.npz", train_images=x, train_labels=y, test_images=x, test_labels=y)
    play(data=f"npz(path='{tmp_path / 'own.npz'}', test=0.3)", rounds=1)
    assert "brings test samples of its own, so test = 0.3 does nothing" in said(caplog)


def test_edited_rows_are_not_drawn(tmp_path):
    play(out=tmp_path / "run")
    rows = tmp_path / "run" / "rounds.jsonl"
    rows.write_text(
        rows.read_text().replace('"accuracy": 0.', '"accuracy": 0.9').replace('"accuracy":0.', '"accuracy":0.9')
    )
    with pytest.raises(InputError, match=r"rounds\.jsonl was edited"):
        _ = unskew.open(tmp_path / "run").curve


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
