"""Class prototypes: mean features of each class, over a client's samples and over clients."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from unskew.base.tree import Tree
from unskew.core.context import ClientContext


def none_yet(num_classes: int, like: Tensor) -> Tree:
    """Prototypes `means` [C, d] of which none is `available` yet; `like`: a tensor whose last dimension is d."""
    means = torch.zeros(num_classes, like.shape[-1], dtype=like.dtype)
    return {"means": means, "available": torch.zeros(num_classes, dtype=torch.bool)}


def sums_by_class(c: ClientContext, see: Callable[[Tensor], Tensor], start: Tensor | float = 0.0) -> Tensor:
    """[C, d]: `see(x)` added up by class over all samples of the client, without gradient; `start` if it has none."""
    sums: Tensor | float = start
    with torch.no_grad():
        for batch in c.passes():
            values = see(batch.x)
            sums = sums + batch.one_hot(c.num_classes).to(values.dtype).T @ values
    return torch.as_tensor(sums)


def class_sums(c: ClientContext, params: Tree, like: Tensor) -> Tree:
    """`sums` [C, d] of the features of the client's samples by class, and `counts` [C]; `like`: a tensor [C, d].

    In evaluation mode, without gradient, of samples that are not augmented (sheet B9). As sums, the servers' means
    need nothing but the reducer `total`.
    """
    sums = sums_by_class(c, lambda x: c.features(params, x, "eval"), torch.zeros_like(like))
    return {"sums": sums, "counts": c.counts.to(sums.dtype)}


def merged_means(previous: Tree, total: Tree) -> Tree:
    """The means over all clients' samples; a class that nobody held in the round keeps its previous mean."""
    seen = total["counts"] > 0
    means = total["sums"] / total["counts"].clamp(min=1).unsqueeze(1)
    return {
        "means": torch.where(seen.unsqueeze(1), means, previous["means"]),
        "available": previous["available"] | seen,
    }


def normalise(vectors: Tensor) -> Tensor:
    """Vectors of norm 1 along the last dimension; a zero vector stays 0."""
    return F.normalize(vectors, dim=-1, eps=1e-12)
