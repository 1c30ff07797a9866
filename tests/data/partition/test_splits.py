import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.random import RandomState

from data.partition.toys import label_data, uniform
from small_runs import play_one_step
from support import golden, golden_names
from unskew import Split
from unskew.base.errors import InputError
from unskew.data.partition.listed import ListedPartition
from unskew.data.partition.splits import _deal, _draw_counts, splits


def assert_covers(partition, samples):
    assert sorted(partition.indices.tolist()) == list(range(samples))


label_lists = st.lists(st.integers(0, 4), min_size=1, max_size=120)


alphas = st.floats(1e-6, 1e6)


seeds = st.integers(0, 2**32 - 1)


caps = st.sampled_from(["integer", "real", "none"])


few = st.integers(1, 4)


@pytest.mark.parametrize("name", golden_names("partition_seeded*"))
@pytest.mark.parametrize("kind", ["lda", "shard"])
def test_published_partitions_bit_for_bit(name, kind):
    file = golden(name)
    hyper = file.hyper[kind]
    text = {"lda": "dirichlet:{alpha}", "shard": "shards:{shards_per_client}"}[kind].format(**hyper)
    dataset = label_data(file.inputs["labels"])
    partition = splits.build(text).cut(dataset, hyper["clients"], file.hyper["seed"])
    assert {str(k): part.tolist() for k, part in enumerate(partition)} == file.expected[kind]
    assert partition.sizes.tolist() == file.expected[f"{kind}_sizes"]


@settings(deadline=None)
@given(labels=label_lists, clients=st.integers(1, 30), seed=seeds)
def test_iid_is_even(labels, clients, seed):
    assume(clients <= len(labels))
    partition = splits.build("iid").cut(label_data(labels), clients, seed)
    assert_covers(partition, len(labels))
    assert np.ptp(partition.sizes) <= 1


@settings(deadline=None)
@given(labels=label_lists, clients=st.integers(1, 20), alpha=alphas, seed=seeds, cap=caps)
def test_dirichlet_is_a_disjoint_cover(labels, clients, alpha, seed, cap):
    assume(clients <= len(labels))
    split = splits.build({"name": "dirichlet", "alpha": alpha, "min_size": 0, "cap": cap})
    assert_covers(split.cut(label_data(labels), clients, seed), len(labels))


@settings(deadline=None)
@given(alpha=st.floats(0.3, 100), clients=st.integers(1, 8), min_size=st.integers(0, 12), seed=seeds)
def test_dirichlet_keeps_its_min_size(alpha, clients, min_size, seed):
    split = splits.build(f"dirichlet({alpha}, min_size={min_size})")
    assert split.cut(uniform(400, 5), clients, seed).sizes.min() >= min_size


@settings(deadline=None)
@given(alpha=alphas, clients=st.integers(2, 10), seed=seeds, cap=st.sampled_from(["integer", "real"]))
def test_full_clients_are_passed_over(alpha, clients, seed, cap):
    dataset = uniform(200, 5)
    split = splits.build({"name": "dirichlet", "alpha": alpha, "min_size": 0, "cap": cap})
    full = 200 // clients if cap == "integer" else 200 / clients
    labels = dataset.train.y.numpy()
    held = np.stack([np.bincount(labels[part], minlength=5) for part in split.cut(dataset, clients, seed)])
    before = np.cumsum(held, axis=1) - held
    gained = held * ((before >= full) & (before > before.min(axis=0)))
    assert not gained[:-1].any()
    assert gained[-1].max() <= 1  # the last client takes what rounding leaves


def test_a_class_goes_to_the_smallest_client_when_all_are_full():
    # after class 0 both hold at least 5 // 2 = 2; the single sample of class 1 goes to the one that holds 2
    split = splits.build("dirichlet(1e6, min_size=0)")
    partition = split.cut(label_data([0, 0, 0, 0, 1]), 2, seed=0)
    assert sorted(partition.sizes.tolist()) == [2, 3]


def test_uncapped_is_dirichlet_without_cap():
    dataset = uniform(2000)
    uncapped = splits.build("dirichlet_uncapped:0.3").cut(dataset, 10, 5)
    assert uncapped.hash == splits.build("dirichlet(0.3, cap=none)").cut(dataset, 10, 5).hash
    assert uncapped.hash != splits.build("dirichlet:0.3").cut(dataset, 10, 5).hash
    assert uncapped.split["name"] == "dirichlet_uncapped"


@settings(deadline=None)
@given(labels=label_lists, clients=st.integers(1, 12), per_client=st.integers(1, 4), seed=seeds)
def test_shards_cover_with_few_labels_per_client(labels, clients, per_client, seed):
    split = splits.build({"name": "shards", "per_client": per_client})
    try:
        partition = split.cut(label_data(labels), clients, seed)
    except InputError:
        shards, sizes = clients * per_client, np.unique(labels, return_counts=True)[1]
        assert clients > len(labels) or shards < len(sizes) or sizes.min() < shards // len(sizes)
        return
    if partition.shared:
        assert set(partition.indices.tolist()) == set(range(len(labels)))
    else:
        assert_covers(partition, len(labels))
    assert max(len(set(np.array(labels)[part])) for part in partition) <= per_client


def test_shards_that_do_not_come_out_even_are_those_of_the_published_code():
    """200 clients x 2 of 9 classes (PathMNIST): 44 shards a class; the four labels that fill the list up find none."""
    labels = np.repeat(np.arange(9), 440)
    partition = splits.build("shards:2").cut(label_data(labels), 200, 3)
    assert [len(part) for part in partition] == [20] * 200  # every shard has ten samples
    assert partition[198].tolist() == partition[199].tolist() == partition[197].tolist()
    assert sorted(np.concatenate([partition[client] for client in range(198)]).tolist()) == list(range(len(labels)))
    read = ListedPartition.from_json(partition.to_json().decode())
    assert (read.hash, read.shared) == (partition.hash, True)


def test_a_client_short_of_one_shard_keeps_the_other():
    labels = np.repeat(np.arange(3), 40)
    partition = splits.build("shards:4").cut(label_data(labels), 10, 0)  # 40 shards wanted, 39 there
    assert sorted(partition.sizes)[0] < 12 and not partition.shared
    assert_covers(partition, 120)


def test_counts_alone_are_drawn_as_whole_partitions_are():
    """The number of clients below 10 samples, its mean over draws of either way, within four standard errors."""
    members = [200] * 10
    short = {"counts": (_draw_counts(members, 20, 0.05, 100, RandomState(0)).sum(1) < 10).sum(1)}
    rng, by_class = RandomState(1), np.split(np.arange(2000), 10)
    short["whole"] = np.array([(_deal(by_class, 20, 0.05, 100, rng)[1] < 10).sum() for _ in range(1000)])
    error = np.sqrt(sum(values.var() / len(values) for values in short.values()))
    assert short["whole"].var() > 0
    assert abs(short["counts"].mean() - short["whole"].mean()) < 4 * error


def test_rare_partitions_are_found_by_counts():
    dataset = label_data(np.repeat(np.arange(10), 300))
    split = splits.build("dirichlet(0.05, tries=1, min_size=20)")
    partition = split.cut(dataset, 30, 1)
    assert_covers(partition, 3000)
    assert partition.sizes.min() >= 20
    assert partition.hash == split.cut(dataset, 30, 1).hash != split.cut(dataset, 30, 2).hash


@settings(deadline=None)
@given(classes=few, each=few, size=few, per_client=few, seed=seeds)
def test_even_shards_give_equal_sizes(classes, each, size, per_client, seed):
    clients = classes * each
    labels = np.repeat(np.arange(classes), each * per_client * size)
    assert set(splits.build(f"shards:{per_client}").cut(label_data(labels), clients, seed).sizes) == {per_client * size}


def test_domains_and_natural_clients():
    dataset = label_data([0, 1] * 6, groups=[2, 0, 1] * 4, names=("a", "b", "c"))
    for text in ("domain", "natural"):
        split = splits.build(text)
        assert split.fixed_clients(dataset) == 3
        assert [p.tolist() for p in split.cut(dataset, 3, 0)] == [[1, 4, 7, 10], [2, 5, 8, 11], [0, 3, 6, 9]]
    shared = splits.build("domain").cut(dataset, 6, 0)
    assert sorted([*shared[0], *shared[1]]) == [1, 4, 7, 10]
    assert set(shared.sizes) == {2}


@pytest.mark.parametrize("text", ["iid", "dirichlet:0.5", "dirichlet_uncapped:0.5", "shards:2"])
def test_seeds_decide(text):
    dataset, split = uniform(1000), splits.build(text)
    assert split.cut(dataset, 10, 1).hash == split.cut(dataset, 10, 1).hash
    assert split.cut(dataset, 10, 1).hash != split.cut(dataset, 10, 2).hash
    assert splits.build(str(split)) == split


@pytest.mark.parametrize(
    ("text", "clients", "message"),
    [
        ("iid", 0, r"must be in 1\.\.100"),
        ("iid", 101, r"must be in 1\.\.100, the number of samples; got 101"),
        ("dirichlet:0.1", 11, "need 110, the data have 100; take fewer clients or a smaller min_size"),
        (
            "dirichlet(0.001, tries=20)",
            10,
            r"after [0-9,]+ draws the smallest of 10 .* at most \d samples, expected 10",
        ),
        ("dirichlet(0.001, min_size=1)", 90, "after [0-9,]+ draws the smallest of 90"),
        ("shards:1", 5, "5 clients x 1 shards cannot hold 10 classes; take per_client of at least 2"),
        ("shards:20", 100, "take a smaller per_client"),
        ("domain", 6, "have no groups"),
        ("natural", 6, "have no groups"),
        ("file:none.json", 6, "cannot read partition 'none.json'"),
    ],
)
def test_impossible_cuts(text, clients, message, monkeypatch):
    monkeypatch.setattr("unskew.data.partition.splits.MOST", 20_000)  # two million take half a minute
    with pytest.raises(InputError, match=message) as caught:
        splits.build(text).cut(uniform(100), clients, 0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "groups", "message"),
    [
        ("domain", [0, 1, 2, 0], "have 3 domains, got 4 clients"),
        ("natural", [0, 1, 2, 0], "have 3 clients, got 4"),
        ("natural", [0, 1, 3, 0], "group 2 of data 'toy' has no training samples"),
        ("domain", [0, 0, 0, 1], "fewer samples than its 2 clients"),
    ],
)
def test_groups_that_do_not_fit(text, groups, message):
    with pytest.raises(InputError, match=message):
        splits.build(text).cut(label_data([0, 1, 0, 1], groups=groups), 4, 0)


@pytest.mark.parametrize("alpha", ["0", "-1", "nan", "inf", "x"])
def test_alpha_must_be_positive_and_finite(alpha):
    with pytest.raises(InputError, match=r"dirichlet\.alpha"):
        splits.build(f"dirichlet:{alpha}")


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_seed_must_fit(seed):
    with pytest.raises(InputError, match="the seed of a split"):
        splits.build("iid").cut(uniform(10), 2, seed)


@pytest.mark.parametrize(
    ("text", "clients", "samples"),
    [("dirichlet:0.1", 100, 60_000), ("dirichlet(0.1, min_size=0)", 100_000, 300_000), ("shards:2", 20_000, 60_000)],
)
def test_large_cuts(text, clients, samples):
    partition = splits.build(text).cut(uniform(samples), clients, 0)
    assert len(partition) == clients
    assert len(partition.indices) == samples


# --------------------------------------------------------------------------------------------------------- a user's own

SPLITS = {
    "floats": (np.arange(99) + 0.7, [33] * 3, "must return indices as a list of whole numbers, got float64 of shape"),
    "sizes": (np.arange(99), [33.5, 33.0, 32.5], "must return sizes as a list of whole numbers, got float64"),
    "truth": (np.ones(1438, bool), [1438, 0, 0], "must return indices as a list of whole numbers, got bool"),
    "nested": ([[0, 1], [2]], [2, 1, 0], "must return indices as a list of whole numbers"),
    "too few": (np.arange(99), [33] * 2, "a size for each of 3 clients, .* the 99 indices; got 2 that add up to 66"),
    "too many": (np.arange(99), [50] * 3, "got 3 that add up to 150"),
    "negative": (np.arange(99), [100, -1, 0], "got 3 that add up to 99, the smallest -1"),
    "out of range": (np.arange(99) + 10**6, [33] * 3, ": sample indices must be in"),
    "twice": (np.zeros(99, int), [33] * 3, ": sample 0 is held 99 times"),
}


@pytest.mark.parametrize("fault", SPLITS)
def test_a_split_that_does_not_fit_is_named(fault, own_names):
    indices, sizes, said = SPLITS[fault]

    class Odd(Split):
        """Odd."""

        def assign(self, dataset, clients, rng):
            return indices, sizes

    splits.register("odd")(Odd)
    with pytest.raises(InputError, match=rf"split odd.assign.*{said}"):
        play_one_step("fedavg", split="odd")
