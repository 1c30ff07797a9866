"""Sums by class over a client's samples: what prototypes, mean logits and alignment targets are made of."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from unskew.core.context import ClientContext


def sum_by_class(c: ClientContext, see: Callable[[Tensor], Tensor], start: Tensor | float = 0.0) -> Tensor:
    """[C, d]: `see(x)` added up by class over all samples of the client, without gradient; `start` if it has none."""
    sums: Tensor | float = start
    with torch.no_grad():
        for batch in c.passes():
            values = see(batch.x)
            sums = sums + batch.one_hot(c.num_classes).to(values.dtype).T @ values
    return torch.as_tensor(sums)
