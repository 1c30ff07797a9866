"""What methods say before or after a run whose setting defeats them."""

import logging

import pytest

import unskew
from unskew.terms.correlation import judge_dead
from unskew.terms.lddecorr import warn_of_width

SMALL = {"clients": 3, "rounds": 2, "steps": 1}


@pytest.fixture(autouse=True)
def _forget():
    warn_of_width.cache_clear()


@pytest.mark.parametrize(
    ("method", "batch", "said"),
    [
        ("fedblade", 64, True), ("fedblade", 32, True), ("fedblade", 91, True), ("fedblade", 30, False),
        ("fedblade", 100, False), ("fedblade(decorrelation=none)", 64, False), ("fedblade(lambda_ld=0)", 64, False),
    ],
)  # fmt: skip
def test_fedblade_says_where_its_matrix_is_nearly_singular(caplog, method, batch, said):
    """cnn8 has 64 features: between 0.7 and 2 times the batch for batches of 32 to 91."""
    with caplog.at_level(logging.WARNING, "unskew"):
        unskew.run(method, batch=batch, **SMALL)
    assert ("nearly singular" in caplog.text) == said


@pytest.mark.parametrize(
    ("method", "said"),
    [("flfa(select='fixed:body.0')", True), ("flfa(select='fixed:head')", False), ("flfa(select=lowest)", False)],
)
def test_flfa_says_when_its_layers_had_no_effect(caplog, method, said):
    with caplog.at_level(logging.WARNING, "unskew"):
        unskew.run(method, clients=3, rounds=3, steps=1)
    assert ("feedback changed nothing there" in caplog.text) == said


def test_flfa_counts_rounds_not_layers(caplog):
    with caplog.at_level(logging.WARNING, "unskew"):
        result = unskew.run("flfa(select='fixed:body.0+head')", clients=3, rounds=3, steps=1)
    assert result.rounds[-1]["method"]["feedback_no_op_rounds"] == 0
    assert "feedback changed nothing" not in caplog.text


def rows_of(*shares):
    return [{"used": True, "steps": steps, "dead_features": share} for share, steps in shares]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (rows_of((0.5, 3), (0.3, 1)), True),
        (rows_of((0.5, 1), (0.3, 3)), False),  # steps count, not clients
        (rows_of((0.5, 0)), False),
        ([], False),
        ([{"used": False, "dropped": True}, {"used": True, "steps": 3}], False),
    ],
)
def test_many_dead_features_are_said(rows, said):
    text = judge_dead(rows)
    assert bool(text) == said and (not said or text.startswith("45% of the features are the same"))


def test_each_run_whose_features_die_says_so_once(caplog):
    """With the floor raised they live."""
    options = {"split": "dirichlet:0.1", "clients": 10, "sample": 0.5, "rounds": 5, "epochs": 3, "lr": 0.01,
               "momentum": 0.9, "local_test": "none", "executor": "serial"}  # fmt: skip
    for method, count in {"fedblade": 1, "feddecorr": 1, "fedblade(var_eps=0.01)": 0}.items():
        for _ in range(2):
            caplog.clear()
            unskew.run(method, **options)
            said = [text for text in caplog.messages if "of the features are the same" in text]
            assert [text.startswith("round 3: ") for text in said] == [True] * count
