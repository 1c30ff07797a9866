"""FedAS, eq. 5-6: alpha_i, the trace of a client's Fisher information."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from unskew.base import tree
from unskew.base.batch import Batch, cross_entropy
from unskew.base.tree import Tree
from unskew.core.context import ClientContext

Fisher = Literal["batch", "full", "per_sample"]
UNKNOWN = -1.0
"""Sent for a trace that is not finite; every true one is at least 0."""
_AT_ONCE = 16
"""Samples whose own gradients are held at once."""


def fisher_trace(c: ClientContext, params: Tree, kind: Fisher) -> Tensor:
    """alpha_i (eq. 5-6): the squared norm of the gradient of -log p at `params`, in evaluation mode.

    `batch`: of the mean gradients of mini-batches, summed, as in the official code; `full`: of the mean gradient of all
    samples, as printed; `per_sample`: the mean over samples of each one's.
    """
    with torch.no_grad():
        found = {"batch": _of_batches, "full": _of_all, "per_sample": _of_samples}[kind](c, params)
    return torch.where(torch.isfinite(found), found, UNKNOWN)


def _of_batches(c: ClientContext, params: Tree) -> Tensor:
    parts = [tree.sqnorm(_gradient(c, params, batch)) for batch in c.passes(c.settings.batch)]
    return torch.stack(parts).sum()


def _of_all(c: ClientContext, params: Tree) -> Tensor:
    whole: Tree | None = None
    for batch in c.passes():
        share = batch.one_hot(c.num_classes).sum() / c.num_samples  # the batch's real samples
        own = tree.scale(_gradient(c, params, batch), share.to(next(iter(params.values())).dtype))
        whole = own if whole is None else tree.add(whole, own)
    return tree.sqnorm(whole or {})


def _gradient(c: ClientContext, params: Tree, batch: Batch) -> Tree:
    return c.grad(lambda p: batch.cross_entropy(c.forward(p, batch.x, "eval").logits), params)


def _of_samples(c: ClientContext, params: Tree) -> Tensor:
    fixed = tree.without(params, c.trainable)

    def squared(x: Tensor, y: Tensor) -> Tensor:
        def loss(p: Tree) -> Tensor:
            return cross_entropy(c.forward({**fixed, **p}, x.unsqueeze(0), "eval").logits, y.unsqueeze(0)).sum()

        return tree.sqnorm(torch.func.grad(loss)(tree.select(params, c.trainable)))

    total: Tensor | float = 0.0
    for batch in c.passes():
        each = torch.func.vmap(squared, chunk_size=_AT_ONCE)(batch.x, batch.y)
        total = total + (batch.one_hot(c.num_classes).to(each.dtype).T @ each).sum()
    return torch.as_tensor(total) / c.num_samples.clamp(min=1)
