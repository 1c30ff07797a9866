"""FedAS, eq. 2-4: the received body is aligned with features that the client knows.

Targets are features of a reference body: the mean of each class over all samples of the client, or each sample's own.
The reference looks in mode `eval`, with the statistics that belong to it. The body that is aligned uses those of the
batch (mode `batch`) and leaves the running ones alone: they are the training's to update.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from unskew.base.batch import Batch, Output
from unskew.base.registry import param, validated
from unskew.base.tree import Groups, Tree
from unskew.core import local_loop
from unskew.core.context import ClientContext
from unskew.core.term import Term
from unskew.methods.class_sums import sum_by_class

AlignLoss = Literal["code", "paper", "paper_sum"]
"""`code`: class means as targets, classes count alike; `paper`: each sample's own target, mean over dimensions;
`paper_sum`: the same, sum over dimensions."""


def reference_features(c: ClientContext, x: Tensor) -> Tensor:
    """H_i (eq. 2): features by the reference body."""
    return c.forward(c.made["reference"], x, "eval", buffers=c.made["reference_buffers"], part="body").features


def class_means(c: ClientContext) -> Tensor:
    """The official code's targets: the mean of H_i over each class's samples, [C, D]; zeros for missing classes."""
    return sum_by_class(c, lambda x: reference_features(c, x)) / c.counts.clamp(min=1).unsqueeze(1)


def with_targets(c: ClientContext, reference: Groups, loss: AlignLoss) -> ClientContext:
    """The visit with what its alignment needs: a reference model with its buffers, or the class means it gives."""
    known = c.with_made(reference=reference["model"], reference_buffers=reference["buffers"])
    return c.with_made(targets={"means": class_means(known)}) if loss == "code" else known


@validated
class Align(Term):
    """The loss of eq. 3: the distance of the features to their targets, which `with_targets` has made."""

    loss: AlignLoss = param(default="code", doc="which distance")

    def __call__(self, c: ClientContext, params: Tree, batch: Batch, out: Output) -> Tensor:
        """The batch's alignment loss."""
        if self.loss == "code":
            return class_loss(batch, out.features, c.made["targets"]["means"])
        with torch.no_grad():
            target = reference_features(c, batch.x)
        return sample_loss(batch, out.features, target, by_sum=self.loss == "paper_sum")


def class_loss(batch: Batch, features: Tensor, means: Tensor) -> Tensor:
    """Eq. 3 as in the official code: the mean squared distance to a class's mean, summed over the batch's classes."""
    hot = batch.one_hot(len(means)).to(features.dtype)
    each = (features - hot @ means).square().mean(1)
    # a class that the batch does not hold has no distance; its guard only avoids 0 / 0
    return ((hot.T @ each) / hot.sum(0).clamp(min=1)).sum()


def sample_loss(batch: Batch, features: Tensor, target: Tensor, by_sum: bool) -> Tensor:
    """Eq. 3 as printed: the mean squared distance to each sample's target; mean or sum over dimensions."""
    squared = (features - target).square()
    return batch.mean(squared.sum(1) if by_sum else squared.mean(1))


def align_body(c: ClientContext, params: Tree, term: Align, names: tuple[str, ...]) -> Tree:
    """Eq. 4: these parameters of the body after a few steps towards the targets, with the context's settings.

    Of a parameter that is shared in part only the received rows move.
    """

    def gradient(c: ClientContext, params: Tree, batch: Batch) -> Tree:
        def loss(p: Tree) -> Tensor:
            return term(c, p, batch, c.forward(p, batch.x, "batch", part="body"))

        return _keep_received_rows(c, c.grad(loss, params))

    return local_loop.sgd(c.with_fields(trainable=names), params, gradient, purpose="align")


def _keep_received_rows(c: ClientContext, grads: Tree) -> Tree:
    found = {}
    for name, grad in grads.items():
        part = c.message["model"][name]
        rest = grad[len(part) :] if grad.dim() else grad
        found[name] = grad if part.shape == grad.shape else torch.cat([grad[: len(part)], torch.zeros_like(rest)])
    return found
