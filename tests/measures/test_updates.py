"""Drift, divergence and layer similarity: golden numbers and by hand."""

import pytest
import torch

from support import golden, golden_names
from unskew.core.jobs import Reply
from unskew.core.net import Names
from unskew.measures import updates
from unskew.measures.divergence import weight_divergence
from unskew.measures.drift import local_drift
from unskew.methods.flfa.selection import similarity, skewness


def double(values):
    return torch.tensor(values, dtype=torch.float64)


def feed(reducer, trees, stacked=False):
    """A reducer that has seen these clients, one by one or as a stack."""
    if stacked:
        reducer.add_stack(
            {name: torch.stack([tree[name] for tree in trees]) for name in trees[0]}, [Reply(0)] * len(trees)
        )
    else:
        for client, tree in enumerate(trees):
            reducer.add(tree, Reply(client, weight=float(client + 1)))
    return reducer


class S:
    """What a reducer needs of the server."""

    def __init__(self, *layers):
        self.names = Names((), frozenset(), frozenset(), (), layers)
        self.trainable = tuple(f"{layer}.weight" for layer in layers)


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("name", golden_names("metrics*"))
def test_drift_of_the_golden_file(name, stacked):
    file = golden(name)
    trees = [{"a": double(own[:2]), "b": double(own[2:])} for own in file.inputs["updates"]]
    seen = feed(updates.Updates(None), trees, stacked)
    assert local_drift(seen) == pytest.approx(file.expected["local_drift"], rel=file.rtol, abs=file.atol)


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("name", golden_names("flfa_layer_selection*"))
def test_layer_similarity_of_the_golden_file(name, stacked):
    file = golden(name)
    for case, given in file.inputs["cases"].items():
        order, own = given["order"], given["updates"]
        clients = range(len(own[0]))
        trees = [{f"{layer}.weight": double(own[at][k]) for at, layer in enumerate(order)} for k in clients]
        z = feed(similarity(S(*order)), trees, stacked).result()
        z = {layer: float(value) for layer, value in z.items()}
        expected = file.expected[case]
        assert list(z) == order
        assert list(z.values()) == pytest.approx(expected["z"], rel=file.rtol, abs=file.atol), case
        assert skewness(list(z.values())) == pytest.approx(expected["skewness"], rel=file.rtol, abs=file.atol), case


def test_divergence_by_hand():
    # updates (3, 4), (0, 0), (3, 0): norms 5, 0, 3; distances 5, 4, 3
    trees = [{"w": double(values)} for values in ([3, 4], [0, 0], [3, 0])]
    to_global, mutual = weight_divergence(feed(updates.Updates(None), trees))
    assert to_global == pytest.approx(8 / 3) and mutual == pytest.approx(4)
    assert weight_divergence(feed(updates.Updates(None), trees[:1])) == (5.0, None)


def test_a_name_that_was_not_sent_did_not_move():
    sparse = [{"a": double([1.0]), "b": double([2.0])}, {"a": double([3.0])}]
    dense = [sparse[0], {**sparse[1], "b": double([0.0])}]
    found = [local_drift(feed(updates.Updates(None), trees)) for trees in (sparse, dense)]
    assert found[0] == found[1] == pytest.approx(2**0.5)


def test_updates_look_the_same_in_blocks(monkeypatch):
    trees = [
        {"w": torch.randn(7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(k))} for k in range(3)
    ]
    whole = feed(updates.Updates(None), trees)
    expected = [local_drift(whole), *weight_divergence(whole)]
    monkeypatch.setattr(updates, "_BLOCK", 12)
    assert [local_drift(whole), *weight_divergence(whole)] == pytest.approx(expected)


def test_equal_updates_agree_and_opposite_ones_count_zero():
    assert feed(similarity(S("l")), [{"l.weight": double([[1, 2]])}] * 3).result() == {"l": pytest.approx(1)}
    opposite = [{"l.weight": double([[1, 2]])}, {"l.weight": double([[-1, -2]])}]
    assert feed(similarity(S("l")), opposite).result() == {"l": 0.0}
    assert feed(similarity(S("l", "own")), opposite).result().keys() == {"l"}  # `own` does not travel
