"""Small runs, plugins made on the spot, and what is compared of two runs."""

import itertools
from types import FunctionType

import pytest
import torch

import unskew
from unskew import Method, registries
from unskew.base.errors import InputError

EXECUTORS = ("serial", "pool", "stacked")
SMALL = {"data": "digits", "model": "mlp(hidden=[8])", "clients": 3, "split": "iid", "rounds": 2, "batch": 128}
ONE_STEP = {"data": "digits", "model": "mlp(hidden=[8])", "clients": 3, "split": "iid", "rounds": 2, "lr": 0.1,
            "local.steps": 1, "local_test": "none"}  # fmt: skip
SKEWED = {"clients": 4, "rounds": 2, "steps": 2, "model": "mlp", "split": "dirichlet:0.5", "local_test": "none",
          "lr": 0.1}  # fmt: skip
EVEN = {"clients": 4, "rounds": 2, "steps": 5, "batch": 16, "model": "mlp(hidden=[8])", "split": "iid", "lr": 0.05}
FEW = {"data": "part(of=digits, train=60, test=20)", "split": "iid", "clients": 3, "rounds": 1}
NUMBERS = itertools.count()


def play(**options):
    return unskew.run(**{**SMALL, **options})


def play_one_step(method, **options):
    return unskew.run(method, **{**ONE_STEP, **options})


def resumed(method, folder, **options):
    """The same run, cut after its second round and taken up again."""

    def stop(row):
        if row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play_one_step(method, out=folder, watch=stop, checkpoint_every=1, **options)
    return unskew.resume(folder)


def digits_net(activation):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 8), activation, torch.nn.Linear(8, 10))


# ------------------------------------------------------------------------------------------------------ plugins


def register(kind, name, base, **body):
    """A plugin's class with these functions, which get the names that they have there."""
    own = {slot: named(slot, value) if isinstance(value, FunctionType) else value for slot, value in body.items()}
    made = type(name.title(), (base,), {"__module__": "mine", "__doc__": "Mine.", **own})
    return getattr(registries, kind).register(name)(made)


def named(slot, function):
    code = function.__code__.replace(co_name=slot)
    return FunctionType(code, function.__globals__, slot, function.__defaults__, function.__closure__)


def make(kind, base, **body):
    """A plugin of these functions under a new name, as a process knows each plugin once; the name."""
    name = f"test_made_{next(NUMBERS)}"
    register(kind, name, base, **body)
    return name


def define(base=Method, **slots):
    """A method `mine`, as a user defines it."""
    kind = type("Mine", (base,), {"__module__": "mine", "__doc__": "Mine.", **slots})
    return registries.methods.register("mine")(kind)()


# --------------------------------------------------------------------------------------------- what is compared


def equal(one, other):
    return all(
        torch.equal(value, other.server[group][name])
        for group in ("model", "buffers")
        for name, value in one.server[group].items()
    )


def same(one, other):
    """Whether two states are equal to the last bit."""
    return one.keys() == other.keys() and all(
        one[group].keys() == other[group].keys() and all(torch.equal(v, other[group][n]) for n, v in own.items())
        for group, own in one.items()
    )


def are_near(one, other):
    return all(
        torch.allclose(v, other.server["model"][n], rtol=1e-3, atol=1e-4) for n, v in one.server["model"].items()
    )


def weights(result):
    return torch.cat([value.flatten() for value in result.server["model"].values()])


def said(caplog):
    """What was logged, as one text."""
    return "\n".join(record.getMessage() for record in caplog.records)


def refused(line, call, *args, **options):
    with pytest.raises(InputError) as caught:
        call(*args, **options)
    assert line in str(caught.value) and "\n" not in str(caught.value), str(caught.value)
