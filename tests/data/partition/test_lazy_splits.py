"""Clients that are computed: nothing is kept per client, and they are the same everywhere."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.partition.toys import MILLION, label_data, peak
from unskew.base.errors import InputError
from unskew.data.partition.saved import load_partition
from unskew.data.partition.skew import label_counts
from unskew.data.partition.splits import splits
from unskew.runs import engine
from unskew.runs.config import from_table

GOLDEN_PLAIN = [[1335, 760, 868, 392, 688, 360], [137, 98, 88, 388, 1297, 650]]
GOLDEN_SKEWED = [[1268, 960, 796, 269, 565, 1338], [157, 1195, 812, 591, 1270, 946]]
GOLDEN_DENSE = [861, 1070, 1203, 57]


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


@settings(deadline=None)
@given(samples=st.integers(1, 200), clients=st.integers(1, 200), seed=st.integers(0, 2**32 - 1))
def test_ranges_are_even_and_disjoint_and_shuffled_ones_are_iid(samples, clients, seed):
    dataset, clients = label_data(np.arange(samples) % 3, 3), min(samples, clients)
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
    partition = split.cut(label_data(labels, 5), MILLION, 1)
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
    partition = splits.build("virtual(samples=6, alpha=0.001)").cut(label_data([0, 1, 1, 2, 2, 2, 3]), 50, 0)
    assert all(len(set(held.tolist())) == 6 for held in partition)


def test_classes_without_samples_are_never_drawn():
    partition = splits.build("virtual(samples=2, alpha=0.01)").cut(label_data([1, 1, 3, 3], 5), 50, 0)
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


@pytest.mark.parametrize(
    ("text", "clients", "message"),
    [
        ("virtual:101", 5, "a client draws 101 samples, the data have 100; take fewer"),
        ("virtual", 0, r"must be in 1\.\.1000000000000, got 0"),
        ("virtual", 10**13, "must be in"),
        ("ranges", 101, "number of samples; got 101; split 'virtual' takes more"),
        ("ranges", 0, "got 0"),
        ("virtual:0", 5, r"virtual\.samples"),
        ("virtual(alpha=0)", 5, r"virtual\.alpha"),
        ("virtual(alpha=true)", 5, r"virtual\.alpha: input should be a number, got true"),
    ],
)
def test_impossible_cuts(text, clients, message):
    with pytest.raises(InputError, match=message) as caught:
        splits.build(text).cut(label_data(np.arange(100) % 4), clients, 0)
    assert "\n" not in str(caught.value)
