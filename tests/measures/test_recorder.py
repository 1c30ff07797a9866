"""Runs record their measures and are not changed by them."""

import json

import pytest
import torch
from torch import nn

from awkward import DATA, config, play, rows_without_times
from unskew.core.method import Method, methods
from unskew.core.reducers import concat
from unskew.measures.base import measures
from unskew.models.base import Model
from unskew.runs import engine
from unskew.runs.comparison import compare
from unskew.runs.folder import RunFolder

ALL = [*(name for name in measures if not name.startswith("test_"))]
QUICK = ["hessian(samples=20, top=2, most=30, every=2)" if name == "hessian" else name for name in ALL]


def client_rows(folder):
    """What was noted of each visit, by round and client."""
    rows = (row for row in RunFolder(folder).client_rows() if row.get("used"))
    noted = ("orthogonality", "proximal_loss", "fisher_trace", "local_accuracy")
    return {(row["round"], row["client"]): {name: row[name] for name in noted if name in row} for row in rows}


def test_runs_record_every_measure_and_are_not_changed_by_them(tmp_path, caplog):
    options = {"rounds": 3, "dropout": 0.3, "measure": QUICK}
    fixed = {"memory_format": "contiguous", "checkpoint_every": 1}
    serial = play("scaffold", tmp_path / "serial", execution=fixed, **options)
    plain = play("scaffold", execution=fixed, **{**options, "measure": []})
    assert all(torch.equal(serial.server["model"][name], value) for name, value in plain.server["model"].items())
    assert serial.run.hash == plain.run.hash
    last = serial.rounds[-1]["measures"]
    assert last.keys() >= {
        "drift", "divergence", "divergence_mutual", "similarity", "similarity_mean", "similarity_skewness", "intra",
        "inter", "separability", "rank_covariance", "rank_correlation", "nc1_trace_pinv", "nc1_trace_ratio",
        "nc2_gram", "nc2_normalised", "orthogonality", "proximal_loss", "fisher_trace", "local_accuracy",
        "forgetting", "hessian_1", "hessian_2", "hessian_ratio",
    }  # fmt: skip
    assert all(value is not None for value in last.values())
    assert "hessian_1" not in serial.rounds[1]["measures"] and "hessian_1" in serial.rounds[2]["measures"]
    assert serial.summary["measures"]["rounds_to"].keys() == {"0.5", "0.6", "0.7", "0.8", "0.9"}
    assert "measures" not in plain.rounds[-1] and "measures" not in plain.summary

    pool = play("scaffold", execution={**fixed, "executor": "pool", "workers": 2}, **options)
    assert rows_without_times(pool) == rows_without_times(serial)

    def stop_after_two(row):
        if row["round"] == 2:
            raise KeyboardInterrupt

    run = config("scaffold", execution=fixed, **options)
    with pytest.raises(KeyboardInterrupt):
        engine.run(run, tmp_path / "cut", dataset=DATA, watch=stop_after_two)
    resumed = engine.resume(tmp_path / "cut", dataset=DATA)
    assert rows_without_times(resumed) == rows_without_times(serial)
    assert resumed.summary["measures"] == serial.summary["measures"]


@pytest.mark.parametrize("chunk", [2, 5])
def test_stacked_clients_are_measured_as_if_alone(chunk, tmp_path, caplog):
    measure = "drift,divergence,similarity,orthogonality(every=2),fisher,local_accuracy"
    options = {"rounds": 1, "measure": measure, "local": {"batch": 8, "epochs": 2, "lr": 0.05}}
    serial = play("fedavg", tmp_path / "serial", execution={"memory_format": "contiguous"}, **options)
    stacked = play("fedavg", tmp_path / "stacked", execution={"executor": "stacked", "chunk": chunk}, **options)
    assert "one by one" not in caplog.text
    mine, theirs = client_rows(tmp_path / "stacked"), client_rows(tmp_path / "serial")
    assert mine.keys() == theirs.keys()
    for key, row in mine.items():
        assert row == pytest.approx(theirs[key], rel=1e-3, abs=1e-4), key
        assert "fisher_trace" in row and "local_accuracy" in row
    ours, reference = (result.rounds[1]["measures"] for result in (stacked, serial))
    assert ours.pop("similarity") == pytest.approx(reference.pop("similarity"), rel=1e-3, abs=1e-4)
    assert ours == pytest.approx(reference, rel=1e-3, abs=1e-4)


def test_compiled_steps_are_watched_too(caplog):
    options = {"rounds": 1, "measure": "orthogonality,fisher", "model": "mlp(hidden=[4])"}
    compiled = play("fedavg", execution={"executor": "stacked", "compile": True, "chunk": 5}, **options)
    assert "a measure observes every step" in caplog.text
    stacked = play("fedavg", execution={"executor": "stacked", "chunk": 5}, **options)
    assert compiled.rounds[1]["measures"] == pytest.approx(stacked.rounds[1]["measures"], rel=1e-4)


@methods.register("test_with_dropout")
class WithDropout(Method):
    """FedAvg on a body with BatchNorm whose features are dropped at random."""

    def remodel(self, model, num_classes):
        return Model(nn.Sequential(model.body, nn.Dropout(0.3)), model.head)


@pytest.mark.parametrize("executor", ["serial", "stacked"])
def test_dropout_and_batchnorm_statistics_are_left_alone(executor):
    for policy in ("average", "local", "reset"):
        local = {"batch": 8, "epochs": 2, "lr": 0.05, "buffers": policy}
        options = {"local": local, "execution": {"executor": executor, "memory_format": "contiguous"}}
        watched = play("test_with_dropout", measure="orthogonality,fisher,local_accuracy,rank", **options)
        plain = play("test_with_dropout", **options)
        for group in ("model", "buffers"):
            assert all(torch.equal(watched.server[group][name], v) for name, v in plain.server[group].items())


@methods.register("test_no_delta")
class NoDelta(Method):
    """Clients send one feature each; models are never merged."""

    stackable = False
    reducers = {"data": concat}

    def train(self, c, params):
        return params

    def upload(self, c, params):
        return {"data": {"x": torch.zeros(1, 1)}}

    def update(self, s, server, merged):
        return server


@methods.register("test_own_heads")
class OwnHeads(Method):
    """Personal heads."""

    personal = ("head.*",)
    output = "personal"


def test_what_a_method_does_not_give_is_said_once(caplog):
    result = play("test_no_delta", measure="drift,similarity,orthogonality,rank")
    assert result.rounds[-1]["measures"].keys() == {"rank_covariance", "rank_correlation"}
    said = [record.getMessage() for record in caplog.records if "nothing to record" in record.getMessage()]
    assert len(said) == 3 and all("test_no_delta" in text for text in said)
    caplog.clear()
    result = play("test_own_heads", measure="drift,rank,forgetting,hessian,local_accuracy")
    assert result.rounds[-1]["measures"].keys() == {"drift", "local_accuracy"}
    assert caplog.text.count("personal models only") == 3


def test_a_round_in_which_nobody_replies_has_no_drift():
    result = play("fedavg", rounds=4, dropout=0.9, seed=1, measure="drift,fisher")
    empty = [row for row in result.rounds[1:] if len(row["dropped"]) == 5]
    assert empty and all(row["measures"] == {} for row in empty)


def test_run_toml_keeps_them_and_the_hash_does_not(tmp_path):
    play("fedavg", tmp_path / "run", measure="drift,rank(samples=50)")
    _, again = RunFolder.open(tmp_path / "run")
    assert [str(measure) for measure in again.measure] == ["drift", "rank(samples=50)"]
    assert again.hash == config("fedavg").resolve(DATA).hash
    assert json.loads((tmp_path / "run/summary.json").read_text())["measures"].keys() >= {"drift", "rank_covariance"}


def test_a_comparison_says_which_finished_runs_were_not_measured(tmp_path, caplog):
    wanted = [methods.build("fedavg")]
    compare(config("fedavg"), wanted, [0], tmp_path, dataset=DATA)
    compare(config("fedavg", measure="drift"), wanted, [0], tmp_path, dataset=DATA)
    assert "without measure drift" in caplog.text
