"""Options that do nothing, or less than they say, beside the others that a run is given: one line says so."""

import logging
import re

import pytest

from small_runs import play, said
from unskew.base import once


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


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"stragglers": 0.1}, "stragglers = 0.1 of 3 clients are none"),
        ({"precision": "tf32"}, "tf32 is for GPUs and does nothing on the CPU"),
        ({"memory_format": "channels_last"}, "channels_last does nothing: the network has no convolutions"),
        ({"augment": "augment(pad_mode=reflect)"}, "pad_mode = reflect does nothing without crop"),
        ({"steps": 2, "epochs": 3}, "local.steps = 2 takes the place of epochs; local.epochs = 3 does nothing"),
        ({"data": "part(of=digits, train=100000, test=30)"}, "100000 samples were asked for, there are 1437"),
        ({"dropout": 0.999}, "every sampled client dropped out, so that the model stays as it is"),
    ],
)
def test_what_does_nothing_is_said(options, line, caplog):
    once.warn_once.cache_clear()  # said once in a process
    play(**{**options, "seed": 123})
    assert line in said(caplog)


@pytest.mark.parametrize(
    ("option", "line"),
    [
        ({"checkpoint_every": 2}, "checkpoint_every = 2 does nothing without out"),
        ({"clients_every": 5}, "clients_every = 5 is more than the 2 rounds: clients are tested after the last one"),
        ({"evaluation.last_k": 7}, "last_k = 7 is more than the 2 tests: last_7_mean is over those"),
    ],
)
def test_options_that_do_less_than_they_say_are_named(option, line, caplog):
    once.warn_once.cache_clear()
    play(**option)
    assert line in said(caplog)


def test_options_that_work_are_not_named(tmp_path, caplog):
    once.warn_once.cache_clear()
    play(checkpoint_every=2, clients_every=2, out=tmp_path / "run", **{"evaluation.last_k": 2})
    assert not caplog.records
