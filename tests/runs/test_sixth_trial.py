"""What a sixth trial by a newcomer found: a quiet exit, training that trains nobody, more options that do nothing."""

import itertools
import sys

import pytest
import torch

from small_runs import play, register, said
from unskew import Draws, Method, Transform, normalise
from unskew.base import once
from unskew.base.errors import InputError, SlotError

NUMBERS = itertools.count()


def method(**body):
    """A method with these functions; its name."""
    name = f"test_sixth_{next(NUMBERS)}"
    register("methods", name, Method, **body)
    return name


def test_an_exit_in_own_terms_is_a_line():
    with pytest.raises(InputError, match="own_terms fails: SystemExit"):
        play(method=method(own_terms=lambda self: sys.exit(0)))


def test_batches_of_one_with_batchnorm_are_refused():
    with pytest.raises(InputError, match=r"local.batch = 1 with BatchNorm would train nobody"):
        play(model="cnn8(norm=batch)", batch=1)
    assert play(model="mlp(hidden=[4])", batch=1, steps=2, rounds=1).rounds[-1]["train_loss"] is not None


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


def test_an_augmentation_on_another_device_is_a_line():
    name = f"test_sixth_{next(NUMBERS)}"
    body = {"draw": lambda self, n, shape, rng: Draws(torch.rand(n, generator=rng)),
            "apply": lambda self, x, draws, mean, std: normalise(x, mean, std).to("meta")}  # fmt: skip
    register("transforms", name, Transform, **body)
    with pytest.raises(SlotError, match="gives samples on another device"):
        play(augment=name)
