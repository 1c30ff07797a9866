"""Schedules: what the learning rate is in a round, as a factor on that of the first."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from unskew.base.errors import InputError, is_from_signal
from unskew.base.registry import Component, Registry, param
from unskew.core.checks.faults import CAUGHT, Fault, server_error


class Schedule(Component):
    """The learning rate over the rounds."""

    def factor(self, done: int) -> float:
        """The factor on the first round's learning rate after `done` rounds."""
        raise TypeError(f"{type(self).__name__} must define factor(done)")

    @property
    def depends_on_rounds(self) -> bool:
        """Whether a longer run has other rates from its first rounds on: it is no continuation of a shorter one."""
        return False


def read_factor(schedule: Schedule, done: int) -> float:
    """What a schedule says, as a plain number; one line where it fails, or gives no factor of a learning rate."""
    try:
        found: Any = schedule.factor(done)
    except InputError:
        raise
    except CAUGHT as error:
        if is_from_signal(error):
            raise
        raise server_error(error, done + 1) from error
    value = found.item() if isinstance(found, Tensor) and found.numel() == 1 else found
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    if not good:
        said = f"must return a finite number from 0 up, got {found!r} after {done} rounds"
        fault = Fault(schedule, "factor", said)
        raise server_error(fault, done + 1) from fault
    return float(value)


schedules: Registry[Schedule] = Registry("schedule", Schedule)


@schedules.register("constant")
class Constant(Schedule):
    """The same in every round."""

    def factor(self, done: int) -> float:
        """1."""
        return 1.0


@schedules.register("exponential")
class Exponential(Schedule):
    """Times a factor after each round, as `lr_decay` is short for."""

    decay: float = param(gt=0, le=1, doc="factor after each round", source="FLFA 0.998, FedSOL 0.99")

    def factor(self, done: int) -> float:
        """decay^t."""
        return self.decay**done


@schedules.register("inverse")
class Inverse(Schedule):
    """lr / (1 + decay t) after t rounds."""

    decay: float = param(default=1e-3, ge=0, doc="how much slower after each round", source="FedAS, Sec. 4.1 (A7)")

    def factor(self, done: int) -> float:
        """1 / (1 + decay t)."""
        return 1 / (1 + self.decay * done)
