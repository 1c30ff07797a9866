"""How the training samples are cut into clients: evenly, by skewed labels, or by domain; the registry of splits."""

from __future__ import annotations

import logging
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray

from unskew.base.errors import InputError
from unskew.base.registry import Component, Registry, param, to_table
from unskew.data.dataset import Dataset
from unskew.data.partition.base import Ints, Partition
from unskew.data.partition.listed import ListedPartition, offsets_of

log = logging.getLogger(__name__)
Cap = Literal["integer", "real", "none"]


class Split(Component):
    """Cuts the training samples of a data set into clients."""

    may_share: ClassVar[bool] = False
    """Whether two clients may hold the same sample."""

    def cut(self, dataset: Dataset, clients: int, seed: int) -> Partition:
        """Which client holds which sample; the same arguments give the same partition."""
        check_whole("the number of clients", clients)
        self.check(dataset, clients)
        check_seed(seed)
        assigned: Any = self.assign(dataset, clients, RandomState(seed))
        if not isinstance(assigned, (tuple, list)) or len(assigned) != 2:
            got = " ".join(repr(assigned).split())[:60]
            raise InputError(
                f"split {self.name}.assign must return (indices, sizes), got {got}; see CONTRIBUTING.md, More examples"
            )
        indices, sizes = (self._read_whole(what, got) for what, got in zip(("indices", "sizes"), assigned, strict=True))
        if len(sizes) != clients or (sizes < 0).any() or sizes.sum() != len(indices):
            raise InputError(
                f"split {self.name}.assign must return a size for each of {clients} clients, which add up to the "
                f"{len(indices)} indices; got {len(sizes)} that add up to {sizes.sum()}, the smallest "
                f"{sizes.min() if len(sizes) else 'none'}"
            )
        origin: dict[str, Any] = {"split": to_table(self), "seed": seed, "data": dataset.fingerprint()}
        shared = self.may_share and len(np.unique(indices)) < len(indices)
        try:
            return ListedPartition(indices, offsets_of(sizes), len(dataset.train), **origin, shared=shared)
        except InputError as error:
            raise InputError(f"split {self.name}.assign: {error}") from None

    def _read_whole(self, what: str, given: Any) -> NDArray[Any]:
        """The list of whole numbers; others would be cut off."""
        try:
            found = np.asarray(given)
        except (ValueError, TypeError):  # lists of different lengths
            found = np.empty((), object)
        if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
            got = f"{found.dtype} of shape {list(found.shape)}"
            raise InputError(f"split {self.name}.assign must return {what} as a list of whole numbers, got {got}")
        return found

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

    @property
    def draws(self) -> bool:
        """Whether its seed plays any part."""
        return True

    def fixed_clients(self, dataset: Dataset) -> int | None:
        """The number of clients where the split itself decides it, else None."""
        return None


splits: Registry[Split] = Registry("split", Split)


def check_whole(what: str, given: object) -> None:
    """An error unless it is a whole number."""
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)):
        raise InputError(f"{what} must be a whole number, got {given!r}")


def check_seed(seed: int) -> None:
    """An error unless a split can start from this seed."""
    check_whole("the seed of a split", seed)
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
    tries: int = param(default=1000, ge=1, doc="draws as published, before counts alone are drawn, which is faster")
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
            if draw >= 20 and short >= 5:  # the chance that a draw leaves none short is about exp(-mean of short)
                break
        counts, drawn, largest = _search_counts([len(own) for own in by_class], clients, self, full, rng)
        if counts is not None:
            return _deal_counts(by_class, counts, rng)
        raise InputError(
            f"{self.name}: after {draw + drawn:,} draws the smallest of {clients} clients has at most "
            f"{max(smallest, largest)} samples, expected {self.min_size}; take an alpha larger than {self.alpha:g}, "
            "fewer clients or a smaller min_size"
        )


@splits.register("dirichlet_uncapped")
class DirichletUncapped(Split):
    """Each class is dealt out with shares drawn from a Dirichlet distribution, however large a client gets."""

    alpha: float = param(gt=0, le=1e6, doc="concentration: the smaller, the more skewed labels and sizes")
    min_size: int = param(default=10, ge=0, doc="samples that the smallest client must get")
    tries: int = param(default=1000, ge=1, doc="draws as published, before counts alone are drawn, which is faster")

    def assign(self, dataset: Dataset, clients: int, rng: RandomState) -> tuple[Ints, Ints]:
        """As dirichlet, without its cap."""
        return splits.build({**to_table(self), "name": "dirichlet", "cap": "none"}).assign(dataset, clients, rng)


@splits.register("shards")
class Shards(Split):
    """Each class is cut into shards and every client gets `per_client` of them: at most that many labels each."""

    per_client: int = param(ge=1, doc="shards per client")

    may_share = True  # only where shards do not come out even

    def assign(self, dataset: Dataset, clients: int, rng: RandomState) -> tuple[Ints, Ints]:
        """Shuffled labels, `per_client` to a client; a random shard left of each label goes with it.

        Where shards do not come out even, it is as in FedSOL's code: the list is filled up with labels from its second
        one on, a label without a shard left is passed over, and a client that gets none has those of the one before.
        """
        by_class = _find_positions(_labels(dataset), dataset.num_classes)
        present = [label for label, members in enumerate(by_class) if len(members)]
        total = clients * self.per_client
        if total < len(present):
            raise InputError(
                f"shards: {clients} clients x {self.per_client} shards cannot hold {len(present)} classes; "
                f"take per_client of at least {-(-len(present) // clients)} or more clients"
            )
        each = total // len(present)
        wanted = np.repeat(present, each)
        rng.shuffle(wanted)
        wanted = np.append(wanted, wanted[1 : 1 + total - len(wanted)])
        left = {label: _cut_shards(by_class[label], each, label) for label in present}
        taken = [
            [left[label].pop(_pick(len(left[label]), rng)) for label in own if left[label]]
            for own in wanted.reshape(clients, -1).tolist()
        ]
        for client, own in enumerate(taken):
            if not own:
                taken[client] = taken[client - 1]
        sizes = np.array([sum(map(len, own)) for own in taken])
        return np.concatenate([shard for own in taken for shard in own]), sizes


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

    @property
    def draws(self) -> bool:
        """Clients are the data set's."""
        return False

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


BLOCK, MOST = 1000, 2_000_000
"""Partitions whose counts are drawn at once, and before giving up."""


def _search_counts(
    members: list[int], clients: int, split: Dirichlet, full: float, rng: RandomState
) -> tuple[Ints | None, int, int]:
    """Counts [C, N] of the first of many draws whose smallest client is large enough, or None.

    Besides: how many were drawn, and the largest smallest client seen. At alpha 0.05 one of 17,000 draws of CIFAR-10
    for 100 clients leaves each with 10 samples; a thousand are drawn here in the time of a few as published.
    """
    largest, fewest_short = 0, clients
    for drawn in range(BLOCK, MOST + 1, BLOCK):
        counts = _draw_counts(members, clients, split.alpha, full, rng)
        sizes = counts.sum(1)
        smallest = sizes.min(1)
        if (smallest >= split.min_size).any():
            return counts[int((smallest >= split.min_size).argmax())], drawn, int(smallest.max())
        largest = max(largest, int(smallest.max()))
        fewest_short = min(fewest_short, int((sizes < split.min_size).sum(1).min()))
        if drawn >= 5 * BLOCK and fewest_short >= 5:
            break  # of Poisson numbers whose least of 5,000 is 5, less than one in a million is 0
        if drawn % 20_000 == 0:
            log.info(
                "%s: drew %s partitions, none with %d samples at every client yet", split, f"{drawn:,}", split.min_size
            )
    return None, drawn, largest


def _draw_counts(members: list[int], clients: int, alpha: float, full: float, rng: RandomState) -> Ints:
    """[draws, C, N]: how many samples of each class each client gets, in `BLOCK` draws."""
    counts = np.zeros((BLOCK, len(members), clients), np.int64)
    sizes = np.zeros((BLOCK, clients), np.int64)
    for label, number in enumerate(members):
        shares = rng.dirichlet(np.full(clients, alpha), BLOCK)
        lost = ~np.isfinite(shares).all(1)  # a tiny alpha underflows; its limit is one client at random
        shares[lost] = np.eye(clients)[rng.randint(clients, size=int(lost.sum()))]
        shares *= sizes < full
        total = shares.sum(1, keepdims=True)
        nobody = total[:, 0] <= 0
        shares[nobody] = np.eye(clients)[sizes[nobody].argmin(1)]
        ends = (np.cumsum(shares, 1) / np.where(total > 0, total, 1) * number).astype(np.int64)
        ends[:, -1] = number
        counts[:, label] = np.diff(ends, prepend=0)
        sizes += counts[:, label]
    return counts


def _deal_counts(by_class: list[Ints], counts: Ints, rng: RandomState) -> tuple[Ints, Ints]:
    """Samples of each class at random, as many to each client as `counts` [C, N] says."""
    for members in by_class:
        rng.shuffle(members)
    owners = [np.repeat(np.arange(counts.shape[1]), own) for own in counts]
    indices = np.concatenate(by_class)[np.argsort(np.concatenate(owners), kind="stable")]
    sizes = counts.sum(0)
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
