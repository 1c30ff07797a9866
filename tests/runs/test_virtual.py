"""Runs whose clients are computed when they are sampled: the same on every executor and after a stop."""

import json

import pytest
import torch

from unskew.base.errors import InputError
from unskew.runs import engine
from unskew.runs.config import from_table
from unskew.runs.folder import RunFolder

TABLE = {
    "method": "scaffold", "clients": 1_000_000, "sample": 6e-6, "rounds": 4, "split": "virtual(alpha=0.3)",
    "model": "mlp", "evaluation": {"local_test": "holdout", "max_clients": 20, "clients_every": 2},
    "execution": {"checkpoint_every": 2},
}  # fmt: skip


def without_times(row):
    return {key: value for key, value in row.items() if key != "seconds"}


def assert_equal(one, other):
    for group, tree in one.server.items():
        assert all(torch.equal(value, other.server[group][name]) for name, value in tree.items())
    assert list(map(without_times, one.rounds)) == list(map(without_times, other.rounds))


@pytest.mark.parametrize("local_test", ["holdout", "proportional"])
def test_pool_gives_the_bits_of_serial(local_test):
    table = {**TABLE, "evaluation": {**TABLE["evaluation"], "local_test": local_test}}
    serial, pool = (
        engine.run(from_table({**table, "execution": {"executor": executor, "workers": 2}}))
        for executor in ("serial", "pool")
    )
    assert len(serial.rounds[1]["clients"]) == 6 and max(serial.rounds[1]["clients"]) > 1000
    assert serial.summary["personal"]["clients_tested"] == 20
    assert_equal(serial, pool)


def test_a_stopped_run_resumes_bit_for_bit(tmp_path):
    def stop(row):
        if row["round"] == 3:
            raise KeyboardInterrupt

    whole = engine.run(from_table(TABLE), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        engine.run(from_table(TABLE), tmp_path / "run", watch=stop)
    recipe = json.loads((tmp_path / "run" / "split.json").read_text())
    assert recipe["clients"] == 1_000_000 and recipe["hash"] == whole.summary["split_hash"]
    assert_equal(engine.resume(tmp_path / "run"), whole)
    rows = [list(map(without_times, RunFolder(tmp_path / name).client_rows())) for name in ("whole", "run")]
    assert rows[0] == rows[1]


def test_a_recipe_of_another_run_is_refused(tmp_path):
    def stop(row):
        if row["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.run(from_table(TABLE), tmp_path / "run", watch=stop)
    path = tmp_path / "run" / "split.json"
    path.write_text(path.read_text().replace("1000000", "1000001"))
    with pytest.raises(InputError, match=r"split\.json' is damaged: its hash is"):
        engine.resume(tmp_path / "run")


def test_states_of_many_visitors_on_disk_change_nothing(tmp_path, monkeypatch):
    plain = engine.run(from_table(TABLE))
    monkeypatch.setattr("unskew.runs.client_store._OVERHEAD", 1 << 30)  # no state fits beside another
    assert_equal(engine.run(from_table(TABLE)), plain)
    assert_equal(engine.run(from_table(TABLE), tmp_path / "run"), plain)
