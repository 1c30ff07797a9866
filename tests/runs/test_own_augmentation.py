"""A user's augmentation: the same on every executor, or refused before the first round in one line."""

import itertools
import random

import numpy as np
import pytest
import torch

import unskew
from plugin_files import write_part
from small_runs import EVEN, equal, make, play, register
from unskew import Dataset, Draws, Samples, Transform, normalise, registries
from unskew.base.errors import InputError, SlotError
from unskew.data.transforms import Augment
from unskew.runs.own_augmentation import try_augmentation


def draw(self, n, shape, rng):
    return Draws(torch.rand(n, 3, generator=rng))


def apply(self, x, draws, mean, std):
    return normalise(x, mean, std) * (1 + draws.numbers[:, :1, None, None])


NUMBERS = itertools.count()


def own(base=Transform, **body):
    """An augmentation with these functions; its name."""
    name = f"test_own_{next(NUMBERS)}"
    register("transforms", name, base, **{"draw": draw, "apply": apply, **body})
    return name


@pytest.mark.parametrize("base", [Transform, Augment])
def test_it_is_the_same_on_every_executor(base):
    more = {"is_identity": False} if base is Augment else {}
    name = own(base, **more)
    plain = play(executor="serial", batch=16)
    serial = play(augment=name, executor="serial", batch=16)
    assert not equal(plain, serial)
    assert equal(serial, play(augment=name, executor="pool", batch=16, workers=2))
    stacked = play(augment=name, executor="stacked", batch=16)
    for key, value in serial.server["model"].items():
        torch.testing.assert_close(stacked.server["model"][key], value, rtol=1e-4, atol=1e-5)


def test_one_sample_is_enough_to_try_it():
    one = Samples(torch.zeros(1, 1, 8, 8, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64))
    data = Dataset("one", one, one, ("a", "b"), (0.5,), (0.5,))
    try_augmentation(registries.transforms.build(own()), data, 0)


def draws_torch(self, x, draws, mean, std):
    x = normalise(x, mean, std)
    return x + torch.randn_like(x)


def draws_numpy(self, x, draws, mean, std):
    return normalise(x, mean, std) * np.random.rand()


def draws_python(self, n, shape, rng):
    return Draws(torch.full((n, 3), random.random()))


def mixes(self, x, draws, mean, std):
    x = normalise(x, mean, std)
    return x - x.mean(0)


def counts(self, x, draws, mean, std):
    counts.calls += 1
    return normalise(x, mean, std) * counts.calls


counts.calls = 0


FAULTS = {
    "apply draws from the global generator of torch": {"apply": draws_torch},
    "apply draws from the global generator of numpy": {"apply": draws_numpy},
    "draw draws from the global generator of Python": {"draw": draws_python},
    "apply mixes the samples of a batch": {"apply": mixes},
    "apply gives something else for the same draws": {"apply": counts},
    r"apply must return normalised samples, float32 .* got a tensor of shape .* \(uint8\)": {
        "apply": lambda self, x, draws, mean, std: x
    },
    "apply must return normalised samples, float32 .* got None": {"apply": lambda self, x, draws, mean, std: None},
    r"apply must return normalised samples, .*\[64, 64\]": {
        "apply": lambda self, x, draws, mean, std: normalise(x, mean, std).flatten(1)
    },
    "apply gives NaN": {"apply": lambda self, x, draws, mean, std: normalise(x, mean, std) * float("nan")},
    "apply changes its draws in place": {
        "apply": lambda self, x, draws, mean, std: normalise(x, mean, std) * draws.numbers.zero_()[:, :1, None, None]
    },
    r"draw must return Draws\(tensor\) with a row .* got a tensor of shape \[3\]": {
        "draw": lambda self, n, shape, rng: Draws(torch.rand(3, generator=rng))
    },
    r"draw must return Draws\(tensor\).* got None": {"draw": lambda self, n, shape, rng: None},
    "ZeroDivisionError.* in augmentation test_own_[0-9]+.apply": {"apply": lambda self, x, draws, mean, std: 1 / 0},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_would_be_wrong_in_silence_is_refused(fault):
    with pytest.raises(SlotError, match=f"the augmentation failed before the first round: .*{fault}"):
        play(augment=own(**FAULTS[fault]))


def test_an_augmentation_on_another_device_is_a_line(own_names):
    body = {"draw": lambda self, n, shape, rng: Draws(torch.rand(n, generator=rng)),
            "apply": lambda self, x, draws, mean, std: normalise(x, mean, std).to("meta")}  # fmt: skip
    name = make("transforms", Transform, **body)
    with pytest.raises(SlotError, match=r"apply must return normalised samples.* without data \(device meta\)"):
        play(augment=name)


@pytest.mark.parametrize(
    "numbers",
    [
        "torch.from_numpy(np.random.default_rng().random((n, 1, 1, 1)))",
        "torch.full((n, 1, 1, 1), float(time.perf_counter_ns() % 1000))",
    ],
    ids=["its own generator", "the clock"],
)
def test_an_augmentation_that_draws_elsewhere_is_refused(name, numbers):
    text = f"""
def draw(self, n, shape, rng):
    return Draws({numbers}.float())
def apply(self, x, draws, mean, std):
    return (x.float() / 255 - mean) / std + 0.01 * draws.numbers
"""
    plugin = write_part(name, "transforms", "Transform", text)
    with pytest.raises((InputError, SlotError), match="gives other numbers for the same rng"):
        unskew.run(augment=name, plugin=plugin, **EVEN)
