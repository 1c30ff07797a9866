"""Accuracy of one model and over clients, from the scores of single samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unskew.measures.figures import worst_share_mean


def accuracy_and_loss(right: Tensor, loss: Tensor) -> dict[str, float]:
    """The means over samples; `right`: [N] bool, `loss`: [N]."""
    return {"accuracy": float(right.double().mean()), "loss": float(loss.double().mean())}


def class_accuracy(labels: Tensor, right: Tensor, num_classes: int) -> list[float | None]:
    """The accuracy on each class; None for a class without samples. `labels`: [N], `right`: [N] bool."""
    count = torch.bincount(labels, minlength=num_classes)
    hits = torch.bincount(labels, weights=right.double(), minlength=num_classes)
    return [None if n == 0 else hit / n for hit, n in zip(hits.tolist(), count.tolist(), strict=True)]


def over_clients(accuracies: Sequence[float], samples: Sequence[int]) -> dict[str, Any]:
    """Pooled over all test samples, and mean, spread and worst over clients; `samples`: how many each tested."""
    if not accuracies:
        return {"clients_tested": 0}
    return {
        "clients_tested": len(accuracies),
        "pooled": float(np.average(accuracies, weights=samples)),
        "mean": float(np.mean(accuracies)),
        "std": float(np.std(accuracies, ddof=1)) if len(accuracies) > 1 else None,
        "worst_decile": worst_share_mean(accuracies),
        "worst": min(accuracies),
    }
