"""Who holds what, as a run writes it."""

import json

import numpy as np
import pytest

import unskew
from unskew.runs.labels import MOST_CLIENTS, NAME, read_labels


def test_counts_are_those_of_the_split(tmp_path):
    unskew.run("fedavg", clients=5, rounds=1, epochs=1, model="mlp", out=tmp_path / "run")
    found = read_labels(tmp_path / "run")
    run = unskew.open(tmp_path / "run")
    labels = run.data.train.y.numpy()
    partition = run._models.task.federation.partition
    for client in range(5):
        assert found.counts[client] == np.bincount(labels[partition[client]], minlength=10).tolist()
    assert found.of == 5 and found.clients == list(range(5)) and found.classes == list(run.data.classes)


def test_of_very_many_clients_a_choice_is_written(tmp_path):
    unskew.run(
        "fedavg", split="virtual(samples=18)", clients=100_000, sample=0.00002, rounds=1, epochs=1, model="mlp",
        local_test="none", out=tmp_path / "run",
    )  # fmt: skip
    found = read_labels(tmp_path / "run")
    assert found.of == 100_000 and len(found.clients) == MOST_CLIENTS == len(found.counts)
    assert all(sum(row) == 18 for row in found.counts) and (tmp_path / "run" / NAME).stat().st_size < 20_000


def test_a_longer_run_takes_them_over_and_damage_is_no_error(tmp_path):
    unskew.run("fedavg", clients=5, rounds=1, epochs=1, model="mlp", out=tmp_path / "run")
    unskew.extend(tmp_path / "run", 2, out=tmp_path / "longer")
    assert read_labels(tmp_path / "longer") == read_labels(tmp_path / "run")
    (tmp_path / "run" / NAME).write_text('{"classes": ["a"], "clients": [0], "names": [], "of": 1, "counts": [[1, 2]]}')
    assert read_labels(tmp_path / "run") is None and read_labels(tmp_path) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"classes": [3, 4]}, {"names": [1]}, {"of": "two"}, {"clients": [None]},
        {"clients": [], "counts": []}, {"counts": [[1, 2.5]]}, {"counts": 3},
    ],
)  # fmt: skip
def test_what_no_chart_can_show_is_damage(tmp_path, changed):
    held = {"classes": ["a", "b"], "clients": [0], "names": [], "of": 1, "counts": [[1, 2]]}
    (tmp_path / NAME).write_text(json.dumps(held))
    assert read_labels(tmp_path) is not None
    (tmp_path / NAME).write_text(json.dumps(held | changed))
    assert read_labels(tmp_path) is None
