import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unskew.base.errors import InputError
from unskew.data.partition import listed as module
from unskew.data.partition.listed import ListedPartition


@pytest.fixture
def partition():
    origin = {"split": {"name": "dirichlet", "alpha": 0.1}, "seed": 3, "data": "abc"}
    return ListedPartition.from_lists([[4, 0], [], [1, 3, 2]], samples=6, **origin)


def test_clients_are_views_of_one_flat_array(partition):
    assert len(partition) == 3
    assert [part.tolist() for part in partition] == [[4, 0], [], [1, 3, 2]]
    assert partition.sizes.tolist() == [2, 0, 3]
    assert partition[-1].tolist() == [1, 3, 2]
    assert partition[2].base is not None
    assert np.shares_memory(partition[2], partition.indices)
    with pytest.raises(IndexError):
        partition[3]


def test_arrays_cannot_be_changed(partition):
    with pytest.raises(ValueError, match="read-only"):
        partition[0][0] = 5


def test_hash_knows_order_and_borders():
    different = [[[0, 1], [2]], [[1, 0], [2]], [[0], [1, 2]], [[0, 1, 2]]]
    assert len({ListedPartition.from_lists(lists, 4).hash for lists in different}) == 4
    assert ListedPartition.from_lists([[0, 1], [2]], 4).hash == ListedPartition.from_lists([[0, 1], [2]], 9).hash


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ([], "at least one client"),
        ([[0, 6]], r"must be in 0\.\.5, got 0\.\.6"),
        ([[-1]], r"got -1\.\.-1"),
        ([[1], [2, 1]], "sample 1 is held 2 times"),
    ],
)
def test_impossible_partitions_are_refused(lists, message):
    with pytest.raises(InputError, match=message):
        ListedPartition.from_lists(lists, samples=6)


def test_offsets_must_fit():
    with pytest.raises(InputError, match="offsets must rise from 0 to 2"):
        ListedPartition(np.array([0, 1]), np.array([0, 2, 1, 2]), 2)


def test_save_never_replaces_something_else(partition, tmp_path):
    path = tmp_path / "split.json"
    partition.save(path)
    partition.save(path)
    before = path.read_bytes()
    with pytest.raises(InputError, match="holds something else"):
        ListedPartition.from_lists([[0]], samples=6).save(path)
    assert path.read_bytes() == before
    with pytest.raises(InputError, match="holds something else"):
        partition.save(tmp_path)


def test_save_where_nothing_can_be_written(partition, tmp_path):
    with pytest.raises(InputError, match="cannot write"):
        partition.save(tmp_path / "missing" / "split.json")


@settings(deadline=None)
@given(owners=st.lists(st.integers(0, 9), max_size=60), block=st.integers(1, 5), piece=st.integers(0, 30))
def test_files_are_written_and_read_in_parts_that_change_nothing(tmp_path_factory, owners, block, piece):
    lists = [np.flatnonzero(np.array(owners) == client).tolist() for client in range(10)]
    made = ListedPartition.from_lists(lists, len(owners), split={"name": "odd", "text": '"clients": [[1]]}'})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK", block)
        patch.setattr(module, "_PIECE", piece)
        text = made.to_json().decode()
        document = json.loads(text)
        assert document["clients"] == lists and text == json.dumps(document) + "\n"
        for form in (text, json.dumps(document, indent=1), json.dumps(document, sort_keys=True)):
            again = ListedPartition.from_json(form)
            assert again.hash == made.hash and again.split == made.split
            assert [part.tolist() for part in again] == lists


def test_some_clients(partition):
    assert partition.sizes_of([2, 0]).tolist() == [3, 2] and partition.total == 5
    indices, sizes = partition.concatenate(np.array([2, 1, 0]))
    assert (indices.tolist(), sizes.tolist()) == ([1, 3, 2, 4, 0], [3, 0, 2])


def test_csv(partition, tmp_path):
    path = tmp_path / "split.csv"
    partition.export_csv(path, labels=[7, 8, 9, 7, 8, 9])
    rows = path.read_text().splitlines()
    assert rows == ["client,index,label", "0,4,8", "0,0,7", "2,1,8", "2,3,7", "2,2,9"]
