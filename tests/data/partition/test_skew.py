import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.partition.toys import MILLION, peak
from unskew.base.errors import InputError
from unskew.data.partition import skew
from unskew.data.partition.listed import ListedPartition
from unskew.data.partition.skew import CHOSEN_CLIENTS, choose_clients, describe, gini, label_counts
from unskew.data.partition.splits import splits


def test_counts():
    partition = ListedPartition.from_lists([[0, 1], [], [2, 4, 3]], samples=6)
    assert label_counts(partition, [0, 0, 1, 2, 1, 0], 4).tolist() == [[2, 0, 0, 0], [0, 0, 0, 0], [0, 2, 1, 0]]


def test_no_skew_at_all():
    summary = describe(ListedPartition.from_lists([[0, 1], [2, 3]], 4), [0, 1, 0, 1], 2)
    assert summary.size_gini == summary.kl.max == summary.jensen_shannon.max == summary.total_variation.max == 0
    assert summary.effective_classes.mean == pytest.approx(2)


def test_one_class_per_client():
    summary = describe(ListedPartition.from_lists([[0, 2], [1, 3], []], 4), [0, 1, 0, 1], 2)
    assert summary.empty_clients == 1
    assert summary.classes.max == 1
    assert summary.effective_classes.mean == pytest.approx(1)
    assert summary.total_variation.mean == pytest.approx(0.5)
    assert summary.kl.mean == pytest.approx(1)
    assert summary.jensen_shannon.mean == pytest.approx(0.311278, abs=1e-6)


def test_gini():
    assert gini([5, 5, 5]) == 0
    assert gini([0, 0, 0]) == 0
    assert gini([0, 0, 0, 8]) == pytest.approx(0.75)


@settings(deadline=None)
@given(owners=st.lists(st.integers(0, 6), min_size=1, max_size=80), seed=st.integers(0, 1000))
def test_bounds_and_blocks(owners, seed):
    labels = np.random.default_rng(seed).integers(0, 5, len(owners))
    partition = ListedPartition.from_lists([np.flatnonzero(np.array(owners) == k) for k in range(7)], len(owners))
    whole = describe(partition, labels, 5)
    assert 0 <= whole.size_gini < 1
    assert -1e-12 <= whole.jensen_shannon.min <= whole.jensen_shannon.max <= 1
    assert whole.total_variation.max <= 1
    assert whole.effective_classes.min >= 1 - 1e-9
    assert whole.effective_classes.max <= whole.classes.max + 1e-9
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(skew, "BLOCK_CELLS", 10)
        assert describe(partition, labels, 5) == whole


def test_very_many_clients_are_summarised_only():
    clients = 20_000
    partition = ListedPartition(np.arange(2 * clients), np.arange(0, 2 * clients + 1, 2), 2 * clients)
    labels = np.arange(2 * clients) % 3
    assert describe(partition, labels, 3).classes.mean == 2
    with pytest.raises(InputError, match="use describe"):
        label_counts(partition, labels, 3)


def test_summary_is_plain():
    summary = describe(ListedPartition.from_lists([[0], [1, 2]], 3), [0, 1, 1], 2)
    assert json.loads(json.dumps(summary.to_dict()))["sizes"]["max"] == 2


def test_nothing_to_describe():
    with pytest.raises(InputError, match="hold no samples"):
        describe(ListedPartition.from_lists([[]], 3), [0, 1, 1], 2)


def test_figures_are_over_a_fixed_choice_of_very_many_clients(digits):
    labels, partition = digits.train.y.numpy(), splits.build("virtual(alpha=0.1)").cut(digits, MILLION, 0)
    summary = describe(partition, labels, 10)
    assert (summary.clients, summary.samples, summary.described) == (MILLION, 18 * MILLION, CHOSEN_CLIENTS)
    assert summary.sizes.min == summary.sizes.max == 18 and summary.empty_clients == 0
    assert describe(partition, labels, 10) == summary
    clients = choose_clients(partition)
    assert len(set(clients.tolist())) == CHOSEN_CLIENTS and sorted(clients) == clients.tolist()
    assert label_counts(partition, labels, 10, clients).sum() == 18 * CHOSEN_CLIENTS
    assert peak(lambda: describe(partition, labels, 10)) < 5_000_000


def test_figures_of_few_computed_clients_are_those_of_listed_ones(digits):
    labels, computed = digits.train.y.numpy(), splits.build("ranges").cut(digits, 50, 0)
    listed = ListedPartition.from_lists(list(computed), len(labels))
    assert describe(computed, labels, 10) == describe(listed, labels, 10)
    assert label_counts(computed, labels, 10).tolist() == label_counts(listed, labels, 10).tolist()
