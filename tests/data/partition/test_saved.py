"""Partitions that were saved, listed and as recipes: read back, or refused in one line."""

import json
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.partition.toys import MILLION, edit, label_data, uniform
from unskew.base.errors import InputError
from unskew.base.registry import to_table
from unskew.data.partition.lazy import Dealer, LazyPartition
from unskew.data.partition.lazy_splits import LazySplit
from unskew.data.partition.listed import ListedPartition
from unskew.data.partition.saved import load_partition
from unskew.data.partition.splits import splits

# listed partitions load without looking at the data: tests of them give none


@pytest.fixture
def partition():
    origin = {"split": {"name": "dirichlet", "alpha": 0.1}, "seed": 3, "data": "abc"}
    return ListedPartition.from_lists([[4, 0], [], [1, 3, 2]], samples=6, **origin)


def test_round_trip(partition, tmp_path):
    path = tmp_path / "split.json"
    partition.save(path)
    loaded = load_partition(path, None)
    assert loaded.hash == partition.hash
    assert [part.tolist() for part in loaded] == [part.tolist() for part in partition]
    for name in ("samples", "split", "seed", "data"):
        assert getattr(loaded, name) == getattr(partition, name)
    assert [entry.name for entry in tmp_path.iterdir()] == ["split.json"]


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
    path = edit(tmp_path / "split.json", partition, **changes)
    with pytest.raises(InputError, match=message) as caught:
        load_partition(path, None)
    assert "\n" not in str(caught.value)
    assert "split.json" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_files_that_are_no_partition(tmp_path, content):
    path = tmp_path / "split.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"split\.json"):
        load_partition(path, None)


@settings(deadline=None)
@given(cut=st.floats(0, 0.999))
def test_every_cut_off_file_is_refused(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("cut") / "split.json"
    ListedPartition.from_lists([[2, 0], [1]], samples=3).save(path)
    text = path.read_text().rstrip()
    path.write_text(text[: int(cut * len(text))])
    with pytest.raises(InputError):
        load_partition(path, None)


def test_missing_file(tmp_path):
    with pytest.raises(InputError, match="cannot read partition"):
        load_partition(tmp_path / "none.json", None)


def test_a_hundred_thousand_clients_are_saved_and_loaded_in_little_memory(tmp_path):
    samples, clients = 300_000, 100_000
    partition = ListedPartition(np.random.default_rng(0).permutation(samples), np.arange(0, samples + 1, 3), samples)
    tracemalloc.start()
    try:
        partition.save(tmp_path / "split.json")
        loaded = load_partition(tmp_path / "split.json", None)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(loaded) == clients and loaded.hash == partition.hash
    assert most < 20 << 20  # the text has 2.5 MB and the arrays 3; as lists of numbers it would be more than 20


def test_file_gives_the_saved_partition_back(tmp_path):
    dataset, path = uniform(500), tmp_path / "split.json"
    made = splits.build("dirichlet:0.5").cut(dataset, 5, 1)
    made.save(path)
    split = splits.build(f"file:{path}")
    assert split.fixed_clients(dataset) == 5
    again = split.cut(dataset, 5, seed=99)
    assert (again.hash, again.split, again.seed) == (made.hash, {**to_table(splits.build("dirichlet:0.5"))}, 1)
    for other, clients, message in ((dataset, 6, "has 5 clients, got 6"), (uniform(400), 5, "is for 500 samples")):
        with pytest.raises(InputError, match=message):
            split.cut(other, clients, 1)
    with pytest.raises(InputError, match="made for other data"):
        split.cut(uniform(500, 3), 5, 1)


def virtual(dataset):
    return splits.build("virtual(samples=4, alpha=0.5)").cut(dataset, MILLION, 7)


@pytest.mark.parametrize("text", ["virtual(samples=4, alpha=0.5)", "virtual", "ranges", "ranges(shuffle=true)"])
def test_recipes_load_back_to_the_same_thing(digits, tmp_path, text):
    made = splits.build(text).cut(digits, 1000, 7)
    made.save(tmp_path / "split.json")
    assert (tmp_path / "split.json").stat().st_size < 300
    for again in (
        load_partition(tmp_path / "split.json", digits),
        splits.build(f"file:{tmp_path / 'split.json'}").cut(digits, 1000, 99),
    ):
        assert isinstance(again, LazyPartition) and len(again) == 1000 and again.hash == made.hash
        assert again.split == made.split == json.loads((tmp_path / "split.json").read_text())["split"]
        assert (again.seed, again.data, again.samples, again.total) == (7, made.data, made.samples, made.total)
        assert all(again[client].tolist() == made[client].tolist() for client in (0, 500, 999))
    assert splits.build(f"file:{tmp_path / 'split.json'}").fixed_clients(digits) == 1000


def test_listed_partitions_load_the_same_way(digits, tmp_path):
    made = splits.build("dirichlet:0.5").cut(digits, 5, 0)
    made.save(tmp_path / "split.json")
    again = load_partition(tmp_path / "split.json", digits)
    assert isinstance(again, ListedPartition) and again.hash == made.hash


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "unskew-recipe-2"}, "damaged: expected an object whose format is"),
        ({"split": ...}, "'split' is missing"),
        ({"split": {"name": "nosuch"}}, "unknown split 'nosuch'"),
        ({"split": {"name": "iid"}}, "split 'iid' lists its clients and has no recipe"),
        ({"split": {"name": "virtual", "samples": 5, "alpha": 0.5}}, "its hash is '.*' but its recipe gives"),
        ({"split": {"name": "virtual", "samples": -1}}, r"virtual\.samples"),
        ({"split": {"name": "virtual", "many": 3}}, "has no argument 'many'"),
        ({"clients": "10"}, "'clients' is of the wrong type"),
        ({"clients": True}, "'clients' is of the wrong type"),
        ({"clients": 10.5}, "'clients' is of the wrong type"),
        ({"clients": 999_999}, "its hash is"),
        ({"seed": 8}, "its hash is"),
        ({"seed": None}, "'seed' is of the wrong type"),
        ({"seed": -1}, "the seed of a split must be in"),
        ({"samples": 3}, "its hash is"),
        ({"data": "other"}, "its hash is"),
        ({"hash": "0" * 16}, "its hash is '0000"),
        ({"hash": ...}, "'hash' is missing"),
    ],
)
def test_damaged_recipes_are_refused_in_one_line(digits, tmp_path, changes, message):
    path = edit(tmp_path / "split.json", virtual(digits), **changes)
    with pytest.raises(InputError, match=message) as caught:
        load_partition(path, digits)
    assert "\n" not in str(caught.value) and "split.json' is damaged" in str(caught.value)


@settings(deadline=None)
@given(cut=st.floats(0, 0.999))
def test_every_cut_off_recipe_is_refused(tmp_path_factory, cut):
    dataset = label_data([0, 1] * 10)
    path = edit(tmp_path_factory.mktemp("cut") / "split.json", virtual(dataset))
    text = path.read_text().rstrip()
    path.write_text(text[: int(cut * len(text))])
    with pytest.raises(InputError, match=r"split\.json"):
        load_partition(path, dataset)


def test_other_data_are_told_apart(digits, tmp_path):
    path, other = edit(tmp_path / "split.json", virtual(digits)), label_data([0, 1] * 10)
    found = load_partition(path, other)
    assert not found.fits(other) and len(found) == MILLION
    with pytest.raises(InputError, match="made for other data"):
        found[0]
    with pytest.raises(InputError, match="is for 1437 samples, data 'toy' have 20"):
        splits.build(f"file:{path}").cut(other, MILLION, 0)


def test_a_split_of_ones_own_can_be_lazy(digits, tmp_path):
    class OneEach(Dealer):
        def hold(self, client):
            return np.array([client % 10])

        def sizes(self, clients):
            return np.ones(len(clients), np.int64)

        def total(self, clients):
            return clients

    @splits.register("test_one_each")
    class Own(LazySplit):
        """Everyone holds one of ten samples."""

        shared = True

        def check(self, dataset, clients):
            pass

        def dealer(self, dataset, clients, seed):
            return OneEach()

    made = splits.build("test_one_each").cut(digits, MILLION, 0)
    made.save(tmp_path / "split.json")
    assert load_partition(tmp_path / "split.json", digits)[13].tolist() == [3]


def test_a_partition_of_the_first_version_is_taken_with_a_line(digits, tmp_path, caplog):
    made = splits.build("dirichlet:0.5").cut(digits, 5, 1)
    old = replace(made, data=digits._sampled_fingerprint)
    old.save(tmp_path / "old.json")
    assert splits.build(f"file:{tmp_path / 'old.json'}").cut(digits, 5, 0).hash == made.hash
    assert "was saved by an older version, which looked at a sample of the inputs of 'digits' only" in caplog.text
    replace(made, data="0" * 16).save(tmp_path / "other.json")
    with pytest.raises(InputError, match="made for other data"):
        splits.build(f"file:{tmp_path / 'other.json'}").cut(digits, 5, 0)
