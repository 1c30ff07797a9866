"""Summaries of curves: the golden file metrics.json, and by hand."""

import math

import pytest

from support import golden, golden_names
from unskew.measures import figures
from unskew.measures.forgetting import forgetting
from unskew.measures.rounds_to import rounds_to_target


@pytest.mark.parametrize("name", golden_names("metrics*"))
def test_golden(name):
    file = golden(name)
    curve = file.inputs["accuracy_per_round"]
    found = {
        "rounds_to_target": [rounds_to_target(curve, target) for target in file.hyper["targets"]],
        "last_10_percent_mean": figures.last_share_mean(curve),
        "last_k_mean": figures.last_k_mean(curve, file.hyper["last_k"]),
        "best": figures.best(curve),
        "forgetting": forgetting(file.inputs["classwise"]),
    }
    for key, value in found.items():
        expected = file.expected[key]
        assert value == (expected if isinstance(expected, list) else pytest.approx(expected, rel=file.rtol)), key


def test_by_hand():
    assert figures.last([0.1, 0.4, 0.3]) == 0.3
    assert figures.at_best_validation([0.1, 0.4, 0.3], [0.2, 0.2, 0.1]) == 0.1  # the first of equals
    assert figures.worst_share_mean([0.9, 0.1, 0.5]) == 0.1
    assert figures.worst_share_mean([i / 20 for i in range(20)]) == pytest.approx(0.025)
    mean, std = figures.mean_and_std([1.0, 3.0])
    assert (mean, std) == (2.0, pytest.approx(math.sqrt(2)))
    assert math.isnan(figures.mean_and_std([1.0])[1])
    assert figures.last_share_mean([1.0] * 9 + [0.0]) == 0.0
    assert figures.last_share_mean([0.5]) == 0.5
