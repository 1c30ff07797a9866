"""Intervals and ranks agree with scipy's, and with answers that are known."""

import math

import numpy as np
import pytest
from scipy import stats

from unskew.measures.statistics import compare_ranks, critical_difference, paired_difference


def test_a_paired_interval_by_hand():
    # differences 1, 2, 3: mean 2, deviation 1, t(2 degrees, 0.975) = 4.3027
    found = paired_difference({0: 11, 1: 12, 2: 13}, {0: 10, 1: 10, 2: 10})
    assert found.mean == 2 and found.pairs == 3
    assert found.high - found.mean == pytest.approx(4.302652729911275 / math.sqrt(3))
    assert not found.is_clear


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_a_paired_interval_agrees_with_scipy(seeds):
    rng = np.random.default_rng(seeds)
    one, other = rng.normal(1.0, 0.3, seeds), rng.normal(0.0, 0.3, seeds)
    found = paired_difference(dict(enumerate(one)), dict(enumerate(other)))
    expected = stats.ttest_rel(one, other).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-12)
    assert found.is_clear == (stats.ttest_rel(one, other).pvalue < 0.05)


def test_fewer_than_three_seeds_have_no_interval():
    found = paired_difference({0: 2.0, 1: 3.0}, {0: 1.0, 1: 1.0})
    assert found.mean == 1.5 and found.low is None and found.high is None and not found.is_clear


def test_only_shared_seeds_count():
    assert paired_difference({0: 1.0, 7: 9.0}, {0: 0.5, 3: 2.0}).pairs == 1
    assert paired_difference({0: 1.0}, {1: 1.0}) is None


def test_ranks_by_hand_and_by_scipy():
    figures = {"a": [90.0, 80.0, 70.0, 60.0], "b": [85.0, 81.0, 65.0, 50.0], "c": [10.0, 20.0, 30.0, 40.0]}
    found = compare_ranks(figures)
    assert found.mean == (1.25, 1.75, 3.0) and found.settings == 4
    assert found.p_value == pytest.approx(stats.friedmanchisquare(*figures.values()).pvalue)


def test_equal_figures_share_a_rank():
    found = compare_ranks({"a": [1.0, 1.0], "b": [1.0, 1.0], "c": [1.0, 1.0]})
    assert found.mean == (2.0, 2.0, 2.0) and found.p_value is None


def test_critical_differences_are_those_of_demsar():
    # Demsar, JMLR 2006, Table 5 (q at 0.05: 2.343 for three classifiers, 2.569 for four) and its example, 14 data sets
    assert critical_difference(4, 14) == pytest.approx(2.569 * math.sqrt(4 * 5 / (6 * 14)), abs=5e-4)
    assert critical_difference(3, 30) == pytest.approx(2.343 * math.sqrt(3 * 4 / (6 * 30)), abs=5e-4)


def test_two_methods_are_ranked_without_friedman():
    assert compare_ranks({"a": [1.0, 2.0], "b": [0.0, 1.0]}).p_value is None
    with pytest.raises(ValueError):
        compare_ranks({"a": [1.0], "b": [0.0]})
