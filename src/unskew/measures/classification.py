"""Figures beyond accuracy, from the scores of one test: confusion matrix, F1, balanced accuracy, AUC, calibration.

Classes without a test sample are left out of every mean over classes. What is 0/0 is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Figures = dict[str, float | None]
Counts = NDArray[np.int64]
NAMES = {
    "macro_f1": "macro F1", "balanced_accuracy": "balanced accuracy", "auc": "AUC",
    "calibration_error": "calibration error",
}  # fmt: skip
"""The figures, and what they are called in tables."""
LOWER_IS_BETTER = ("calibration_error",)
BINS = 15
"""Of the calibration error: equally wide, over the probability of the predicted class."""
MOST_SCORES = 1 << 26
"""More scores than this, half a gigabyte, are not kept to be ranked: there is no AUC then."""


class ClassRow(NamedTuple):
    """What a test says of one class."""

    name: str
    precision: float | None
    """None for a class that was never predicted."""
    recall: float | None
    """None for a class without samples."""
    f1: float | None
    support: int
    """Its samples."""


@dataclass(frozen=True)
class Confusion:
    """How many samples of each class were taken for each class."""

    counts: Counts
    """[true, predicted]"""
    classes: tuple[str, ...]

    @property
    def accuracy(self) -> float | None:
        """The share of samples on the diagonal."""
        return _divide(np.trace(self.counts), self.counts.sum())

    @property
    def per_class(self) -> list[ClassRow]:
        """Precision, recall, F1 and support of each class."""
        hits, support, predicted = np.diag(self.counts), self.counts.sum(1), self.counts.sum(0)
        return [
            ClassRow(name, _divide(hit, p), _divide(hit, n), _divide(2 * hit, n + p), int(n))
            for name, hit, n, p in zip(self.classes, hits, support, predicted, strict=True)
        ]

    @property
    def macro_f1(self) -> float | None:
        """The mean F1 of the classes that have samples; 0 for one that was never predicted."""
        return _mean([row.f1 for row in self.per_class if row.support])

    @property
    def balanced_accuracy(self) -> float | None:
        """The mean recall of the classes that have samples."""
        return _mean([row.recall for row in self.per_class if row.support])


@dataclass(frozen=True)
class Tested:
    """What a test came to, beyond accuracy and loss."""

    confusion: Confusion
    figures: Figures


class Tally:
    """Gathers the scores of a test, or of all clients' tests together; `probabilities`: their softmax gives some."""

    def __init__(self, classes: tuple[str, ...], probabilities: bool = True) -> None:
        self._classes, self._probabilities = classes, probabilities
        self._counts = np.zeros((len(classes), len(classes)), np.int64)
        self._bins = _Bins()
        self._ranked: list[Tensor] | None = [] if probabilities else None
        self._labels: list[Tensor] = []

    def add(self, labels: Tensor, predicted: Tensor, scores: Tensor) -> None:
        """Takes in samples; `labels`, `predicted`: [N] classes, `scores`: [N, C]."""
        np.add.at(self._counts, (labels.numpy(), predicted.numpy()), 1)
        if not self._probabilities:
            return
        shares = scores.double().softmax(1)
        self._bins.add(shares.gather(1, predicted.unsqueeze(1)).squeeze(1), predicted == labels)
        if self._ranked is not None:
            self._ranked.append(shares)
            self._labels.append(labels)
            if sum(part.numel() for part in self._ranked) > MOST_SCORES:
                self._ranked, self._labels = None, []

    @property
    def is_empty(self) -> bool:
        """Whether there was no sample."""
        return not self._counts.any()

    def close(self) -> Tested:
        """The figures of all that was taken in."""
        confusion = Confusion(self._counts, self._classes)
        return Tested(confusion, {
            "macro_f1": confusion.macro_f1,
            "balanced_accuracy": confusion.balanced_accuracy,
            "auc": mean_auc(torch.cat(self._labels), torch.cat(self._ranked)) if self._ranked else None,
            "calibration_error": self._bins.error,
        })  # fmt: skip


def mean_auc(labels: Tensor, shares: Tensor) -> float | None:
    """The area under the ROC curve of each class against the others, averaged over the classes that have samples.

    It is the share of pairs, one sample of the class and one of another, whose order is right; equal ones count half.
    `shares`: [N, C].
    """
    if not torch.isfinite(shares).all():
        return None
    y, columns = labels.numpy(), np.ascontiguousarray(shares.numpy().T)
    ordered, areas = np.sort(columns, axis=1), []
    for number in np.unique(y):
        own = columns[number][y == number]
        others = len(y) - len(own)
        if not others:
            continue
        # of all samples, those below one of the class, and half of its equals, without those of the class itself
        below, upto = (np.searchsorted(ordered[number], own, side) for side in ("left", "right"))
        pairs = float((below + upto).sum() - len(own) ** 2) / 2
        areas.append(pairs / (len(own) * others))
    return _mean(areas)


class _Bins:
    """Samples by how sure the prediction was: bin b holds those with (b - 1) / 15 < probability <= b / 15."""

    def __init__(self) -> None:
        self._sums = np.zeros((3, BINS))
        """For each bin: samples, how many of them are right, their probabilities added up."""

    def add(self, sure: Tensor, right: Tensor) -> None:
        """Takes in samples, [N] each."""
        place = np.clip(np.ceil(sure.nan_to_num(0.0).numpy() * BINS).astype(np.int64) - 1, 0, BINS - 1)
        parts: tuple[Any, ...] = (None, right.double().numpy(), sure.numpy())
        self._sums += np.stack([np.bincount(place, weights, BINS) for weights in parts])

    @property
    def error(self) -> float | None:
        """Guo et al. 2017, eq. 5: the distance of accuracy and mean probability, weighted by the bins' samples."""
        count, right, sure = self._sums
        error = _divide(np.abs(right - sure).sum(), count.sum())
        return error if error is not None and np.isfinite(error) else None


def _divide(part: Any, whole: Any) -> float | None:
    return float(part / whole) if whole else None


def _mean(values: list[Any]) -> float | None:
    return float(np.mean(values)) if values else None
