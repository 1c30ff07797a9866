"""What a given network holds: a change of it is noticed, and the same thing made again counts as the same."""

import collections
import contextvars
import enum
import functools
import operator
import pathlib
import random
import re
import struct
import threading
import types
import weakref
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from unskew.base.contents import Contents

KEPT = []
"""What weak references point at."""


class OwnDict(dict):
    pass


class OwnList(list):
    pass


class Slotted:
    __slots__ = ("lock", "x")

    def __init__(self, x):
        self.x, self.lock = x, threading.Lock()


class WithLock:
    def __init__(self, x):
        self.give, self.lock = (lambda: x), threading.Lock()


def give(thing, value):
    thing.value = value
    return thing


def keep(value):
    KEPT.append(WithLock(value))
    return KEPT[-1]


THINGS = {
    "partial": lambda k: functools.partial(max, k),
    "factory": lambda k: collections.defaultdict(lambda: k),
    "attribute of a dict": lambda k: give(OwnDict(), k),
    "attribute of a list": lambda k: give(OwnList(), k),
    "slots": Slotted,
    "function beside a lock": WithLock,
    "memoryview": lambda k: memoryview(bytes([k])),
    "struct": lambda k: struct.Struct("<i" if k == 1 else "<f"),
    "context variable": lambda k: contextvars.ContextVar("x", default=k),
    "weak values": lambda k: weakref.WeakValueDictionary(a=keep(k)),
    "weak reference": lambda k: weakref.ref(keep(k)),
    "sparse tensor": lambda k: torch.tensor([0.0, k]).to_sparse(),
    "deque": lambda k: collections.deque([k], maxlen=3),
    "length of a deque": lambda k: collections.deque([1], maxlen=k),
    "namespace": lambda k: types.SimpleNamespace(a=k),
    "order": lambda k: collections.OrderedDict([(k, 1), (3 - k, 1)]),
    "counter": lambda k: collections.Counter(a=k),
    "mapping proxy": lambda k: types.MappingProxyType({"a": k}),
    "range": range,
    "slice": slice,
    "cached function": lambda k: functools.lru_cache(lambda x: x + k),
    "torch generator": lambda k: torch.Generator().manual_seed(k),
    "bytearray": lambda k: bytearray([k]),
    "dtype": lambda k: torch.float32 if k == 1 else torch.float64,
    "event": lambda k: give(threading.Event(), k),
    "frozenset": lambda k: frozenset([k]),
    "dispatch": lambda k: functools.singledispatch(lambda x: k),
    "array of objects": lambda k: np.array([k, None], dtype=object),
    "numpy generator": np.random.default_rng,
    "random": random.Random,
    "pattern": lambda k: re.compile("a" * k),
    "fraction": lambda k: Fraction(k, 3),
    "path": lambda k: pathlib.Path(str(k)),
    "layer": lambda k: nn.Dropout(k / 10),
    "layer in a list": lambda k: [nn.Linear(k, 2, device="meta")],
    "item getter": operator.itemgetter,
    "member": lambda k: enum.Enum("E", {"A": k}).A,
    "bound method": lambda k: types.MethodType(lambda s: k, 3),
}


@pytest.mark.parametrize("name", THINGS)
def test_what_a_network_holds_counts(name):
    def describe(value):
        network = nn.Linear(2, 2)
        nn.init.zeros_(network.weight)
        nn.init.zeros_(network.bias)
        network.thing = THINGS[name](value)
        return Contents(network).text

    assert describe(1) == describe(1) != describe(2)
