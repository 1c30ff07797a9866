import json
import tracemalloc

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


def edited(partition, path, **changes):
    partition.save(path)
    document = json.loads(path.read_text())
    for key, value in changes.items():
        document.pop(key) if value is ... else document.update({key: value})
    path.write_text(json.dumps(document))
    return path


def test_clients_are_views_of_one_flat_array(partition):
    assert len(partition) == 3
    assert [part.tolist() for part in partition] == [[4, 0], [], [1, 3, 2]]
    assert partition.sizes.tolist() == [2, 0, 3]
    assert partition.owners.tolist() == [0, 0, 2, 2, 2]
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
        ([[0, 6]], r"must lie in 0\.\.5, got 0\.\.6"),
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


def test_round_trip(partition, tmp_path):
    path = tmp_path / "split.json"
    partition.save(path)
    loaded = ListedPartition.load(path)
    assert loaded.hash == partition.hash
    assert [part.tolist() for part in loaded] == [part.tolist() for part in partition]
    for name in ("samples", "split", "seed", "data"):
        assert getattr(loaded, name) == getattr(partition, name)
    assert [entry.name for entry in tmp_path.iterdir()] == ["split.json"]


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "format is 'unskew-partition-1'"),
        ({"clients": ...}, "'clients' is missing"),
        ({"samples": "6"}, "'samples' is of the wrong type"),
        ({"clients": [[0], 1]}, "one list of whole numbers"),
        ({"clients": [[0.5]]}, "one list of whole numbers"),
        ({"clients": [[True]]}, "one list of whole numbers"),
        ({"clients": [[2**70]]}, "64 bits"),
        ({"clients": [[0, 0]]}, "sample 0 is held 2 times"),
        ({"clients": []}, "at least one client"),
        ({"samples": 3}, r"0\.\.2, got 0\.\.4"),
        ({"clients": [[0, 4], [], [1, 3, 2]]}, "its hash is"),
        ({"hash": "0" * 16}, "its hash is '0000"),
    ],
)
def test_damaged_files_are_refused_in_one_line(partition, tmp_path, changes, message):
    path = edited(partition, tmp_path / "split.json", **changes)
    with pytest.raises(InputError, match=message) as caught:
        ListedPartition.load(path)
    assert "\n" not in str(caught.value)
    assert "split.json" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_files_that_are_no_partition(tmp_path, content):
    path = tmp_path / "split.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"split\.json"):
        ListedPartition.load(path)


@settings(deadline=None)
@given(cut=st.floats(0, 0.999))
def test_every_cut_off_file_is_refused(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("cut") / "split.json"
    ListedPartition.from_lists([[2, 0], [1]], samples=3).save(path)
    text = path.read_text().rstrip()
    path.write_text(text[: int(cut * len(text))])
    with pytest.raises(InputError):
        ListedPartition.load(path)


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
            again = ListedPartition.from_text("split.json", form)
            assert again.hash == made.hash and again.split == made.split
            assert [part.tolist() for part in again] == lists


def test_some_clients(partition):
    assert partition.sizes_of([2, 0]).tolist() == [3, 2] and partition.total == 5
    indices, sizes = partition.flat(np.array([2, 1, 0]))
    assert (indices.tolist(), sizes.tolist()) == ([1, 3, 2, 4, 0], [3, 0, 2])


def test_missing_file(tmp_path):
    with pytest.raises(InputError, match="cannot read partition"):
        ListedPartition.load(tmp_path / "none.json")


def test_csv(partition, tmp_path):
    path = tmp_path / "split.csv"
    partition.export_csv(path, labels=[7, 8, 9, 7, 8, 9])
    rows = path.read_text().splitlines()
    assert rows == ["client,index,label", "0,4,8", "0,0,7", "2,1,8", "2,3,7", "2,2,9"]


def test_a_hundred_thousand_clients_are_saved_and_loaded_in_little_memory(tmp_path):
    samples, clients = 300_000, 100_000
    partition = ListedPartition(np.random.default_rng(0).permutation(samples), np.arange(0, samples + 1, 3), samples)
    tracemalloc.start()
    try:
        partition.save(tmp_path / "split.json")
        loaded = ListedPartition.load(tmp_path / "split.json")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(loaded) == clients and loaded.hash == partition.hash
    assert most < 20 << 20  # the text has 2.5 MB and the arrays 3; as lists of numbers it would be more than 20
