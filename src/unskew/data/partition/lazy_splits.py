"""Splits for any number of clients: ranges of the training set, and clients that draw samples for themselves."""

from __future__ import annotations

import hashlib
from typing import ClassVar

import numpy as np
from numpy.random import Philox, RandomState
from numpy.typing import NDArray

from unskew.base import seeds
from unskew.base.errors import InputError
from unskew.base.registry import param, to_table
from unskew.data.dataset import Dataset
from unskew.data.partition.base import Ints
from unskew.data.partition.lazy import Dealer, LazyPartition
from unskew.data.partition.splits import Split, check_seed, check_whole, splits

MOST_CLIENTS = 10**12


class LazySplit(Split):
    """A split that gives a dealer instead of everyone's indices."""

    shared: ClassVar[bool] = False
    """Whether two clients may hold the same sample."""

    def cut(self, dataset: Dataset, clients: int, seed: int) -> LazyPartition:
        """Which client holds which sample; the same arguments give the same partition."""
        check_whole("the number of clients", clients)
        self.check(dataset, clients)
        check_seed(seed)
        origin = (clients, seed, dataset.fingerprint(), len(dataset.train))
        return LazyPartition(to_table(self), *origin, self.dealer(dataset, clients, seed), self.shared)

    def dealer(self, dataset: Dataset, clients: int, seed: int) -> Dealer:
        """Computes what a client holds."""
        raise TypeError(f"{type(self).__name__} must define dealer(dataset, clients, seed)")


@splits.register("ranges")
class Ranges(LazySplit):
    """A range of the training set per client, computed when needed; sizes differ by at most one.

    In the order of the data set, or with `shuffle` of a random order: then the clients are those of `iid`.
    """

    shuffle: bool = param(default=False, doc="ranges of a random order instead of the data set's own")

    @property
    def draws(self) -> bool:
        """Only an order."""
        return self.shuffle

    def dealer(self, dataset: Dataset, clients: int, seed: int) -> Dealer:
        """Keeps one order of the samples at most."""
        samples = len(dataset.train)
        return _Ranges(samples, clients, RandomState(seed).permutation(samples) if self.shuffle else None)


@splits.register("virtual")
class Virtual(LazySplit):
    """Each client draws samples for itself when needed: any number of clients on any data; they share samples.

    A client holds no sample twice. With `alpha` it draws its label shares from a Dirichlet distribution of its own,
    then samples of those labels; a class that it holds completely is passed over.
    """

    samples: int = param(default=18, ge=1, doc="samples that each client draws")
    alpha: float | None = param(
        default=None, gt=0, le=1e6, doc="concentration of a client's label shares; none: labels as in the data"
    )

    shared = True

    def check(self, dataset: Dataset, clients: int) -> None:
        """As many clients as one likes, none larger than the data set."""
        if not 1 <= clients <= MOST_CLIENTS:
            raise InputError(f"virtual: the number of clients must be in 1..{MOST_CLIENTS}, got {clients}")
        if self.samples > len(dataset.train):
            raise InputError(
                f"virtual: a client draws {self.samples} samples, the data have {len(dataset.train)}; "
                "take fewer samples per client"
            )

    def dealer(self, dataset: Dataset, clients: int, seed: int) -> Dealer:
        """Keeps the samples of each class if labels are skewed, else nothing."""
        if self.alpha is None:
            return _Draws(seed, self.samples, len(dataset.train))
        return _SkewedDraws(seed, self.samples, dataset, self.alpha)


class _Ranges(Dealer):
    """Client k holds the samples from `_start(k)` to `_start(k + 1)`."""

    def __init__(self, samples: int, clients: int, order: Ints | None) -> None:
        self._each, self._rest = divmod(samples, clients)
        self._order = order
        if order is not None:
            order.flags.writeable = False

    def _start(self, client: int) -> int:
        return client * self._each + min(client, self._rest)

    def hold(self, client: int) -> Ints:
        """The client's range."""
        start, stop = self._start(client), self._start(client + 1)
        return np.arange(start, stop) if self._order is None else self._order[start:stop]

    def sizes(self, clients: Ints) -> Ints:
        """Equal but for one sample."""
        return self._each + (clients < self._rest)

    def total(self, clients: int) -> int:
        """All samples."""
        return clients * self._each + self._rest


class _Draws(Dealer):
    """Every client draws its samples from all, in a stream of its own."""

    def __init__(self, seed: int, size: int, samples: int) -> None:
        self._seed, self._size, self._samples = seed, size, samples

    def hold(self, client: int) -> Ints:
        """The client's draw: no sample twice."""
        count = 2 * self._size
        if count > self._samples:
            return np.argsort(self._numbers(client, self._samples), kind="stable")[: self._size]
        chosen: dict[int, None] = {}
        while len(chosen) < self._size:
            chosen = dict.fromkeys((self._numbers(client, count) % self._samples).tolist())
            count *= 2
        return np.fromiter(chosen, np.int64, self._size)

    def sizes(self, clients: Ints) -> Ints:
        """All equal."""
        return np.full(len(clients), self._size)

    def total(self, clients: int) -> int:
        """What all clients draw together."""
        return clients * self._size

    def _numbers(self, client: int, count: int) -> NDArray[np.uint64]:
        """The first 64-bit numbers of the client's stream: a hash takes a tenth of a generator's time to set up."""
        name = f"{self._seed}/virtual/{client}".encode()
        return np.frombuffer(hashlib.shake_128(name).digest(8 * count), "<u8")


class _SkewedDraws(_Draws):
    """Every client draws its label shares first, then samples of those labels."""

    def __init__(self, seed: int, size: int, dataset: Dataset, alpha: float) -> None:
        super().__init__(seed, size, len(dataset.train))
        labels = dataset.train.y.cpu().numpy()
        self._room = np.bincount(labels, minlength=dataset.num_classes)
        self._by_class = np.split(np.argsort(labels, kind="stable"), np.cumsum(self._room)[:-1])
        self._alpha = np.full(dataset.num_classes, alpha)

    def hold(self, client: int) -> Ints:
        """The client's draw: no sample twice."""
        # RandomState's draws are frozen for good, unlike those of numpy's Generator; Philox needs no long seeding
        rng = RandomState(Philox(key=seeds.derive(self._seed, "virtual", client=client)))
        counts = self._counts(rng)
        drawn = [
            self._by_class[label][_distinct(int(self._room[label]), int(counts[label]), rng)]
            for label in np.flatnonzero(counts)
        ]
        return rng.permutation(np.concatenate(drawn))

    def _counts(self, rng: RandomState) -> Ints:
        """How many samples of each class, none with more than there are."""
        shares = rng.dirichlet(self._alpha)
        if np.isnan(shares).any():  # a tiny alpha underflows; its limit is one class at random
            shares = np.eye(1, len(shares), rng.randint(len(shares)))[0]
        counts = np.zeros(len(shares), np.int64)
        while (left := self._size - int(counts.sum())) > 0:
            shares = shares * (counts < self._room)
            if shares.sum() == 0:
                shares = (counts < self._room).astype(np.float64)
            shares = shares / shares.sum()
            counts = np.minimum(counts + rng.multinomial(left, shares), self._room)
        return counts


def _distinct(number: int, wanted: int, rng: RandomState) -> Ints:
    """So many different numbers below `number`, in random order; few of many cost no more than they are."""
    if 3 * wanted > number:
        return rng.permutation(number)[:wanted]
    chosen: dict[int, None] = {}
    while len(chosen) < wanted:
        chosen |= dict.fromkeys(rng.randint(number, size=wanted - len(chosen), dtype=np.int64).tolist())
    return np.fromiter(chosen, np.int64, wanted)
