"""Schedules: what the learning rate is in a round, as a factor on the run's (`local.lr`)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from unskew.base.errors import InputError, is_from_signal
from unskew.base.registry import Component, Registry, param
from unskew.base.text import Table, parse
from unskew.core.checks.faults import CAUGHT, Fault, server_error


class Schedule(Component):
    """The learning rate over the rounds."""

    def factor(self, done: int) -> float:
        """The factor on the run's learning rate after `done` rounds."""
        raise TypeError(f"{type(self).__name__} must define factor(done)")

    def for_rounds(self, rounds: int) -> Schedule:
        """The schedule of a run of so many rounds; most need not know how many there are."""
        return self

    @property
    def depends_on_rounds(self) -> bool:
        """Whether a longer run has other rates from its first rounds on: it is no continuation of a shorter one.

        Taken to be so of a schedule that asks for the number of rounds, unless it says otherwise.
        """
        return type(self).for_rounds is not Schedule.for_rounds


def fit_schedule(schedule: Schedule, rounds: int) -> Schedule:
    """The schedule of a run of so many rounds; a fault where it gives no schedule."""
    found: object = schedule.for_rounds(rounds)
    if not isinstance(found, Schedule):
        fault = Fault(schedule, "for_rounds", f"must return a schedule, such as self, got {found!r}")
        raise server_error(fault, 0) from fault
    return found


def read_factor(schedule: Schedule, done: int) -> float:
    """What a schedule says, as a plain number; one line where it fails, or gives no factor of a learning rate.

    It is asked twice: one that draws, counts its calls or looks at the clock would give each run other rates.
    """
    try:
        asked: list[Any] = [schedule.factor(done) for _ in range(2)]
    except InputError:
        raise
    except CAUGHT as error:
        if is_from_signal(error):
            raise
        raise server_error(error, done + 1) from error
    values = [_to_number(found) for found in asked]
    said = ""
    if not all(isinstance(value, (int, float)) and math.isfinite(value) and value >= 0 for value in values):
        said = f"must return a finite number from 0 up, got {asked[0]!r} after {done} rounds"
    elif values[0] != values[1]:
        said = f"must depend on the rounds done alone; asked twice after {done} it gave {values[0]} and {values[1]}"
    if said:
        fault = Fault(schedule, "factor", said)
        raise server_error(fault, done + 1) from fault
    return float(values[0])


def _to_number(found: Any) -> Any:
    """A tensor of one element as its number; a truth value is none."""
    if isinstance(found, Tensor):
        return found.item() if found.numel() == 1 and found.device.type != "meta" else None
    if isinstance(found, (bool, np.bool_)):
        return None
    return float(found) if isinstance(found, (np.floating, np.integer)) else found


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


@schedules.register("step")
class Step(Schedule):
    """Times a factor after every so many rounds, or after those that are named."""

    every: int | None = param(default=None, ge=1, doc="rounds between falls")
    decay: float = param(default=0.1, gt=0, le=1, doc="factor at each fall", source="torch.optim.lr_scheduler.StepLR")
    at: tuple[int, ...] = param(default=(), doc="the rounds after which it falls, such as [100, 150], instead")

    def factor(self, done: int) -> float:
        """decay to the number of falls so far."""
        falls = done // self.every if self.every is not None else sum(after <= done for after in self.at)
        return self.decay**falls

    def __post_init__(self) -> None:
        """Refuses two rules for when it falls, or none."""
        if (self.every is None) == (not self.at):
            raise InputError("step needs either every or at: step(30), or step(at=[100, 150])")
        if any(after < 1 for after in self.at) or list(self.at) != sorted(set(self.at)):
            raise InputError(f"step.at: expected growing numbers of rounds such as [100, 150], got {list(self.at)}")


@schedules.register("cosine")
class Cosine(Schedule):
    """Half a wave of a cosine from the full rate down to a share of it, over all rounds, after a warm-up.

    Loshchilov, Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", ICLR 2017, eq. 5 without restarts.
    """

    warmup: int = param(default=0, ge=0, doc="rounds before it in which the rate rises", source="our choice: none")
    floor: float = param(default=0.0, ge=0, lt=1, doc="share of the rate at the end", source="paper, Sec. 4")
    rounds: int | None = param(
        default=None, ge=1, doc="the round that would have the floor's rate; none: the run's end"
    )

    @property
    def depends_on_rounds(self) -> bool:
        """Unless it says itself where it ends."""
        return self.rounds is None

    def for_rounds(self, rounds: int) -> Schedule:
        """The same with an end; refuses one that leaves no room for the cosine, or ends at 0 before the run does."""
        end = rounds if self.rounds is None else self.rounds
        if end <= self.warmup:
            raise InputError(
                f"local.schedule = {self}: a warm-up of {self.warmup} leaves nothing of {end} rounds; lower warmup"
            )
        if end < rounds and self.floor == 0:
            raise InputError(
                f"local.schedule = {self} is at 0 after {end} rounds, and the run has {rounds}; give it a floor, such "
                "as floor=0.01, or leave rounds out"
            )
        return dataclasses.replace(self, rounds=end)

    def factor(self, done: int) -> float:
        """floor + (1 - floor) (1 + cos(pi t / T)) / 2, t of T rounds after the warm-up."""
        if done < self.warmup:
            return rise(done, self.warmup)
        if self.rounds is None:
            raise InputError("cosine needs to know the number of rounds; ask for_rounds(rounds).factor(done)")
        share = min(1.0, (done - self.warmup) / (self.rounds - self.warmup))
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * share)) / 2


@schedules.register("warmup")
class Warmup(Schedule):
    """Rises to the full rate in equal steps; then another schedule begins.

    Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017, Sec. 2.2 (gradual warmup).
    """

    rounds: int = param(ge=1, doc="rounds in which the rate rises")
    then: Schedule = param(default=Constant(), doc="what follows, its rounds counted from there")

    @property
    def depends_on_rounds(self) -> bool:
        """As what follows does."""
        return self.then.depends_on_rounds

    def for_rounds(self, rounds: int) -> Schedule:
        """What follows has the rest of the rounds."""
        return dataclasses.replace(self, then=fit_schedule(self.then, max(1, rounds - self.rounds)))

    def factor(self, done: int) -> float:
        """(t + 1) / (T + 1) after t of T rounds."""
        return rise(done, self.rounds) if done < self.rounds else read_factor(self.then, done - self.rounds)


def rise(done: int, rounds: int) -> float:
    """The factor in a warm-up of so many rounds: equal steps up from 0, one before each round."""
    return (done + 1) / (rounds + 1)


def walk_schedules(schedule: Schedule) -> Iterator[Schedule]:
    """The schedule and those that follow it."""
    yield schedule
    if isinstance(schedule, Warmup):
        yield from walk_schedules(schedule.then)


def split_rate(value: Any) -> tuple[Any, Any]:
    """The rate and the schedule that `lr` names: `cosine(0.1, warmup=10)` is 0.1 and `cosine(warmup=10)`.

    A schedule is None where `lr` is a plain number, or no text of a schedule.
    """
    if isinstance(value, str):
        try:
            return float(value), None
        except ValueError:
            value = _parse(value)
    if not isinstance(value, Mapping):
        return value, None
    table = dict(value)
    name, listed = table.get("name"), list(table.pop("args", ()))
    given = [table.pop("lr")] if "lr" in table else listed[:1]
    rest = listed if "lr" in value else listed[1:]
    schedules.get(str(name))
    if not given:
        raise InputError(f"local.lr: {name} needs the rate as its first argument, such as {name}(0.1)")
    return given[0], {**table, **({"args": rest} if rest else {})}


def _parse(text: str) -> Table:
    """The table of a schedule's text."""
    if not any(sign in text for sign in "(:") and text.strip().lower() not in schedules:
        example = "cosine(0.1, warmup=10)"
        raise InputError(f"local.lr: input should be a number, got '{text}'; or a schedule of one, such as {example}")
    return parse(text)
