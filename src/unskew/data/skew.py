"""How skewed a partition is: sizes, labels per client, and distances to the labels of all clients together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unskew.data.partition import Ints, Partition
from unskew.errors import InputError

Floats = NDArray[np.float64]
MATRIX_CLIENTS = 10_000
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


def label_counts(partition: Partition, labels: ArrayLike, classes: int) -> Ints:
    """The matrix [clients, classes] of sample counts; for very many clients use `describe`."""
    if len(partition) > MATRIX_CLIENTS:
        raise InputError(f"counts are kept for up to {MATRIX_CLIENTS} clients, got {len(partition)}; use describe")
    return _block(partition, np.asarray(labels), classes, 0, len(partition))


def describe(partition: Partition, labels: ArrayLike, classes: int) -> SkewSummary:
    """Summary of sizes and label skew, in little memory however many clients there are."""
    labels, sizes = np.asarray(labels), partition.sizes
    if not len(partition.indices):
        raise InputError("cannot describe a partition whose clients hold no samples; cut the data first")
    overall = np.bincount(labels[partition.indices], minlength=classes) / len(partition.indices)
    blocks = [_distances(counts, overall) for counts in _blocks(partition, labels, classes)]
    held, effective, variation, kl, js = (Spread.of(row) for row in np.concatenate(blocks, axis=1))
    return SkewSummary(
        clients=len(partition),
        samples=len(partition.indices),
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


def _blocks(partition: Partition, labels: Ints, classes: int) -> Iterator[Ints]:
    step = max(1, BLOCK_CELLS // classes)
    for start in range(0, len(partition), step):
        yield _block(partition, labels, classes, start, min(start + step, len(partition)))


def _block(partition: Partition, labels: Ints, classes: int, start: int, stop: int) -> Ints:
    """Counts of the clients start..stop-1."""
    held = labels[partition.indices[partition.offsets[start] : partition.offsets[stop]]]
    rows = np.repeat(np.arange(stop - start), partition.sizes[start:stop])
    return np.bincount(rows * classes + held, minlength=(stop - start) * classes).reshape(-1, classes)


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
