"""Which training samples each client holds, and the file that keeps it."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unskew.data.dataset import Dataset
from unskew.errors import InputError

Ints = NDArray[np.int64]
FORMAT = "unskew-partition-1"
FIELDS: dict[str, tuple[type, ...]] = {
    "split": (dict,),
    "seed": (int, type(None)),
    "data": (str,),
    "samples": (int,),
    "hash": (str,),
    "clients": (list,),
}


@dataclass(frozen=True, eq=False)
class Partition:
    """Client k holds the samples `indices[offsets[k]:offsets[k + 1]]`; no sample belongs to two clients."""

    indices: Ints
    offsets: Ints
    samples: int
    """How many training samples the data set has; clients may hold fewer."""
    split: dict[str, Any] = field(default_factory=dict)
    """Name and options of the split that made it."""
    seed: int | None = None
    data: str = ""
    """Fingerprint of the data set it was made for."""

    def __post_init__(self) -> None:
        for name in ("indices", "offsets"):
            frozen = np.array(getattr(self, name), dtype=np.int64)
            frozen.flags.writeable = False
            object.__setattr__(self, name, frozen)
        _check(self.indices, self.offsets, self.samples)

    @classmethod
    def from_lists(cls, lists: Sequence[ArrayLike], samples: int, **origin: Any) -> Partition:
        """A partition from one list of sample indices per client."""
        arrays = [np.asarray(part, dtype=np.int64).reshape(-1) for part in lists]
        indices = np.concatenate(arrays) if arrays else np.empty(0, np.int64)
        return cls(indices, offsets_of([len(part) for part in arrays]), samples, **origin)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> Ints:
        if not -len(self) <= client < len(self):
            raise IndexError(f"client must lie in 0..{len(self) - 1}, got {client}")
        client %= len(self)
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    def __iter__(self) -> Iterator[Ints]:
        return (self[client] for client in range(len(self)))

    @property
    def sizes(self) -> Ints:
        """How many samples each client holds."""
        return np.diff(self.offsets)

    @property
    def owners(self) -> Ints:
        """The client that holds each entry of `indices`."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def fits(self, dataset: Dataset) -> bool:
        """Whether it was made for this data set, as far as it says."""
        return self.samples == len(dataset.train) and self.data in ("", dataset.fingerprint())

    @cached_property
    def hash(self) -> str:
        """A short hash of who holds what, in which order: the same on every machine."""
        digest = hashlib.sha256(self.offsets.astype("<i8").tobytes())
        digest.update(self.indices.astype("<i8").tobytes())
        return digest.hexdigest()[:16]

    def save(self, path: str | Path) -> None:
        """Writes the partition as JSON; a file that holds anything else is never replaced."""
        flat, ends = self.indices.tolist(), self.offsets.tolist()
        document = {
            "format": FORMAT,
            "split": self.split,
            "seed": self.seed,
            "data": self.data,
            "samples": self.samples,
            "hash": self.hash,
            "clients": [flat[start:end] for start, end in pairwise(ends)],
        }
        text = json.dumps(document) + "\n"
        _write(Path(path), text)

    @classmethod
    def load(cls, path: str | Path) -> Partition:
        """Reads a saved partition; a damaged file is refused with the reason."""
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"cannot read partition '{path}': {error.strerror}; check the path") from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"partition '{path}' is not valid JSON ({error}); save it again") from None
        try:
            return cls._from_document(document)
        except InputError as error:
            raise InputError(f"partition '{path}' is damaged: {error}; save it again") from None

    @classmethod
    def _from_document(cls, document: Any) -> Partition:
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise InputError(f"expected an object whose format is '{FORMAT}'")
        for key, kinds in FIELDS.items():
            if key not in document or not isinstance(document[key], kinds):
                raise InputError(f"'{key}' is {'of the wrong type' if key in document else 'missing'}")
        clients = document["clients"]
        # type() and not isinstance(): true and false would pass as the numbers 1 and 0
        if set(map(type, clients)) - {list} or set(map(type, chain.from_iterable(clients))) - {int}:
            raise InputError("'clients' must hold one list of whole numbers per client")
        sizes = [len(part) for part in clients]
        try:
            indices = np.fromiter(chain.from_iterable(clients), np.int64, sum(sizes))
        except OverflowError:
            raise InputError("a sample index does not fit into 64 bits") from None
        origin = {key: document[key] for key in ("samples", "split", "seed", "data")}
        partition = cls(indices, offsets_of(sizes), **origin)
        if partition.hash != document["hash"]:
            raise InputError(f"its hash is {document['hash']!r} but its clients give '{partition.hash}'")
        return partition

    def export_csv(self, path: str | Path, labels: ArrayLike) -> None:
        """Writes one row `client,index,label` per sample held; a file that holds anything else is never replaced."""
        rows = np.stack([self.owners, self.indices, np.asarray(labels)[self.indices]], axis=1)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["client", "index", "label"])
        writer.writerows(rows.tolist())
        _write(Path(path), text.getvalue())


def offsets_of(sizes: ArrayLike) -> Ints:
    """Where each client's samples start in the flat list, and where the last one's end."""
    return np.concatenate([[0], np.cumsum(np.asarray(sizes, dtype=np.int64))]).astype(np.int64)


def _check(indices: Ints, offsets: Ints, samples: int) -> None:
    if len(offsets) < 2:
        raise InputError("a partition needs at least one client, got none")
    if offsets[0] != 0 or offsets[-1] != len(indices) or (np.diff(offsets) < 0).any():
        raise InputError(f"offsets must rise from 0 to {len(indices)}, the number of indices")
    if not len(indices):
        return
    low, high = int(indices.min()), int(indices.max())
    if low < 0 or high >= samples:
        raise InputError(f"sample indices must lie in 0..{samples - 1}, got {low}..{high}")
    held = np.bincount(indices)
    if held.max() > 1:
        raise InputError(f"sample {int(held.argmax())} is held {int(held.max())} times; a sample belongs to one client")


def refuse_other(path: Path, content: bytes) -> None:
    """An error where something else than this content lies at the path."""
    try:
        if path.exists() and (not path.is_file() or path.read_bytes() != content):
            raise InputError(f"'{path}' exists and holds something else; remove it or choose another name")
    except OSError as error:
        raise InputError(f"cannot write '{path}': {error.strerror}; choose a writable place") from None


def _write(path: Path, text: str) -> None:
    """Writes all or nothing, and never over a file that holds something else."""
    refuse_other(path, text.encode())
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", newline="") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"cannot write '{path}': {error.strerror}; choose a writable place") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
