"""Small data sets to cut, and what tests of partitions share."""

import json
import tracemalloc

import numpy as np
import torch

from unskew.data.dataset import Dataset, Samples

MILLION = 1_000_000


def label_data(labels, classes=None, groups=None, names=()):
    y = torch.as_tensor(labels, dtype=torch.int64)
    x = torch.zeros(len(y), 1)
    classes = tuple(str(c) for c in range(classes or int(y.max()) + 1))
    groups = None if groups is None else torch.as_tensor(groups)
    train, test = Samples(x, y), Samples(x[:1], y[:1])
    return Dataset("toy", train, test, classes, (0.0,), (1.0,), groups=groups, group_names=names)


def uniform(samples, classes=10):
    return label_data(np.random.default_rng(0).integers(0, classes, samples), classes)


def peak(work):
    """Bytes that were allocated at the same time, at most."""
    work()  # what is imported or kept once does not count
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def edit(path, partition, **changes):
    """The partition's file with some of its fields changed, or dropped (`...`)."""
    partition.save(path)
    document = json.loads(path.read_text())
    for key, value in changes.items():
        document.pop(key) if value is ... else document.update({key: value})
    path.write_text(json.dumps(document))
    return path
