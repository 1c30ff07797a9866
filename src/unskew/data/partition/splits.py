"""How the training samples are cut into clients: evenly, by skewed labels, or by domain; the registry of splits."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray

from unskew.base.errors import InputError
from unskew.base.registry import Component, Registry, param, to_table
from unskew.data.dataset import Dataset
from unskew.data.partition.base import Ints, Partition
from unskew.data.partition.listed import ListedPartition, offsets_of

Cap = Literal["integer", "real", "none"]


class Split(Component):
    """Cuts the training samples of a data set into clients."""

    def cut(self, dataset: Dataset, clients: int, seed: int) -> Partition:
        """Which client holds which sample; the same arguments give the same partition."""
        self.check(dataset, clients)
        check_seed(seed)
        assigned: Any = self.assign(dataset, clients, RandomState(seed))
        if not isinstance(assigned, (tuple, list)) or len(assigned) != 2:
            got = " ".join(repr(assigned).split())[:60]
            raise InputError(
                f"split {self.name}.assign must return (indices, sizes), got {got}; see CONTRIBUTING.md, More examples"
            )
        indices, sizes = assigned
        origin: dict[str, Any] = {"split": to_table(self), "seed": seed, "data": dataset.fingerprint()}
        return ListedPartition(indices, offsets_of(sizes), len(dataset.train), **origin)

    def assign(self, dataset: Dataset, clients: int, rng: RandomState) -> tuple[Ints, Ints]:
        """The sample indices, client after client, and how many of them each client gets."""
        raise TypeError(f"{type(self).__name__} must define assign(dataset, clients, rng)")

    def check(self, dataset: Dataset, clients: int) -> None:
        """An error where the data cannot be cut into so many clients."""
        samples = len(dataset.train)
        if not 1 <= clients <= samples:
            more = "; split 'virtual' takes more" if clients > samples else ""
            raise InputError(
                f"the number of clients must be in 1..{samples}, the number of samples; got {clients}{more}"
            )

    def fixed_clients(self, dataset: Dataset) -> int | None:
        """The number of clients where the split itself decides it, else None."""
        return None


splits: Registry[Split] = Registry("split", Split)


def check_seed(seed: int) -> None:
    """An error unless a split can start from this seed."""
    if not 0 <= seed < 2**32:
        raise InputError(f"the seed of a split must be in 0..{2**32 - 1}, got {seed}")


@splits.register("iid")
class Iid(Split):
    """Random and even: sizes differ by at most one."""

    def assign(self, dataset: Dataset, clients: int, rng: RandomState) -> tuple[Ints, Ints]:
        """A random order of all samples, cut evenly."""
        return rng.permutation(len(dataset.train)), _even_sizes(len(dataset.train), clients)


@splits.register("dirichlet")
class Dirichlet(Split):
    """Each class is dealt out with shares drawn from a Dirichlet distribution; full clients are passed over.

    The whole draw is repeated until the smallest client has `min_size` samples.
    """

    alpha: float = param(gt=0, le=1e6, doc="concentration: the smaller, the more skewed the labels")
    min_size: int = param(
        default=10, ge=0, doc="samples that the smallest client must get", source="FedSOL, NIID-Bench"
    )
    tries: int = param(default=1000, ge=1, doc="draws before giving up on min_size")
    cap: Cap = param(
        default="integer", doc="a client is full at n // N samples, at n / N, or never", source="FedSOL: integer"
    )

    def assign(self, dataset: Dataset, clients: int, rng: RandomState) -> tuple[Ints, Ints]:
        """The first draw whose smallest client is large enough."""
        samples = len(dataset.train)
        if clients * self.min_size > samples:
            raise InputError(
                f"{self.name}: {clients} clients of at least {self.min_size} samples need {clients * self.min_size}, "
                f"the data have {samples}; take fewer clients or a smaller min_size"
            )
        by_class = _find_positions(_labels(dataset), dataset.num_classes)
        full = {"integer": samples // clients, "real": samples / clients, "none": np.inf}[self.cap]
        smallest, short = 0, clients
        for draw in range(1, self.tries + 1):
            indices, sizes = _deal(by_class, clients, self.alpha, full, rng)
            if sizes.min() >= self.min_size:
                return indices, sizes
            smallest, short = max(smallest, int(sizes.min())), min(short, int((sizes < self.min_size).sum()))
            if draw >= 20 and short >= 10:  # the chance that a draw leaves none short is about exp(-short)
                break
        raise InputError(
            f"{self.name}: after {draw} draws the smallest of {clients} clients has at most {smallest} samples, "
            f"expected {self.min_size}; take an alpha larger than {self.alpha:g}, fewer clients or a smaller min_size"
        )


@splits.register("dirichlet_uncapped")
class DirichletUncapped(Split):
    """Each class is dealt out with shares drawn from a Dirichlet distribution, however large a client gets."""

    alpha: float = param(gt=0, le=1e6, doc="concentration: the smaller, the more skewed labels and sizes")
    min_size: int = param(default=10, ge=0, doc="samples that the smallest client must get")
    tries: int = param(default=1000, ge=1, doc="draws before giving up on min_size")

    def assign(self, dataset: Dataset, clients: int, rng: RandomState) -> tuple[Ints, Ints]:
        """As dirichlet, without its cap."""
        return splits.build({**to_table(self), "name": "dirichlet", "cap": "none"}).assign(dataset, clients, rng)


@splits.register("shards")
class Shards(Split):
    """Each class is cut into shards and every client gets `per_client` of them: at most that many labels each."""

    per_client: int = param(ge=1, doc="shards per client")

    def assign(self, dataset: Dataset, clients: int, rng: RandomState) -> tuple[Ints, Ints]:
        """Shuffled labels, `per_client` to a client; a random shard left of each label goes with it."""
        by_class = _find_positions(_labels(dataset), dataset.num_classes)
        present = [label for label, members in enumerate(by_class) if len(members)]
        total = clients * self.per_client
        if total < len(present):
            raise InputError(
                f"shards: {clients} clients x {self.per_client} shards cannot hold {len(present)} classes; "
                f"take per_client of at least {-(-len(present) // clients)} or more clients"
            )
        wanted = np.repeat(present, total // len(present))
        rng.shuffle(wanted)
        wanted = np.resize(wanted, total)  # where the shards do not come out even, from the start again
        listed = np.bincount(wanted)
        left = {label: _cut_shards(by_class[label], int(listed[label]), label) for label in present}
        taken = [left[label].pop(_pick(len(left[label]), rng)) for label in wanted.tolist()]
        sizes = np.array([len(shard) for shard in taken]).reshape(clients, -1).sum(axis=1)
        return np.concatenate(taken), sizes


@splits.register("domain")
class Domain(Split):
    """One domain per client; with a multiple of the number of domains, each domain is shared out evenly."""

    def assign(self, dataset: Dataset, clients: int, rng: RandomState) -> tuple[Ints, Ints]:
        """Neighbouring clients share a domain."""
        members = _find_groups(self.name, dataset)
        if clients % len(members):
            raise InputError(
                f"domain: data '{dataset.name}' have {len(members)} domains, got {clients} clients; "
                f"take {len(members)} clients or a multiple of it"
            )
        each = clients // len(members)
        if min(map(len, members)) < each:
            raise InputError(f"domain: a domain has fewer samples than its {each} clients; take fewer clients")
        if each > 1:
            members = [rng.permutation(group) for group in members]
        return np.concatenate(members), np.concatenate([_even_sizes(len(group), each) for group in members])

    def fixed_clients(self, dataset: Dataset) -> int | None:
        """The number of domains."""
        return len(_find_groups(self.name, dataset))


@splits.register("natural")
class Natural(Split):
    """The clients that the data set comes with, such as writers or hospitals."""

    def assign(self, dataset: Dataset, clients: int, rng: RandomState) -> tuple[Ints, Ints]:
        """Every group is a client, its samples in their order."""
        members = _find_groups(self.name, dataset)
        if clients != len(members):
            raise InputError(
                f"natural: data '{dataset.name}' have {len(members)} clients, got {clients}; take {len(members)}"
            )
        return np.concatenate(members), np.array([len(group) for group in members])

    def fixed_clients(self, dataset: Dataset) -> int | None:
        """The number of natural clients."""
        return len(_find_groups(self.name, dataset))


def _labels(dataset: Dataset) -> Ints:
    return dataset.train.y.cpu().numpy()


def _find_positions(keys: Ints, kinds: int) -> list[Ints]:
    """For each of the keys 0..kinds-1, where it stands, in rising order."""
    order = np.argsort(keys, kind="stable")
    return np.split(order, np.cumsum(np.bincount(keys, minlength=kinds))[:-1])


def _even_sizes(total: int, parts: int) -> Ints:
    return np.full(parts, total // parts) + (np.arange(parts) < total % parts)


def _find_groups(split: str, dataset: Dataset) -> list[Ints]:
    if dataset.groups is None:
        raise InputError(f"{split}: data '{dataset.name}' have no groups; take another split, such as dirichlet:0.1")
    members = _find_positions(dataset.groups.cpu().numpy().astype(np.int64), len(dataset.group_names))
    empty = [group for group, member in enumerate(members) if not len(member)]
    if empty:
        raise InputError(
            f"{split}: group {empty[0]} of data '{dataset.name}' has no training samples; "
            "remove it or number the groups without gaps"
        )
    return members


def _deal(by_class: list[Ints], clients: int, alpha: float, full: float, rng: RandomState) -> tuple[Ints, Ints]:
    """One draw: every class in turn among the clients that hold less than `full`.

    The order of random calls, the shuffles in place included, is that of FedSOL's code: seeds give the same splits.
    """
    sizes = np.zeros(clients, np.int64)
    owners = []
    for members in by_class:
        rng.shuffle(members)
        shares = _draw_shares(sizes, alpha, full, rng)
        ends = (np.cumsum(shares) * len(members)).astype(np.int64)
        ends[-1] = len(members)  # what rounding leaves goes to the last client, full or not: as published
        gained = np.diff(ends, prepend=0)
        owners.append(np.repeat(np.arange(clients), gained))
        sizes += gained
    indices = np.concatenate(by_class)[np.argsort(np.concatenate(owners), kind="stable")]
    _shuffle_each(indices, sizes, rng)
    return indices, sizes


def _draw_shares(sizes: Ints, alpha: float, full: float, rng: RandomState) -> NDArray[np.float64]:
    shares: NDArray[np.float64] = rng.dirichlet(np.full(len(sizes), alpha))
    if np.isnan(shares).any():  # a tiny alpha underflows; its limit is one client at random
        shares = _one_hot(rng.randint(len(sizes)), len(sizes))
    shares *= sizes < full
    total = shares.sum()
    return shares / total if total > 0 else _one_hot(int(sizes.argmin()), len(sizes))


def _one_hot(position: int, length: int) -> NDArray[np.float64]:
    row = np.zeros(length)
    row[position] = 1
    return row


def _shuffle_each(indices: Ints, sizes: Ints, rng: RandomState) -> None:
    ends = np.cumsum(sizes).tolist()
    for start, end in zip([0, *ends], ends, strict=False):
        if end - start > 1:
            rng.shuffle(indices[start:end])


def _pick(number: int, rng: RandomState) -> int:
    """A random position; a whole permutation is drawn for it, as published, unless that would take minutes."""
    return int(rng.permutation(number)[0] if number <= 1000 else rng.randint(number))


def _cut_shards(members: Ints, number: int, label: int) -> list[Ints]:
    """Equal shards in index order; what is left over goes one by one to the first."""
    size = len(members) // number
    if size == 0:
        raise InputError(
            f"shards: class {label} has {len(members)} samples for {number} shards; "
            "take a smaller per_client or fewer clients"
        )
    whole, rest = members[: size * number].reshape(number, size), members[size * number :]
    return [np.append(shard, rest[i : i + 1]) for i, shard in enumerate(whole)]
