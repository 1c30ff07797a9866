"""Partitions that list every client's samples, and their form as JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from unskew.base.errors import InputError
from unskew.data.partition.base import BLOCK, Ints, Partition, check_fields

FORMAT = "unskew-partition-1"
FIELDS: dict[str, tuple[type, ...]] = {
    "split": (dict,),
    "seed": (int, type(None)),
    "data": (str,),
    "samples": (int,),
    "hash": (str,),
    "clients": (list,),
}
ORIGIN = ("samples", "split", "seed", "data")
_CLIENTS = '"clients": ['
_PIECE = 1 << 17


@dataclass(frozen=True, eq=False)
class ListedPartition(Partition):
    """Client k holds the samples `indices[offsets[k]:offsets[k + 1]]`; none belongs to two clients unless `shared`."""

    indices: Ints
    offsets: Ints
    samples: int
    split: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None
    data: str = ""
    shared: bool = False

    def __post_init__(self) -> None:
        for name in ("indices", "offsets"):
            frozen = np.array(getattr(self, name), dtype=np.int64)
            frozen.flags.writeable = False
            object.__setattr__(self, name, frozen)
        _check(self.indices, self.offsets, self.samples, self.shared)

    @classmethod
    def from_lists(cls, lists: Sequence[ArrayLike], samples: int, **origin: Any) -> ListedPartition:
        """A partition from one list of sample indices per client."""
        arrays = [np.asarray(part, dtype=np.int64).reshape(-1) for part in lists]
        indices = np.concatenate(arrays) if arrays else np.empty(0, np.int64)
        return cls(indices, offsets_of([len(part) for part in arrays]), samples, **origin)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> Ints:
        client = self._check_number(client)
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    @property
    def sizes(self) -> Ints:
        """How many samples each client holds."""
        return np.diff(self.offsets)

    @property
    def total(self) -> int:
        """How many samples all clients hold together."""
        return len(self.indices)

    def sizes_of(self, clients: ArrayLike) -> Ints:
        """How many samples each of these clients holds."""
        numbers = np.asarray(clients, dtype=np.int64)
        return self.offsets[numbers + 1] - self.offsets[numbers]

    def concatenate(self, clients: Ints) -> tuple[Ints, Ints]:
        """The samples of these clients, one client after the other, and how many each one has."""
        sizes = self.sizes_of(clients)
        # position p of the result is p - (where its client starts there) after the client's start in `indices`
        shifts = np.repeat(self.offsets[clients] - offsets_of(sizes)[:-1], sizes)
        return self.indices[np.arange(len(shifts)) + shifts], sizes

    @cached_property
    def hash(self) -> str:
        """A short hash of who holds what, in which order: the same on every machine."""
        digest = hashlib.sha256(np.ascontiguousarray(self.offsets, "<i8").data)
        digest.update(np.ascontiguousarray(self.indices, "<i8").data)
        return digest.hexdigest()[:16]

    def to_json(self) -> bytes:
        """The document that `load_partition` reads: the origin, and a list of samples per client."""
        document: dict[str, Any] = {
            "format": FORMAT,
            "split": self.split,
            "seed": self.seed,
            "data": self.data,
            "samples": self.samples,
            "hash": self.hash,
            **({"shared": True} if self.shared else {}),
            "clients": [],
        }
        lists = ", ".join(self._write_lists())
        return f"{json.dumps(document)[:-2]}{lists}]}}\n".encode()

    def _write_lists(self) -> Iterator[str]:
        for start in range(0, len(self), BLOCK):
            ends = self.offsets[start : start + BLOCK + 1]
            flat, ends = self.indices[ends[0] : ends[-1]].tolist(), (ends - ends[0]).tolist()
            yield json.dumps([flat[first:last] for first, last in pairwise(ends)])[1:-1]

    @classmethod
    def from_json(cls, text: str) -> ListedPartition:
        """The partition that such a document describes; an error says what is wrong with it."""
        pieces = _cut_text(text)
        origin = json.loads(next(pieces))
        check_fields(origin, FORMAT, FIELDS)
        sizes, indices = _read_lists(chain([origin.pop("clients")], map(json.loads, pieces)))
        partition = cls(
            indices, offsets_of(sizes), **{key: origin[key] for key in ORIGIN}, shared=origin.get("shared") is True
        )
        if partition.hash != origin["hash"]:
            raise InputError(f"its hash is {origin['hash']!r} but its clients give '{partition.hash}'")
        return partition


def offsets_of(sizes: ArrayLike) -> Ints:
    """Where each client's samples start in the flat list, and where the last one's end."""
    return np.concatenate([[0], np.cumsum(np.asarray(sizes, dtype=np.int64))]).astype(np.int64)


def _cut_text(text: str) -> Iterator[str]:
    """The document, without its clients if it was written here; then the clients, some at a time.

    A million small lists at once would take a gigabyte, and minutes where the garbage collector walks over them.
    """
    head, found, lists = text.rstrip().rpartition(_CLIENTS)
    if not found or not lists.endswith("]]}"):
        yield text
        return
    yield f"{head}{found}]}}"
    start, end = 0, len(lists) - 2
    while start < end:
        cut = lists.find("], [", start + _PIECE, end)
        stop = cut + 1 if cut >= 0 else end
        yield f"[{lists[start:stop]}]"
        start = stop + 2


def _read_lists(blocks: Iterator[Any]) -> tuple[Ints, Ints]:
    """Sizes and indices of the clients in these lists of lists."""
    sizes, indices = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for clients in blocks:
        # type() and not isinstance(): true and false would pass as the numbers 1 and 0
        if set(map(type, clients)) - {list} or set(map(type, chain.from_iterable(clients))) - {int}:
            raise InputError("'clients' must hold one list of whole numbers per client")
        sizes.append(np.fromiter(map(len, clients), np.int64, len(clients)))
        try:
            indices.append(np.fromiter(chain.from_iterable(clients), np.int64, int(sizes[-1].sum())))
        except OverflowError:
            raise InputError("a sample index does not fit into 64 bits") from None
    return np.concatenate(sizes), np.concatenate(indices)


def _check(indices: Ints, offsets: Ints, samples: int, shared: bool) -> None:
    if len(offsets) < 2:
        raise InputError("a partition needs at least one client, got none")
    if offsets[0] != 0 or offsets[-1] != len(indices) or (np.diff(offsets) < 0).any():
        raise InputError(f"offsets must rise from 0 to {len(indices)}, the number of indices")
    if not len(indices):
        return
    low, high = int(indices.min()), int(indices.max())
    if low < 0 or high >= samples:
        raise InputError(f"sample indices must be in 0..{samples - 1}, got {low}..{high}")
    owned = indices + samples * np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)) if shared else indices
    ordered = np.sort(owned)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        times = int(np.count_nonzero(ordered == twice[0]))
        whose = "a client holds a sample once" if shared else "a sample belongs to one client"
        raise InputError(f"sample {int(twice[0]) % samples} is held {times} times; {whose}")
