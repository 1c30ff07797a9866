"""What the tests of newcomers' trials share: small runs, and plugins made on the spot."""

from types import FunctionType

import torch

import unskew
from unskew import registries

SMALL = {"data": "digits", "model": "mlp(hidden=[8])", "clients": 3, "split": "iid", "rounds": 2, "batch": 128}


def register(kind, name, base, **body):
    """A plugin's class with these functions, which get the names that they have there."""
    own = {slot: named(slot, value) if isinstance(value, FunctionType) else value for slot, value in body.items()}
    made = type(name.title(), (base,), {"__module__": "mine", "__doc__": "Mine.", **own})
    return getattr(registries, kind).register(name)(made)


def named(slot, function):
    code = function.__code__.replace(co_name=slot)
    return FunctionType(code, function.__globals__, slot, function.__defaults__, function.__closure__)


def play(**options):
    return unskew.run(**{**SMALL, **options})


def equal(one, other):
    return all(
        torch.equal(value, other.server[group][name])
        for group in ("model", "buffers")
        for name, value in one.server[group].items()
    )


def said(caplog):
    """What was logged, as one text."""
    return "\n".join(record.getMessage() for record in caplog.records)
