"""What trials had left: files with two meanings, options that do nothing, a finished run without its checkpoint."""

import shutil

import numpy as np
import pytest

import unskew
from small_runs import equal, play, said
from unskew.base import once
from unskew.base.errors import InputError


def arrays(n=40):
    rng = np.random.RandomState(0)
    return rng.randint(0, 255, (n, 8, 8)).astype(np.uint8), np.arange(n) % 4


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
