"""What a fourth trial by a newcomer found: networks, wire processors and divisions that wrote into what is shared."""

import logging
import math
import re

import pytest
import torch
from torch import nn

from small_runs import equal, play, register
from unskew import Processor, registries
from unskew.base import once
from unskew.base.errors import SlotError
from unskew.core.division import Division
from unskew.core.schedule import Schedule


class Constrained(nn.Linear):
    """Max-norm in the forward pass, as in EEGNet; the initial rows are within the bound."""

    __module__ = "mine"

    def forward(self, x):
        self.weight.data = torch.renorm(self.weight.data, p=2, dim=0, maxnorm=0.75)
        return super().forward(x)


class Shrinking(nn.Linear):
    """The same in place, once it is needed."""

    __module__ = "mine"

    def forward(self, x):
        with torch.no_grad():
            norm = self.weight.norm()
            if norm > 3.4:
                self.weight.mul_(3.4 / norm)
        return super().forward(x)


@pytest.mark.parametrize("executor", ["serial", "pool"])
def test_a_wire_processor_cannot_change_the_counts_of_others(executor):
    def encode(self, c, groups, memory, stream):
        samples, steps = c.num_samples, c.num_steps
        samples += 1000
        steps *= 0.5
        return groups, {}

    register("processors", "counting", Processor, encode=encode, decode=lambda self, groups: groups)
    plain = play(method="fednova", executor=executor)
    play(method="fednova", executor=executor, wire="counting")
    assert equal(plain, play(method="fednova", executor=executor))
    assert equal(plain, play(method="fednova", executor=executor, wire="counting"))


@pytest.mark.parametrize("executor", ["serial", "pool", "stacked"])
def test_a_division_that_writes_is_one_line(executor):
    def shared(self, context, params):
        return {name: value.mul_(0.9) for name, value in params.items() if not name.startswith("head.")}

    register("divisions", "writing", Division, shared=shared, rows=lambda self, names, name, size, round_: size)
    with pytest.raises(SlotError, match=r"division writing.shared changes .* in place; let it return new values"):
        play(method=f"fedper(division={registries.divisions.build('writing')})", executor=executor)


@pytest.mark.parametrize(
    ("factor", "line"),
    [
        (lambda self, done: None, "got None"),
        (lambda self, done: -1.0, r"got -1\.0"),
        (lambda self, done: math.nan, "got nan"),
        (lambda self, done: torch.ones(2), r"got tensor\(\[1\., 1\.\]\)"),
        (lambda self, done: 1 / done, "ZeroDivisionError: .*, in schedule odd.factor"),
    ],
)
def test_a_schedule_that_gives_no_factor_is_one_line(factor, line):
    register("schedules", "odd", Schedule, factor=factor)
    with pytest.raises(SlotError, match=f"the server failed in round 1: .*{line}"):
        play(schedule="odd")


def test_a_schedule_may_give_a_tensor():
    register("schedules", "halved", Schedule, factor=lambda self, done: torch.tensor(0.5) ** done)
    assert equal(play(schedule="halved"), play(schedule="exponential(decay=0.5)"))


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"straggler_online": 0.9}, "straggler_online = 0.9 does nothing without stragglers"),
        (
            {"evaluation.holdout": 0.5, "local_test": "proportional"},
            "evaluation.holdout = 0.5 is for local_test = holdout",
        ),
        ({"retries": 5, "executor": "serial"}, r"execution.retries \(--retries\) is for executor 'pool'"),
    ],
)
def test_options_that_do_nothing_are_said(options, line, caplog):
    once.warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        play(**options)
    assert re.search(line, caplog.text)
