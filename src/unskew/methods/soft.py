"""What clients know of the classes as tables [C, C]: mean logits, soft labels, and the loss that matches them."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from unskew.base.tree import Tree
from unskew.core.context import ClientContext, ServerContext
from unskew.core.jobs import Reply
from unskew.methods.class_sums import sum_by_class
from unskew.methods.condense import class_means

Missing = Literal["holders", "zeros"]
"""A class is averaged over the clients that hold it; or over all, those without it counting as zeros."""


def nothing_known(num_classes: int) -> Tree:
    """A table in which no class has a row yet."""
    return {"rows": torch.zeros(num_classes, num_classes), "held": torch.zeros(num_classes, dtype=torch.bool)}


def mean_logits(c: ClientContext) -> Tree:
    """V_k: the received model's mean logits of each class over all its samples, and which classes there are."""
    if len(c.data) == 0:
        return nothing_known(c.num_classes)
    model, buffers = c.received["model"], c.received["buffers"]
    sums = sum_by_class(c, lambda x: c.forward(model, x, "eval", buffers).logits)
    return {"rows": sums / c.counts.clamp(min=1).unsqueeze(1), "held": c.counts > 0}


def soft_labels(logits: Tree, tau: float) -> Tree:
    """R_k: softmax(v / tau) for each class there is; zeros for the others."""
    rows = (logits["rows"] / tau).softmax(1)
    return {**logits, "rows": torch.where(logits["held"].unsqueeze(1), rows, 0.0)}


class class_rows:
    """Tables of the clients added up, with how many clients hold each class and how many there are."""

    def __init__(self, s: ServerContext) -> None:
        self._sum: Tree = {}

    def add(self, value: Tree, reply: Reply) -> None:
        """Takes in one client's table."""
        new = {"rows": value["rows"], "holders": value["held"].to(torch.int64), "clients": torch.ones(())}
        self._sum = {name: self._sum[name] + part for name, part in new.items()} if self._sum else new

    def result(self) -> Tree:
        """The sums."""
        return self._sum


def averaged(summed: Tree, missing: Missing) -> Tree:
    """V and R: the mean of each class's row; a class that nobody holds has none (sheet E1, 6.6)."""
    by = summed["holders"].clamp(min=1).unsqueeze(1) if missing == "holders" else summed["clients"].clamp(min=1)
    return {"rows": summed["rows"] / by, "held": summed["holders"] > 0}


def lgkm(logits: Tensor, y: Tensor, soft: Tree, tau: float) -> Tensor:
    """Mean over the classes present of (KL(R_c || T_c) + KL(T_c || R_c)) / 2, T_c = softmax(mean logits of c / tau).

    Below the smallest normal number an entry of R counts as that number: its logarithm must be finite.
    """
    num_classes = len(soft["held"])
    present = (y.unsqueeze(-1) == torch.arange(num_classes, device=y.device)).any(0) & soft["held"]
    log_t = F.log_softmax(class_means(logits, y, num_classes) / tau, 1)
    r = soft["rows"].clamp(min=torch.finfo(log_t.dtype).tiny)
    # sum of R (log R - log T) + T (log T - log R)
    both = ((r - log_t.exp()) * (r.log() - log_t)).sum(1) / 2
    return torch.where(present, both, 0.0).sum() / present.sum().clamp(min=1)
