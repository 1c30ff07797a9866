"""How far local steps with momentum go: what SCAFFOLD's controls and FedNova's updates are divided by."""

from __future__ import annotations

from torch import Tensor


def count_plain_steps(steps: Tensor, momentum: float) -> Tensor:
    """(K - m (1 - m^K) / (1 - m)) / (1 - m): so many steps without momentum m move a model as far as K with it."""
    if momentum == 0:
        return steps
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
