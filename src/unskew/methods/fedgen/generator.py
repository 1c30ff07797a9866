"""FedGen's generator of features, and how the server trains it on the clients' heads (eq. 4)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from unskew.base.batch import cross_entropy
from unskew.base.tree import Tree
from unskew.core import optimisers
from unskew.core.auxiliary import Auxiliary
from unskew.core.context import ServerContext


def build(noise: int, classes: int, hidden: int, features: int) -> nn.Module:
    """G(y, eps): noise and a one-hot label become features."""
    # no bias before BatchNorm: its gradient is rounding noise, of which Adam would make full steps
    first = nn.Linear(noise + classes, hidden, bias=False)
    return nn.Sequential(first, nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, features))


def join_label(noise: Tensor, y: Tensor, classes: int) -> Tensor:
    """What the generator takes: noise [B, n] beside one-hot labels."""
    hot = y.unsqueeze(1) == torch.arange(classes, device=y.device)
    return torch.cat([noise, hot.to(noise.dtype)], 1)


def pick_labels(uniform: Tensor, labels: Tensor) -> Tensor:
    """Labels drawn evenly from these, by numbers from [0, 1)."""
    return labels[(uniform * len(labels)).long().clamp(max=len(labels) - 1)].long()


# ------------------------------------------------------------------------------------------ its loss


def diversity(noise: Tensor, features: Tensor) -> Tensor:
    """exp(-mean_ij |eps_i - eps_j|^2 |G_i - G_j|_1): small where different noise gives different features."""
    apart = (noise.unsqueeze(1) - noise).square().mean(2)
    return torch.exp(-(apart * (features.unsqueeze(1) - features).abs().mean(2)).mean())


def teach(logits: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """sum_k mean_j w_{y_j, k} CE(head_k(G_j), y_j), of logits [K, B, C] and the clients' shares of a label [C, K]."""
    losses = cross_entropy(logits, y.expand(len(logits), -1))
    return (weights.T[:, y] * losses).mean(1).sum()


def share_labels(counts: Tensor) -> Tensor:
    """Each client's share of the samples of each label, [C, K], from counts [K, C]."""
    return (counts / counts.sum(0).clamp(min=1)).T


# ------------------------------------------------------------------------------------ and its training


class Teachers(NamedTuple):
    """What the clients of a round teach the generator with."""

    heads: Tree
    """Their trained heads, [K, ...]."""
    counts: Tensor
    """Their samples of each class, [K, C]."""


class Training(NamedTuple):
    """How the generator is trained in a round."""

    steps: int
    batch: int
    noise: int
    lr: float
    weight_decay: float


def classify_by_all(s: ServerContext, model: Tree, heads: Tree, features: Tensor) -> Tensor:
    """[K, B, C]: the logits of all clients' heads, at once."""
    found: Tensor = torch.func.vmap(lambda head: s.classify({**model, **head}, features, "eval"))(heads)
    return found


def train_generator(
    s: ServerContext, generator: Auxiliary, params: Tree, moments: Tree, model: Tree, taught: Teachers, how: Training
) -> tuple[Tree, Tree]:
    """Steps of Adam on the heads' loss and the diversity; labels are those that the round's clients hold."""
    dtype, rng = next(iter(taught.heads.values())).dtype, s.rng("fedgen")
    labels, weights = taught.counts.sum(0).nonzero().squeeze(1), share_labels(taught.counts.to(dtype))
    for step in range(how.steps):
        noise = torch.rand(how.batch, how.noise, generator=rng).to(dtype)
        y = pick_labels(torch.rand(how.batch, generator=rng), labels)
        x = join_label(noise, y, s.num_classes)

        def loss(p: Tree, x: Tensor = x, y: Tensor = y, noise: Tensor = noise) -> Tensor:
            features = generator(p, x)
            logits = classify_by_all(s, model, taught.heads, features)
            return teach(logits, y, weights) + diversity(noise, features)

        grads, value = s.grad_and_value(loss, params, generator.trainable)
        params, moments = optimisers.adam(params, grads, moments, how.lr, weight_decay=how.weight_decay)
        params = generator.track(params, x)
        if step in (0, how.steps - 1):
            s.record["generator_loss" if step else "generator_loss_before"] = float(value)
    return params, moments
