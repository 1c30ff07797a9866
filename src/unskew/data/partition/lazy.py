"""Partitions whose clients are computed when they are asked for: nothing is kept per client, so there may be millions.

Their file holds the recipe: the split, its seed, the data's fingerprint and the number of clients.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from unskew.base.errors import InputError
from unskew.base.registry import to_table
from unskew.data.dataset import Dataset
from unskew.data.partition.base import Ints, Partition, check_fields, read_text, told_as_damage
from unskew.data.partition.listed import ListedPartition, Split, check_seed, splits

FORMAT = "unskew-recipe-1"
FIELDS: dict[str, tuple[type, ...]] = {
    "split": (dict,),
    "seed": (int,),
    "data": (str,),
    "samples": (int,),
    "clients": (int,),
    "hash": (str,),
}


class Dealer(ABC):
    """Knows what each client holds without keeping it; whoever is asked for first changes nothing."""

    @abstractmethod
    def hold(self, client: int) -> Ints:
        """The client's sample indices."""

    @abstractmethod
    def sizes(self, clients: Ints) -> Ints:
        """How many samples each of these clients holds."""

    @abstractmethod
    def total(self, clients: int) -> int:
        """How many samples the clients hold together if there are so many of them."""


class LazySplit(Split):
    """A split that gives a dealer instead of everyone's indices."""

    shared: ClassVar[bool] = False
    """Whether two clients may hold the same sample."""

    def cut(self, dataset: Dataset, clients: int, seed: int) -> LazyPartition:
        """Which client holds which sample; the same arguments give the same partition."""
        self.check(dataset, clients)
        check_seed(seed)
        dealer = self.dealer(dataset, clients, seed)
        return LazyPartition(self, clients, seed, dataset.fingerprint(), len(dataset.train), dealer)

    def dealer(self, dataset: Dataset, clients: int, seed: int) -> Dealer:
        """Who says what a client holds."""
        raise TypeError(f"{type(self).__name__} must define dealer(dataset, clients, seed)")


@dataclass(frozen=True, eq=False)
class LazyPartition(Partition):
    """So many clients; what one of them holds is computed when it is asked for."""

    maker: LazySplit
    clients: int
    seed: int
    data: str
    samples: int
    dealer: Dealer | None
    """None if it was read for other data than it was made for."""

    def __len__(self) -> int:
        return self.clients

    def __getitem__(self, client: int) -> Ints:
        return self._dealer.hold(self._number(client))

    def sizes_of(self, clients: ArrayLike) -> Ints:
        """How many samples each of these clients holds."""
        return self._dealer.sizes(np.asarray(clients, dtype=np.int64))

    @property
    def total(self) -> int:
        """How many samples all clients hold together; a sample that two clients hold counts twice."""
        return self._dealer.total(self.clients)

    @property
    def split(self) -> dict[str, Any]:  # type: ignore[override]
        """Name and options of the split that made it."""
        return to_table(self.maker)

    @property
    def shared(self) -> bool:  # type: ignore[override]
        """Whether two clients may hold the same sample."""
        return self.maker.shared

    @property
    def _dealer(self) -> Dealer:
        if self.dealer is None:
            raise InputError("this partition was made for other data; use the data it was made for")
        return self.dealer

    @cached_property
    def hash(self) -> str:
        """A short hash of the recipe: equal recipes give every client the same samples, on every machine."""
        return hashlib.sha256(json.dumps(self._recipe(), sort_keys=True).encode()).hexdigest()[:16]

    def _recipe(self) -> dict[str, Any]:
        return {
            "format": FORMAT, "split": self.split, "seed": self.seed, "data": self.data, "samples": self.samples,
            "clients": self.clients,
        }  # fmt: skip

    def to_json(self) -> bytes:
        """The document that `load_partition` reads: the recipe."""
        return (json.dumps({**self._recipe(), "hash": self.hash}) + "\n").encode()


def load_partition(path: str | Path, dataset: Dataset) -> Partition:
    """Reads a saved partition, listed or computed, for these data; `fits` says whether they are the right ones."""
    text = read_text(path)
    if f'"{FORMAT}"' not in text[:10_000]:
        return ListedPartition.from_text(path, text)
    with told_as_damage(path):
        return _cooked(json.loads(text), dataset)


def _cooked(recipe: Any, dataset: Dataset) -> LazyPartition:
    check_fields(recipe, FORMAT, FIELDS)
    maker = splits.build(recipe["split"])
    if not isinstance(maker, LazySplit):
        raise InputError(f"split '{maker.name}' lists its clients and has no recipe")
    check_seed(recipe["seed"])
    of = (maker, recipe["clients"], recipe["seed"], recipe["data"], recipe["samples"])
    found = LazyPartition(*of, None)
    if found.hash != recipe["hash"]:
        raise InputError(f"its hash is {recipe['hash']!r} but its recipe gives '{found.hash}'")
    if not found.fits(dataset):
        return found
    maker.check(dataset, found.clients)
    return LazyPartition(*of, maker.dealer(dataset, found.clients, found.seed))
