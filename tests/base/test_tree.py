"""Trees."""

import logging

import pytest
import torch

from unskew.base import tree


def make(a, b):
    return {"a": torch.tensor(a), "b": torch.tensor(b)}


def test_arithmetic():
    x, y = make([1.0, 2.0], 3.0), make([4.0, 0.0], -1.0)
    assert tree.add(x, y)["a"].tolist() == [5.0, 2.0]
    assert tree.sub(x, y)["b"] == 4.0
    assert tree.scale(x, 2.0)["a"].tolist() == [2.0, 4.0]
    assert tree.add_scaled(x, y, 0.5)["a"].tolist() == [3.0, 2.0]
    assert tree.lerp(x, y, 0.25)["b"] == 2.0
    assert tree.dot(x, y) == 4.0 - 3.0
    assert tree.sqnorm(x) == 14.0 and tree.norm(y) == pytest.approx(17**0.5)
    assert tree.norm({}) == 0


def test_unshared_names_are_said_once(caplog):
    x, y = make(1.0, 2.0), {"b": torch.tensor(1.0), "zz": torch.tensor(5.0)}
    with caplog.at_level(logging.WARNING):
        assert list(tree.add(x, y)) == ["b"]
        tree.add(x, y)
    assert caplog.text.count("'zz'") == 1


def test_copies_are_free_and_selections_keep_the_order():
    x = make(1.0, 2.0)
    copied = tree.copy(x)
    copied["a"] += 1
    assert x["a"] == 1.0
    assert list(tree.select(x, ["b", "a"])) == ["a", "b"] and list(tree.without(x, ["a"])) == ["b"]


def test_finite():
    assert tree.all_finite({"g": make([1e38] * 10, 1.0), "n": {"c": torch.tensor(3)}})  # the sum overflows
    for bad in (float("nan"), float("inf"), -float("inf")):
        assert not tree.all_finite({"g": make([1.0, bad], 1.0)})
    assert tree.nbytes({"g": make([1.0, 2.0], 1.0), "n": {"c": torch.tensor(3)}}) == 12 + 8
