import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unskew.base.errors import InputError
from unskew.data.partition import skew
from unskew.data.partition.listed import ListedPartition
from unskew.data.partition.skew import describe, gini, label_counts
from unskew.report.split_plot import plot_split, thinned


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


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (5, 10), (100, 10), (450, 300)])
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_pictures_of_every_size(tmp_path, clients, classes, suffix):
    counts = np.random.default_rng(0).integers(0, 20, (clients, classes))
    path = tmp_path / f"split.{suffix}"
    plot_split(counts, [f"class {c}" for c in range(classes)], path, "title")
    assert path.stat().st_size > 5000


def test_picture_of_nothing_and_with_names(tmp_path):
    plot_split(np.zeros((2, 3)), "abc", tmp_path / "split.png", "title", clients=["sketch", "real"])
    assert (tmp_path / "split.png").exists()


def test_thinning_keeps_the_ends():
    assert thinned(3, 200).tolist() == [0, 1, 2]
    assert len(thinned(1000, 200)) == 200
    assert thinned(1000, 200)[[0, -1]].tolist() == [0, 999]
