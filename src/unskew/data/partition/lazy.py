"""Partitions whose clients are computed when they are asked for: nothing is kept per client, so there may be millions.

Their file holds the recipe: the split, its seed, the data's fingerprint and the number of clients.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from unskew.base.errors import InputError
from unskew.data.partition.base import Ints, Partition

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
    """Says what each client holds without keeping it; the order in which clients are asked for does not matter."""

    @abstractmethod
    def hold(self, client: int) -> Ints:
        """The client's sample indices."""

    @abstractmethod
    def sizes(self, clients: Ints) -> Ints:
        """How many samples each of these clients holds."""

    @abstractmethod
    def total(self, clients: int) -> int:
        """How many samples the clients hold together if there are so many of them."""


@dataclass(frozen=True, eq=False)
class LazyPartition(Partition):
    """A number of clients; what one of them holds is computed when it is asked for."""

    split: dict[str, Any]
    clients: int
    seed: int
    data: str
    samples: int
    dealer: Dealer | None
    """None if it was read for other data than it was made for."""
    shared: bool = False

    def __len__(self) -> int:
        return self.clients

    def __getitem__(self, client: int) -> Ints:
        return self._known_dealer.hold(self._check_number(client))

    def sizes_of(self, clients: ArrayLike) -> Ints:
        """How many samples each of these clients holds."""
        return self._known_dealer.sizes(np.asarray(clients, dtype=np.int64))

    @property
    def total(self) -> int:
        """How many samples all clients hold together; a sample that two clients hold counts twice."""
        return self._known_dealer.total(self.clients)

    @property
    def _known_dealer(self) -> Dealer:
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
