"""Evaluation: the short cut for clients that use the global model equals computing it, and figures by hand."""

import pytest
import torch

from unskew.base.errors import InputError
from unskew.data.dataset import Dataset, Samples
from unskew.executors.serial import Serial
from unskew.runs import building, engine, evaluation
from unskew.runs.client_store import StateStore
from unskew.runs.config import from_table

TABLE = {"clients": 8, "rounds": 1, "split": "dirichlet:0.3", "model": "cnn8(norm=batch)"}


def task_of(table):
    return building.prepare(from_table(table)).task


def test_clients_scores_looked_up_equal_computed_ones(tmp_path):
    task = task_of(TABLE)
    server = engine.run(from_table(TABLE)).server
    executor, store = Serial(task), StateStore(tmp_path)
    _, known = evaluation.evaluate_global(task, executor, server, 1)
    looked_up = evaluation.evaluate_clients(task, executor, store, server, 1, 100, known)
    computed = evaluation.evaluate_clients(task, executor, store, server, 1, 100, None)
    for mine, theirs in zip(looked_up[1], computed[1], strict=True):
        assert mine["client"] == theirs["client"] and mine["test_samples"] == theirs["test_samples"]
        assert mine["accuracy"] == pytest.approx(theirs["accuracy"], abs=0.01)  # batches are cut differently
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-4)


@pytest.mark.parametrize("kind", ["proportional", "holdout"])
def test_local_test_sets(kind):
    task = task_of({**TABLE, "evaluation": {"local_test": kind}})
    federation = task.federation
    for client in range(8):
        test = federation.local_test(client)
        train = federation.train(client)
        assert len(test) == len(federation.local_test_indices(client))
        if kind == "holdout":
            assert len(test) + len(train) == len(federation.partition[client])
            assert not set(federation.train_indices(client)) & set(federation.local_test_indices(client))
        else:
            assert set(test.y.tolist()) <= set(train.y.tolist())


def test_validation_chooses_the_round():
    table = {**TABLE, "rounds": 4, "evaluation": {"validation": 0.2}}
    result = engine.run(from_table(table))
    rows = result.rounds[1:]
    chosen = max(rows, key=lambda row: row["validation"])
    assert result.summary["accuracy"]["best_on_validation"] == chosen["accuracy"]


def test_clients_of_a_domain_are_tested_on_it_and_pooled_tests_need_a_holdout():
    groups = torch.arange(40) % 2
    x = torch.randint(0, 256, (40, 1, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    samples = Samples(x, torch.arange(40) // 2 % 3)
    data = Dataset("two", samples, samples, tuple("abc"), (0.5,), (0.5,), None, groups, ("even", "odd"), groups)
    federation = building.prepare(from_table({"split": "domain"}), dataset=data).task.federation
    for client in range(2):
        assert set((federation.local_test_indices(client) % 2).tolist()) == {client}
    with pytest.raises(InputError, match="holdout"):
        from_table({"pool_test": True}).resolve(data)
    pooled = {"pool_test": True, "rounds": 2, "clients": 4, "split": "iid", "evaluation": {"local_test": "holdout"}}
    result = engine.run(from_table(pooled), dataset=data)
    assert "accuracy" not in result.rounds[-1] and result.summary["accuracy_of"] != "global model"
