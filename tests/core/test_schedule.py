"""The learning rate over the rounds."""

import pytest

import unskew
from unskew.base.errors import InputError
from unskew.core.schedule import schedules
from unskew.runs.config import Run, from_table


@pytest.mark.parametrize(
    ("text", "factors"),
    [("constant", [1, 1, 1]), ("exponential(0.5)", [1, 0.5, 0.25]), ("inverse(decay=1.0)", [1, 1 / 2, 1 / 3])],
)
def test_factors_by_hand(text, factors):
    assert [schedules.build(text).factor(done) for done in range(3)] == factors


def test_lr_decay_is_short_for_exponential():
    options = {"rounds": 3, "clients": 3, "steps": 2, "lr": 0.1}
    short = unskew.run("fedavg", lr_decay=0.5, **options)
    whole = unskew.run("fedavg", schedule="exponential(0.5)", **options)
    other = unskew.run("fedavg", schedule="inverse(1.0)", **options)
    assert short.summary["accuracy"] == whole.summary["accuracy"]
    assert short.summary["loss"] == whole.summary["loss"] != other.summary["loss"]


def test_a_constant_schedule_is_no_part_of_the_hash():
    assert from_table({"local": {"schedule": "constant"}}).hash == Run().hash
    assert from_table({"local": {"schedule": "inverse"}}).hash != Run().hash


def test_two_rules_at_once_are_refused():
    with pytest.raises(InputError, match="both change the learning rate"):
        unskew.run("fedavg", lr_decay=0.9, schedule="inverse", rounds=1)


def test_the_written_run_reads_back(tmp_path):
    run = from_table({"local": {"schedule": "inverse(decay=0.01)"}, "data": "digits(normalisation=half)"})
    (tmp_path / "run.toml").write_text(run.to_toml())
    from unskew.runs.config import read_file

    assert from_table(read_file(tmp_path / "run.toml")).hash == run.hash
