"""What a split is: something with a name and options that says which client holds which training samples."""

from __future__ import annotations

from typing import Any

from numpy.random import RandomState

from unskew.core.registry import Component, Registry, to_table
from unskew.data.dataset import Dataset
from unskew.data.holdings import Holdings, Ints
from unskew.data.partition import Partition, offsets_of
from unskew.errors import InputError


class Split(Component):
    """Cuts the training samples of a data set into clients."""

    def cut(self, dataset: Dataset, clients: int, seed: int) -> Holdings:
        """Which client holds which sample; the same arguments give the same partition."""
        self.check(dataset, clients)
        check_seed(seed)
        indices, sizes = self.assign(dataset, clients, RandomState(seed))
        origin: dict[str, Any] = {"split": to_table(self), "seed": seed, "data": dataset.fingerprint()}
        return Partition(indices, offsets_of(sizes), len(dataset.train), **origin)

    def assign(self, dataset: Dataset, clients: int, rng: RandomState) -> tuple[Ints, Ints]:
        """The sample indices, client after client, and how many of them each client gets."""
        raise TypeError(f"{type(self).__name__} must define assign(dataset, clients, rng)")

    def check(self, dataset: Dataset, clients: int) -> None:
        """An error where the data cannot be cut into so many clients."""
        samples = len(dataset.train)
        if not 1 <= clients <= samples:
            more = "; split 'virtual' takes more" if clients > samples else ""
            raise InputError(
                f"the number of clients must lie in 1..{samples}, the number of samples; got {clients}{more}"
            )

    def fixed_clients(self, dataset: Dataset) -> int | None:
        """The number of clients where the split itself decides it, else None."""
        return None


splits: Registry[Split] = Registry("split", Split)


def check_seed(seed: int) -> None:
    """An error unless a split can start from this seed."""
    if not 0 <= seed < 2**32:
        raise InputError(f"the seed of a split must lie in 0..{2**32 - 1}, got {seed}")
