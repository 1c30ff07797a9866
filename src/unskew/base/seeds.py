"""Named random streams: each is a hash of (run seed, purpose, round, client), so none depends on another's use."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive(seed: int, purpose: str, round_: int = 0, client: int = -1) -> int:
    """The seed of a stream, 63 bits: a hash of its name."""
    digest = hashlib.blake2b(f"{seed}/{purpose}/{round_}/{client}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(seed: int, purpose: str, round_: int = 0, client: int = -1) -> torch.Generator:
    """The stream's own generator."""
    return torch.Generator().manual_seed(derive(seed, purpose, round_, client))


def seed_layers(seed: int, purpose: str, round_: int = 0, client: int = -1) -> None:
    """Seeds torch's global generator, which only dropout and the initialisers of modules draw from."""
    # torch.manual_seed also walks over accelerators and took 230 µs a call; this takes 3
    torch.default_generator.manual_seed(derive(seed, purpose, round_, client))


@contextmanager
def preserve_global_generator() -> Iterator[None]:
    """Leaves torch's global generator as it was found."""
    before = torch.default_generator.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(before)


def sample_cohort(seed: int, round_: int, clients: int, size: int) -> list[int]:
    """The clients of a round, drawn without replacement; depends on nothing but seed and round."""
    rng = generator(seed, "cohort", round_)
    if size * 20 > clients:
        return torch.randperm(clients, generator=rng)[:size].tolist()
    chosen: dict[int, None] = {}  # few of many: draw until enough differ, so the cost does not grow with the clients
    while len(chosen) < size:
        chosen[int(torch.randint(clients, (), generator=rng))] = None
    return list(chosen)
