"""Which model each client is tested with at the end of a round: FedPer's three ways, FedAvg-P and what wraps so."""

import pytest
import torch

from awkward import DATA, config, play, rows_without_times
from support import gap, initial_model
from unskew.base import tree
from unskew.base.errors import InputError
from unskew.core import visit
from unskew.core.observer import Observer
from unskew.runs import building, engine

# seed 26: every kind of client in the last round (`kinds` below says which is which)
OPTIONS = {"rounds": 4, "sample": 0.6, "dropout": 0.4, "seed": 26, "evaluation": {"local_test": "holdout"}}


class Trained(Observer):
    """Notes the model of each visit: by round and client, parameters and BatchNorm's statistics."""

    def __init__(self):
        self.models = {}

    def trained(self, c, params):
        self.models[c.round, c.client] = tree.copy(params), tree.copy(c.buffers)


def record(spec, monkeypatch, **options):
    """A run; with it the models of all visits, of all tests, and the server's state after each round."""
    tested, original, seen = {}, visit.score, Trained()

    def score(slots, c, params, data, batch, whole):
        if c.client >= 0:
            tested[c.round, c.client] = {**params}
        return original(slots, c, params, data, batch, whole)

    options = {**OPTIONS, **options}
    with monkeypatch.context() as patched:
        patched.setattr(visit, "score", score)
        result = engine.run(config(spec, **options), dataset=DATA, watch=seen)
    after = {0: building.prepare(result.run, dataset=DATA).task.initial}
    for last in range(1, options["rounds"] + 1):
        after[last] = play(spec, **{**options, "rounds": last}).server
    return result, seen.models, tested, after


def kinds(result, round_):
    """What each client is at the end of a round, and the round of its last training (0: none)."""
    rows = result.rounds[: round_ + 1]
    replied = [set(row.get("clients", ())) - set(row.get("dropped", ())) for row in rows]
    for client in range(5):
        last = max((number for number, clients in enumerate(replied) if client in clients), default=0)
        dropped = round_ and client in rows[round_]["dropped"]
        now = "now" if round_ and last == round_ else "dropped" if dropped else "earlier" if last else "never"
        yield client, now, last


def same(model, expected):
    return model.keys() == expected.keys() and all(torch.equal(model[name], expected[name]) for name in model)


def with_own_head(body, trained, last, client, initial):
    """That body with the head that the client trained last (at first the initial one)."""
    head = trained[last, client][0] if last else initial
    return {name: head[name] if name.startswith("head.") else value for name, value in body.items()}


def expected_model(spec, kind, last, round_, client, trained, after):
    initial = after[0]["model"]
    newest, sent = after[round_]["model"], after[max(0, round_ - 1)]["model"]
    own = trained[last, client][0] if last else None
    if spec == "fedper":
        return with_own_head(newest, trained, last, client, initial)
    if spec == "fedper(evaluate=own)":
        return own if last else with_own_head(newest, trained, last, client, initial)
    if kind == "now":
        return own
    return sent if spec in ("fedavg_p", "fedprox_p") else with_own_head(sent, trained, last, client, initial)


WAYS = ["fedper", "fedper(evaluate=own)", "fedper(evaluate=round)", "own(fedper)", "fedavg_p", "fedprox_p"]


@pytest.mark.parametrize("spec", WAYS)
def test_which_model_each_client_is_tested_with(spec, monkeypatch):
    result, trained, tested, after = record(spec, monkeypatch)
    assert {kind for _, kind, _ in kinds(result, 4)} == {"now", "dropped", "earlier", "never"}
    for round_ in range(5):
        for client, kind, last in kinds(result, round_):
            expected = expected_model(spec, kind, last, round_, client, trained, after)
            assert same(tested[round_, client], expected), (round_, client, kind)
    for client, kind, last in kinds(result, 4):
        own, statistics = result.client_model(client).state_dict(), after[4]["buffers"]
        if spec not in ("fedper", "fedper(evaluate=own)"):
            statistics = after[3]["buffers"]
        if (spec != "fedper" and kind == "now") or (spec == "fedper(evaluate=own)" and last):
            statistics = trained[last, client][1]
        assert same(own, {**tested[4, client], **statistics}), (client, kind)


def test_a_round_in_which_nobody_replied_is_tested_with_what_it_began_with(monkeypatch):
    result, _, tested, after = record("fedavg_p", monkeypatch, dropout=0.8, rounds=6, seed=0)
    silent = [row["round"] for row in result.rounds[1:] if len(row["dropped"]) == len(row["clients"])]
    assert any(number > 1 and number - 1 not in silent for number in silent)  # after one that moved the model
    for number in silent:
        for client in range(5):
            assert same(tested[number, client], after[number - 1]["model"])


@pytest.mark.parametrize("spec, plain", [
    ("fedavg_p", "fedavg"), ("fedprox_p", "fedprox(mu=0.1)"), ("own(scaffold)", "scaffold"), ("own(fedetf)", "fedetf"),
    ("fedper(evaluate=round)", "fedper"), ("own(fedblade(var_eps=0.01))", "fedblade(var_eps=0.01)"),
])  # fmt: skip
@pytest.mark.parametrize("how", [{}, {"executor": "stacked", "chunk": 3}], ids=["serial", "stacked"])
def test_training_is_that_of_the_method_itself(spec, plain, how):
    mine, theirs = (play(name, **{**OPTIONS, "execution": how}) for name in (spec, plain))
    for group, own in theirs.server.items():
        assert same(mine.server[group], own)
    assert [row["bytes_up"] for row in mine.rounds[1:]] == [row["bytes_up"] for row in theirs.rounds[1:]]
    assert [row["bytes_down"] for row in mine.rounds[1:]] == [row["bytes_down"] for row in theirs.rounds[1:]]


@pytest.mark.parametrize("spec", ["fedper(evaluate=round)", "fedavg_p", "own(scaffold)"])
@pytest.mark.parametrize("buffers", ["average", "local", "reset"])
def test_pool_resume_and_stacked(spec, buffers, tmp_path, caplog):
    options = {**OPTIONS, "local": {**config("fedavg").local.__dict__, "buffers": buffers}}
    serial = play(spec, tmp_path / "whole", **options, execution={"checkpoint_every": 1, "memory_format": "contiguous"})
    if buffers == "average":
        pool = play(spec, **options, execution={"executor": "pool", "workers": 2, "memory_format": "contiguous"})
        assert rows_without_times(pool) == rows_without_times(serial)

        def stop(row):
            if row["round"] == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            engine.run(serial.run, tmp_path / "cut", dataset=DATA, watch=stop)
        again = engine.resume(tmp_path / "cut", dataset=DATA)
        assert rows_without_times(again) == rows_without_times(serial)
        assert all(same(again.client_model(k).state_dict(), serial.client_model(k).state_dict()) for k in range(5))
    stacked = play(spec, **options, execution={"executor": "stacked", "chunk": 3})
    assert "one by one" not in caplog.text
    assert gap(stacked, serial, initial_model(serial.run, DATA)) < 1e-3
    for mine, theirs in zip(stacked.rounds, serial.rounds, strict=True):
        assert mine["personal"] == pytest.approx(theirs["personal"], abs=1e-6)


def test_where_no_model_is_trained_there_is_none_of_ones_own():
    with pytest.raises(InputError, match="own needs a method whose clients train the model, got fedaf") as error:
        play("own(fedaf(steps=3, server_epochs=2, ipc=2))")
    assert "\n" not in str(error.value)
