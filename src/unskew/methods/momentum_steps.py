"""How far local steps with momentum go: what SCAFFOLD's controls and FedNova's updates are divided by."""

from __future__ import annotations

from torch import Tensor


def count_plain_steps(steps: Tensor, momentum: float, nesterov: bool = False) -> Tensor:
    """So many steps without momentum m move a model as far as K with it: (K - m (1 - m^K) / (1 - m)) / (1 - m).

    Of Nesterov's momentum each step is the next velocity, d + m v_t = v_{t+1} under a constant d: those of K + 1 steps
    without the first, which is 1.
    """
    if momentum == 0:
        return steps
    if nesterov:
        return (_sum_velocities(steps + 1, momentum) - 1).clamp(min=0)  # no steps: 0 but for rounding
    return _sum_velocities(steps, momentum)


def _sum_velocities(steps: Tensor, momentum: float) -> Tensor:
    """v_1 + ... + v_K for gradients of 1."""
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
