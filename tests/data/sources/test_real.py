"""Counts of the real files, complete or the usual subsets; needs the folder that holds them in UNSKEW_DATA."""

import os

import pytest

from unskew.base.errors import InputError
from unskew.data.sources import load

pytestmark = pytest.mark.skipif(not os.environ.get("UNSKEW_DATA"), reason="UNSKEW_DATA names no folder of real data")

COUNTS = {
    "mnist": ([(60000, 10000)], (1, 28, 28), 10),
    "fashion_mnist": ([(60000, 10000)], (1, 28, 28), 10),
    "cifar10": ([(50000, 10000)], (3, 32, 32), 10),
    "bloodmnist": ([(11959, 3421)], (3, 28, 28), 8),
    "bloodmnist(use_validation_for_training=true)": ([(13671, 3421)], (3, 28, 28), 8),
    "cifar100": ([(8000, 2000), (50000, 10000)], (3, 32, 32), 100),
    "cifar100(coarse=true)": ([(8000, 2000), (50000, 10000)], (3, 32, 32), 20),
    "svhn": ([(6000, 2000), (73257, 26032)], (3, 32, 32), 10),
    "mnist_m": ([(4000, 1000), (59001, 9001)], (3, 32, 32), 10),
    "usps": ([(7291, 2007)], (1, 16, 16), 10),
    "office_caltech10": ([(2027, 506)], (3, 64, 64), 10),
    "tiny_imagenet": ([(2500, 500), (100000, 10000)], (3, 64, 64), None),
}


def real(spec):
    """The data set, or a skip that says which file is missing."""
    try:
        return load(spec, offline=True)
    except InputError as error:
        if "not found" in str(error):
            pytest.skip(str(error))
        raise


@pytest.mark.parametrize("spec", COUNTS)
def test_counts(spec):
    data = real(spec)
    counts, shape, classes = COUNTS[spec]
    assert (len(data.train), len(data.test)) in counts
    assert data.shape == shape and data.num_classes == (classes or data.num_classes)
    assert data.train.y.unique().tolist() == list(range(data.num_classes))


def test_office_domains():
    data = real("office_caltech10")
    assert data.group_names == ("amazon", "caltech10", "dslr", "webcam")
    assert data.groups.bincount().tolist() == [766, 898, 126, 237]
    assert data.test_groups.bincount().tolist() == [192, 225, 31, 58]


def test_cached_decoding_gives_the_same():
    assert real("tiny_imagenet").fingerprint() == real("tiny_imagenet").fingerprint()
