"""Partitions that are computed: nothing per client, the same everywhere, kept as a recipe."""

import json
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unskew.base.errors import InputError
from unskew.data.dataset import Dataset, Samples
from unskew.data.partition.lazy import LazyPartition, LazySplit, load_partition
from unskew.data.partition.listed import ListedPartition
from unskew.data.partition.skew import CHOSEN_CLIENTS, chosen_clients, describe, label_counts
from unskew.data.partition.splits import splits
from unskew.data.sources import load
from unskew.runs import engine
from unskew.runs.config import from_table

MILLION = 1_000_000
GOLDEN_PLAIN = [[1335, 760, 868, 392, 688, 360], [137, 98, 88, 388, 1297, 650]]
GOLDEN_SKEWED = [[1268, 960, 796, 269, 565, 1338], [157, 1195, 812, 591, 1270, 946]]
GOLDEN_DENSE = [861, 1070, 1203, 57]


def data(labels, classes=None):
    y = torch.as_tensor(labels, dtype=torch.int64)
    x = torch.zeros(len(y), 1)
    classes = tuple(str(c) for c in range(classes or int(y.max()) + 1))
    return Dataset("toy", Samples(x, y), Samples(x[:1], y[:1]), classes, (0.0,), (1.0,))


@pytest.fixture(scope="module")
def digits():
    return load("digits")


def peak(work):
    """Bytes that were allocated at the same time, at most."""
    work()  # what is imported or kept once does not count
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# ------------------------------------------------------------------------------------ laziness


@pytest.mark.parametrize("text", ["virtual", "virtual(alpha=0.1)"])
def test_clients_cost_nothing_until_they_are_asked_for(digits, tmp_path, text):
    def work(clients):
        partition = splits.build(text).cut(digits, clients, 3)
        assert len(partition) == clients and partition.total == 18 * clients
        assert partition.sizes_of([0, clients - 1]).tolist() == [18, 18]
        partition.save(tmp_path / f"{clients}.json")
        again = load_partition(tmp_path / f"{clients}.json", digits)
        assert again.hash == partition.hash and again.fits(digits)
        assert again[clients // 2].tolist() == partition[clients // 2].tolist()

    assert peak(lambda: work(10**12)) <= peak(lambda: work(10)) + 2000


def test_ranges_keep_no_more_than_an_order(digits):
    assert peak(lambda: splits.build("ranges").cut(digits, 1400, 0)[700]) < 100_000
    assert peak(lambda: splits.build("ranges(shuffle=true)").cut(digits, 1400, 0)[700]) < 100_000 + 8 * len(
        digits.train
    )


def test_a_run_of_a_million_clients_takes_the_memory_of_a_hundred(digits):
    def play(clients):
        table = {"method": "scaffold", "clients": clients, "sample": 5 / clients, "split": "virtual", "rounds": 2}
        table |= {"model": "mlp", "evaluation": {"local_test": "holdout", "max_clients": 5}}
        engine.run(from_table(table), dataset=digits)

    assert peak(lambda: play(MILLION)) <= peak(lambda: play(100)) + 500_000


# ------------------------------------------------------------------------------------ who holds what


@settings(deadline=None)
@given(samples=st.integers(1, 200), clients=st.integers(1, 200), seed=st.integers(0, 2**32 - 1))
def test_ranges_are_even_and_disjoint_and_shuffled_ones_are_iid(samples, clients, seed):
    dataset, clients = data(np.arange(samples) % 3, 3), min(samples, clients)
    plain = splits.build("ranges").cut(dataset, clients, seed)
    assert np.concatenate(list(plain)).tolist() == list(range(samples))
    assert np.ptp(plain.sizes_of(np.arange(clients))) <= 1 and plain.total == samples and not plain.shared
    shuffled, iid = (splits.build(text).cut(dataset, clients, seed) for text in ("ranges(shuffle=true)", "iid"))
    assert [part.tolist() for part in shuffled] == [part.tolist() for part in iid]
    assert shuffled.sizes_of([0, clients - 1]).tolist() == iid.sizes_of([0, clients - 1]).tolist()


@settings(deadline=None)
@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    share=st.floats(0, 1),
    alpha=st.one_of(st.none(), st.floats(1e-6, 1e6)),
    client=st.integers(0, MILLION - 1),
)
def test_virtual_clients_hold_so_many_different_samples(labels, share, alpha, client):
    size = max(1, int(share * len(labels)))
    split = splits.build({"name": "virtual", "samples": size, **({} if alpha is None else {"alpha": alpha})})
    partition = split.cut(data(labels, 5), MILLION, 1)
    held = partition[client]
    assert len(held) == len(set(held.tolist())) == size == partition.sizes_of([client])[0]
    assert held.min() >= 0 and held.max() < len(labels)
    assert partition[client].tolist() == held.tolist()
    assert partition.shared


def test_alpha_decides_how_many_labels_a_client_has(digits):
    def classes_held(text):
        counts = label_counts(splits.build(text).cut(digits, 300, 0), digits.train.y.numpy(), 10)
        return (counts > 0).sum(axis=1).mean()

    assert classes_held("virtual(alpha=0.0000001)") == 1
    assert 2 < classes_held("virtual(alpha=0.1)") < 4
    assert classes_held("virtual(alpha=100000)") > 8 and classes_held("virtual") > 8


def test_a_class_that_is_used_up_is_passed_over():
    partition = splits.build("virtual(samples=6, alpha=0.001)").cut(data([0, 1, 1, 2, 2, 2, 3]), 50, 0)
    assert all(len(set(held.tolist())) == 6 for held in partition)


def test_classes_without_samples_are_never_drawn():
    partition = splits.build("virtual(samples=2, alpha=0.01)").cut(data([1, 1, 3, 3], 5), 50, 0)
    assert {len(held) for held in partition} == {2}


def test_draws_are_those_of_every_machine_and_version(digits):
    """Equal recipes must mean equal clients, for good."""
    plain, skewed = (splits.build(text).cut(digits, MILLION, 5) for text in ("virtual:6", "virtual(6, alpha=0.5)"))
    assert [plain[client].tolist() for client in (3, 999_999)] == GOLDEN_PLAIN
    assert [skewed[client].tolist() for client in (3, 999_999)] == GOLDEN_SKEWED
    assert splits.build("virtual:1000").cut(digits, MILLION, 5)[3][:4].tolist() == GOLDEN_DENSE


def test_clients_and_seeds_differ(digits):
    split = splits.build("virtual(alpha=0.5)")
    one, two = split.cut(digits, 50, 1), split.cut(digits, 50, 2)
    assert len({tuple(held.tolist()) for held in [*one, *two]}) == 100
    assert one.hash != two.hash and one.hash == split.cut(digits, 50, 1).hash
    assert one.hash != split.cut(digits, 51, 1).hash
    # more clients do not change those that were there
    assert one[7].tolist() == split.cut(digits, MILLION, 1)[7].tolist()


def test_other_processes_see_the_same_clients(digits):
    script = (
        "from unskew.data.sources import load; from unskew.registries import splits\n"
        "partition = splits.build('virtual(alpha=0.3)').cut(load('digits'), 10**6, 9)\n"
        "print([partition[client].tolist() for client in (999999, 4, 123456)], partition.hash)"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    partition = splits.build("virtual(alpha=0.3)").cut(digits, MILLION, 9)
    assert said.strip() == f"{[partition[client].tolist() for client in (999999, 4, 123456)]} {partition.hash}"


def test_client_numbers_are_checked(digits):
    partition = splits.build("virtual").cut(digits, 10, 0)
    assert partition[-1].tolist() == partition[9].tolist()
    for client in (10, -11):
        with pytest.raises(IndexError, match=r"0\.\.9"):
            partition[client]


@pytest.mark.parametrize(
    ("text", "clients", "message"),
    [
        ("virtual:101", 5, "a client draws 101 samples, the data have 100; take fewer"),
        ("virtual", 0, r"must lie in 1\.\.1000000000000, got 0"),
        ("virtual", 10**13, "must lie in"),
        ("ranges", 101, "number of samples; got 101; split 'virtual' takes more"),
        ("ranges", 0, "got 0"),
        ("virtual:0", 5, r"virtual\.samples"),
        ("virtual(alpha=0)", 5, r"virtual\.alpha"),
        ("virtual(alpha=true)", 5, r"virtual\.alpha: input should be a number, got true"),
    ],
)
def test_impossible_cuts(text, clients, message):
    with pytest.raises(InputError, match=message) as caught:
        splits.build(text).cut(data(np.arange(100) % 4), clients, 0)
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------------------ recipes


def edited(path, dataset, **changes):
    splits.build("virtual(samples=4, alpha=0.5)").cut(dataset, MILLION, 7).save(path)
    document = json.loads(path.read_text())
    for key, value in changes.items():
        document.pop(key) if value is ... else document.update({key: value})
    path.write_text(json.dumps(document))
    return path


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
        ({"seed": -1}, "the seed of a split must lie in"),
        ({"samples": 3}, "its hash is"),
        ({"data": "other"}, "its hash is"),
        ({"hash": "0" * 16}, "its hash is '0000"),
        ({"hash": ...}, "'hash' is missing"),
    ],
)
def test_damaged_recipes_are_refused_in_one_line(digits, tmp_path, changes, message):
    path = edited(tmp_path / "split.json", digits, **changes)
    with pytest.raises(InputError, match=message) as caught:
        load_partition(path, digits)
    assert "\n" not in str(caught.value) and "split.json' is damaged" in str(caught.value)


@settings(deadline=None)
@given(cut=st.floats(0, 0.999))
def test_every_cut_off_recipe_is_refused(tmp_path_factory, cut):
    dataset = data([0, 1] * 10)
    path = edited(tmp_path_factory.mktemp("cut") / "split.json", dataset)
    text = path.read_text().rstrip()
    path.write_text(text[: int(cut * len(text))])
    with pytest.raises(InputError, match=r"split\.json"):
        load_partition(path, dataset)


def test_other_data_are_told_apart(digits, tmp_path):
    path, other = edited(tmp_path / "split.json", digits), data([0, 1] * 10)
    found = load_partition(path, other)
    assert not found.fits(other) and len(found) == MILLION
    with pytest.raises(InputError, match="made for other data"):
        found[0]
    with pytest.raises(InputError, match="is for 1437 samples, data 'toy' have 20"):
        splits.build(f"file:{path}").cut(other, MILLION, 0)


def test_a_split_of_ones_own_can_be_lazy(digits, tmp_path):
    from unskew.data.partition.lazy import Dealer

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


# ------------------------------------------------------------------------------------ figures


def test_figures_are_over_a_fixed_choice_of_very_many_clients(digits):
    labels, partition = digits.train.y.numpy(), splits.build("virtual(alpha=0.1)").cut(digits, MILLION, 0)
    summary = describe(partition, labels, 10)
    assert (summary.clients, summary.samples, summary.described) == (MILLION, 18 * MILLION, CHOSEN_CLIENTS)
    assert summary.sizes.min == summary.sizes.max == 18 and summary.empty_clients == 0
    assert describe(partition, labels, 10) == summary
    clients = chosen_clients(partition)
    assert len(set(clients.tolist())) == CHOSEN_CLIENTS and sorted(clients) == clients.tolist()
    assert label_counts(partition, labels, 10, clients).sum() == 18 * CHOSEN_CLIENTS
    assert peak(lambda: describe(partition, labels, 10)) < 5_000_000


def test_figures_of_few_computed_clients_are_those_of_listed_ones(digits):
    labels, computed = digits.train.y.numpy(), splits.build("ranges").cut(digits, 50, 0)
    listed = ListedPartition.from_lists(list(computed), len(labels))
    assert describe(computed, labels, 10) == describe(listed, labels, 10)
    assert label_counts(computed, labels, 10).tolist() == label_counts(listed, labels, 10).tolist()


def test_csv(digits, tmp_path):
    partition = splits.build("virtual:2").cut(digits, 2, 0)
    partition.export_csv(tmp_path / "split.csv", digits.train.y)
    rows = [f"{c},{i},{int(digits.train.y[i])}" for c in (0, 1) for i in partition[c].tolist()]
    assert (tmp_path / "split.csv").read_text().splitlines() == ["client,index,label", *rows]
    with pytest.raises(InputError, match="a CSV lists up to 10000000 samples, these 1000000 clients hold 18000000"):
        splits.build("virtual").cut(digits, MILLION, 0).export_csv(tmp_path / "large.csv", digits.train.y)
