"""Parts of data sets, and generated images in the place of one that is missing."""

import pytest
import torch

from unskew.base.errors import InputError
from unskew.data.sources import load


def test_a_part_has_the_same_share_of_every_class():
    part, whole = load("part(of=digits, train=200, test=50)"), load("digits")
    assert part.train.y.bincount().tolist() == [20] * 10 and part.test.y.bincount().tolist() == [5] * 10
    rows = {tuple(image.flatten().tolist()) for image in whole.train.x}
    assert all(tuple(image.flatten().tolist()) in rows for image in part.train.x)
    again, other = load("part(of=digits, train=200, test=50)"), load("part(of=digits, train=200, test=50, seed=1)")
    assert torch.equal(part.train.x, again.train.x) and not torch.equal(part.train.x, other.train.x)


def test_a_part_larger_than_the_whole_is_the_whole():
    part, whole = load("part(of=digits, train=100000, test=100000)"), load("digits")
    assert torch.equal(part.train.x, whole.train.x) and torch.equal(part.test.y, whole.test.y)


def test_a_part_keeps_the_normalisation():
    assert load("part(of=digits(normalisation='0.1; 0.2'), train=20, test=10)").mean == (0.1,)


@pytest.mark.parametrize(
    ("name", "classes", "shape"),
    [("cifar100", 100, (3, 32, 32)), ("mnist", 10, (1, 28, 28)), ("domainnet10", 10, (3, 64, 64))],
)
def test_a_stand_in_has_the_shape_of_what_it_stands_for(name, classes, shape):
    made = load(f"stand_in(like={name}, train=240, test=120)")
    assert (made.num_classes, made.shape, len(made.train), len(made.test)) == (classes, shape, 240, 120)
    assert "generated" in made.name and len(made.train.y.unique()) == classes
    assert len(made.group_names) == (6 if name == "domainnet10" else 0)


def test_a_whole_stand_in_has_the_published_counts():
    made = load("stand_in(like=bloodmnist)")
    assert (len(made.train), len(made.test)) == (11_959, 3_421)


def test_there_is_no_stand_in_for_data_without_a_shape():
    with pytest.raises(InputError, match="have no shape of their own"):
        load("stand_in(like=npz:mine.npz)")
