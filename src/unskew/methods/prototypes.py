"""Class prototypes, the mean features of each class: what clients send of theirs, and how the server merges it.

FedBlade, FedProto, FedFM and FedPAC exchange them as `means` [C, d] and which of them are `available` [C].
"""

from __future__ import annotations

import torch

from unskew.base.tree import Tree
from unskew.core.context import ClientContext, Context, ServerContext
from unskew.methods.class_sums import sum_by_class
from unskew.methods.feature_size import count_features


def no_prototypes(s: ServerContext) -> Tree:
    """Prototypes of which none is available yet."""
    return {"means": _no_sums(s), "available": torch.zeros(s.num_classes, dtype=torch.bool)}


def prototype_sums(c: ClientContext, params: Tree) -> Tree:
    """`sums` [C, d] of the features of the client's samples by class, and `counts` [C].

    As sums, so that the server's means need nothing but the reducer `total`: in evaluation mode, without gradient, of
    samples that are not augmented.
    """
    sums = sum_by_class(c, lambda x: c.features(params, x, "eval"), _no_sums(c))
    return {"sums": sums, "counts": c.counts.to(sums.dtype)}


def global_prototypes(previous: Tree, summed: Tree) -> Tree:
    """The sums divided by their counts; a class that nobody held in the round keeps its previous prototype."""
    seen = summed["counts"] > 0
    means = summed["sums"] / summed["counts"].clamp(min=1).unsqueeze(1)
    return {
        "means": torch.where(seen.unsqueeze(1), means, previous["means"]),
        "available": previous["available"] | seen,
    }


def _no_sums(context: Context) -> torch.Tensor:
    """Zeros [C, d]."""
    model = context.initial["model"]
    return next(iter(model.values())).new_zeros(context.num_classes, count_features(model))
