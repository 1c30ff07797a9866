"""Schedules: what the learning rate is in a round, as a factor on that of the first."""

from __future__ import annotations

from unskew.base.registry import Component, Registry, param


class Schedule(Component):
    """The learning rate over the rounds."""

    def factor(self, done: int) -> float:
        """The factor on the first round's learning rate after `done` rounds."""
        raise TypeError(f"{type(self).__name__} must define factor(done)")


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
