"""How skewed a partition is: sizes, labels per client, and distances to the labels of all clients together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unskew.base import seeds
from unskew.base.errors import InputError
from unskew.data.partition.base import Ints, Partition
from unskew.data.partition.listed import ListedPartition, offsets_of

Floats = NDArray[np.float64]
MATRIX_CLIENTS = 10_000
CHOSEN_CLIENTS = 1000
BLOCK_CELLS = 2_000_000


@dataclass(frozen=True)
class Spread:
    """A quantity over clients: its mean, extremes and percentiles."""

    mean: float
    min: float
    p10: float
    median: float
    p90: float
    max: float

    @classmethod
    def of(cls, values: ArrayLike) -> Spread:
        """The spread of some values."""
        values = np.asarray(values, dtype=np.float64)
        return cls(float(values.mean()), *(float(v) for v in np.percentile(values, [0, 10, 50, 90, 100])))


@dataclass(frozen=True)
class SkewSummary:
    """The skew of a partition; label statistics are over the clients that hold samples, entropies in bits."""

    clients: int
    samples: int
    described: int
    """How many clients the figures below are over: all, or a fixed random choice of very many computed ones."""
    empty_clients: int
    sizes: Spread
    size_gini: float
    """0: all clients equally large; towards 1: one client holds everything."""
    classes: Spread
    """How many classes a client holds."""
    effective_classes: Spread
    """2 to the entropy of a client's labels: how many equally frequent classes would be as varied."""
    total_variation: Spread
    """Share of a client's samples that would have to change label to match all clients together."""
    kl: Spread
    """Kullback-Leibler divergence of a client's labels from those of all clients together."""
    jensen_shannon: Spread
    """Jensen-Shannon divergence between the client and all clients together, 0 to 1."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def choose_clients(partition: Partition) -> Ints:
    """All clients or, of more than a table can hold, a fixed random choice in rising order."""
    if len(partition) <= MATRIX_CLIENTS:
        return np.arange(len(partition))
    return np.array(sorted(seeds.sample_cohort(0, 0, len(partition), CHOSEN_CLIENTS)))


def label_counts(partition: Partition, labels: ArrayLike, classes: int, clients: Ints | None = None) -> Ints:
    """The matrix [clients, classes] of sample counts, of all clients or these; for very many use `describe`."""
    if clients is None and len(partition) > MATRIX_CLIENTS:
        raise InputError(f"counts are kept for up to {MATRIX_CLIENTS} clients, got {len(partition)}; use describe")
    held = partition.concatenate(np.arange(len(partition)) if clients is None else clients)
    return next(_blocks(*held, np.asarray(labels), classes, len(held[1])))


def describe(partition: Partition, labels: ArrayLike, classes: int) -> SkewSummary:
    """Summary of sizes and label skew, in little memory however many clients there are."""
    if isinstance(partition, ListedPartition):
        indices, sizes = partition.indices, partition.sizes
    else:  # computing a million clients would take a minute
        indices, sizes = partition.concatenate(choose_clients(partition))
    labels = np.asarray(labels)
    if not len(indices):
        raise InputError("cannot describe a partition whose clients hold no samples; cut the data first")
    overall = np.bincount(labels[indices], minlength=classes) / len(indices)
    step = max(1, BLOCK_CELLS // classes)
    blocks = [_distances(counts, overall) for counts in _blocks(indices, sizes, labels, classes, step)]
    held, effective, variation, kl, js = (Spread.of(row) for row in np.concatenate(blocks, axis=1))
    return SkewSummary(
        clients=len(partition),
        samples=partition.total,
        described=len(sizes),
        empty_clients=int((sizes == 0).sum()),
        sizes=Spread.of(sizes),
        size_gini=gini(sizes),
        classes=held,
        effective_classes=effective,
        total_variation=variation,
        kl=kl,
        jensen_shannon=js,
    )


def gini(sizes: ArrayLike) -> float:
    """The Gini coefficient of the sizes: 0 for equal ones."""
    ordered = np.sort(np.asarray(sizes, dtype=np.float64))
    ranks = np.arange(1, len(ordered) + 1)
    total = ordered.sum()
    return float((2 * ranks - len(ordered) - 1) @ ordered / (len(ordered) * total)) if total else 0.0


def _blocks(indices: Ints, sizes: Ints, labels: Ints, classes: int, step: int) -> Iterator[Ints]:
    """Sample counts [clients, classes], so many clients at a time."""
    offsets = offsets_of(sizes)
    for start in range(0, len(sizes), step):
        some = sizes[start : start + step]
        held = labels[indices[offsets[start] : offsets[start + len(some)]]]
        cells = np.repeat(np.arange(len(some)), some) * classes + held
        yield np.bincount(cells, minlength=len(some) * classes).reshape(-1, classes)


def _distances(counts: Ints, overall: Floats) -> Floats:
    """Rows: classes held, effective classes, total variation, KL, Jensen-Shannon; columns: non-empty clients."""
    counts = counts[counts.sum(axis=1) > 0]
    shares = counts / counts.sum(axis=1, keepdims=True)
    middle = (shares + overall) / 2
    return np.stack(
        [
            (counts > 0).sum(axis=1),
            2.0 ** _entropy(shares),
            np.abs(shares - overall).sum(axis=1) / 2,
            _kl(shares, overall),
            (_kl(shares, middle) + _kl(overall, middle)) / 2,
        ]
    )


def _entropy(shares: Floats) -> Floats:
    return -_kl(shares, np.ones(1))


def _kl(shares: Floats, other: Floats) -> Floats:
    """Sum of p log2(p / q) over the classes, where p = 0 adds nothing."""
    shares, other = np.broadcast_arrays(shares, other)
    ratio = np.divide(shares, other, out=np.ones(shares.shape), where=shares > 0)
    return np.asarray((shares * np.log2(ratio)).sum(axis=-1))
