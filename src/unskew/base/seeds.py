"""Named random streams: each is a hash of (run seed, purpose, round, client), so none depends on another's use."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from unskew.base.torch_private import own_draws, watch_draws


class _LayerStream(threading.local):
    """Each thread's own copy of what layers draw from: nobody else draws from it."""

    def __init__(self) -> None:
        self.generator = torch.Generator()


_layers = _LayerStream()


def derive(seed: int, purpose: str, round_: int = 0, client: int = -1) -> int:
    """The seed of a stream, 63 bits: a hash of its name."""
    digest = hashlib.blake2b(f"{seed}/{purpose}/{round_}/{client}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(seed: int, purpose: str, round_: int = 0, client: int = -1) -> torch.Generator:
    """The stream's own generator."""
    return torch.Generator().manual_seed(derive(seed, purpose, round_, client))


def seed_layers(seed: int, purpose: str, round_: int = 0, client: int = -1) -> None:
    """Seeds torch's global generator, which only dropout and the initialisers of modules draw from, and its copy."""
    number = derive(seed, purpose, round_, client)
    # torch.manual_seed also walks over accelerators and took 230 µs a call; this takes 3
    torch.default_generator.manual_seed(number)
    _layers.generator.manual_seed(number)


def layer_stream() -> torch.Generator:
    """The same numbers as torch's global generator after `seed_layers`, whatever other threads draw from that one."""
    return _layers.generator


def read_unseeded_streams() -> dict[str, object]:
    """The states of the global generators that nobody seeds, by whose they are."""
    state = np.random.get_state(legacy=False)
    return {
        "Python": random.getstate(),
        "numpy": [(name, np.asarray(value).tobytes()) for name, value in state["state"].items()],
    }


@contextmanager
def find_draws() -> Iterator[list[str]]:
    """Whose global generators were drawn from meanwhile: the list is filled at the end. Torch's by this thread only."""
    found: list[str] = []
    before = read_unseeded_streams()
    with watch_draws() as seen:
        yield found
    found += ["torch"] * seen.drew
    found += [whose for whose, state in read_unseeded_streams().items() if state != before[whose]]


@contextmanager
def preserve_global_generator() -> Iterator[None]:
    """Leaves torch's global generator as it was found, and what layers draw from."""
    before, own = torch.default_generator.get_state(), _layers.generator.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(before)
        _layers.generator.set_state(own)


@contextmanager
def drawing_weights(number: int, reseeds: bool = True) -> Iterator[None]:
    """Initialisers of layers draw from this seed, whatever other threads draw from torch's global generator.

    `reseeds`: whether what draws may seed that one itself, as a network of the user's may; where another thread does so
    meanwhile, the two cannot be told apart.
    """
    with preserve_global_generator():
        _layers.generator.manual_seed(number)
        with own_draws(number, reseeds):
            yield


@contextmanager
def seed_everything(seed: int, purpose: str) -> Iterator[None]:
    """Seeds the global generators of torch, numpy and Python, whatever is drawn from; leaves them as they were found.

    For what is made before a run, perhaps by code that knows no other generator: data, a split, a network.
    """
    of_python, of_numpy, number = random.getstate(), np.random.get_state(), derive(seed, purpose)
    with preserve_global_generator():
        seed_layers(seed, purpose)
        random.seed(number)
        np.random.seed(number % 2**32)
        try:
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)


def sample_cohort(seed: int, round_: int, clients: int, size: int) -> list[int]:
    """The clients of a round, drawn without replacement; depends on nothing but seed and round."""
    rng = generator(seed, "cohort", round_)
    if size * 20 > clients:
        return torch.randperm(clients, generator=rng)[:size].tolist()
    chosen: dict[int, None] = {}  # few of many: draw until enough differ, so the cost does not grow with the clients
    while len(chosen) < size:
        chosen[int(torch.randint(clients, (), generator=rng))] = None
    return list(chosen)
