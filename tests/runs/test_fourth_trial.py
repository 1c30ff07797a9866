"""What a fourth trial by a newcomer found: networks, wire processors and divisions that wrote into what is shared."""

import logging
import re

import pytest
import torch
from torch import nn

from small_runs import play, register
from unskew import registries
from unskew.base import once
from unskew.base.errors import SlotError
from unskew.core.division import Division


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


@pytest.mark.parametrize("executor", ["serial", "pool", "stacked"])
def test_a_division_that_writes_is_one_line(executor):
    def shared(self, context, params):
        return {name: value.mul_(0.9) for name, value in params.items() if not name.startswith("head.")}

    register("divisions", "writing", Division, shared=shared, rows=lambda self, names, name, size, round_: size)
    with pytest.raises(SlotError, match=r"division writing.shared changes .* in place; let it return new values"):
        play(method=f"fedper(division={registries.divisions.build('writing')})", executor=executor)


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
