"""What every partition can do, whether its clients are listed or computed, and how it is written to a file."""

from __future__ import annotations

import csv
import io
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unskew.base import storage
from unskew.base.errors import InputError, let_pass
from unskew.data.dataset import Dataset, is_old

log = logging.getLogger(__name__)

Ints = NDArray[np.int64]
CSV_ROWS = 10_000_000
BLOCK = 10_000
"""So many clients are turned into text at a time: memory is then that of the text."""


class Partition(ABC):
    """Which training samples each client holds. Nothing here asks for all clients but `__iter__` and `export_csv`."""

    samples: int
    """How many training samples the data set has; clients may hold fewer."""
    split: dict[str, Any]
    """Name and options of the split that made it."""
    seed: int | None
    data: str
    """Fingerprint of the data set it was made for."""
    shared: bool = False
    """Whether two clients may hold the same sample."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, client: int) -> Ints: ...

    @abstractmethod
    def sizes_of(self, clients: ArrayLike) -> Ints:
        """How many samples each of these clients holds."""

    @property
    @abstractmethod
    def total(self) -> int:
        """How many samples all clients hold together."""

    @property
    @abstractmethod
    def hash(self) -> str:
        """A short hash of who holds what, in which order: the same on every machine."""

    @abstractmethod
    def to_json(self) -> bytes:
        """The document that `load_partition` reads."""

    def __iter__(self) -> Iterator[Ints]:
        return (self[client] for client in range(len(self)))

    def concatenate(self, clients: Ints) -> tuple[Ints, Ints]:
        """The samples of these clients, one client after the other, and how many each one has."""
        parts = [self[client] for client in clients.tolist()]
        return np.concatenate([np.empty(0, np.int64), *parts]), np.array([len(part) for part in parts], np.int64)

    def fits(self, dataset: Dataset) -> bool:
        """Whether it was made for this data set, as far as it says."""
        fitting = self.samples == len(dataset.train) and (not self.data or dataset.has_fingerprint(self.data))
        if fitting and is_old(self.data):
            log.warning(
                "the partition %s was saved by an older version, which looked at a sample of the inputs of '%s' only; "
                "that sample is the same, the rest cannot be checked", self.hash, dataset.name,
            )  # fmt: skip
        return fitting

    def save(self, path: str | Path) -> None:
        """Writes the partition as JSON; a file that holds anything else is never replaced."""
        _write(Path(path), self.to_json())

    def export_csv(self, path: str | Path, labels: ArrayLike) -> None:
        """Writes one row `client,index,label` per sample held; a file that holds anything else is never replaced."""
        if self.total > CSV_ROWS:
            raise InputError(
                f"a CSV lists up to {CSV_ROWS} samples, these {len(self)} clients hold {self.total} together; "
                "take fewer clients or leave the CSV out"
            )
        labels, text = np.asarray(labels), io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["client", "index", "label"])
        for start in range(0, len(self), BLOCK):
            clients = np.arange(start, min(start + BLOCK, len(self)))
            indices, sizes = self.concatenate(clients)
            writer.writerows(np.stack([np.repeat(clients, sizes), indices, labels[indices]], axis=1).tolist())
        _write(Path(path), text.getvalue().encode())

    def _check_number(self, client: int) -> int:
        """The client's number; a negative one counts from the end."""
        if not -len(self) <= client < len(self):
            raise IndexError(f"client must be in 0..{len(self) - 1}, got {client}")
        return client % len(self)


def check_fields(document: Any, form: str, fields: dict[str, tuple[type, ...]]) -> None:
    """An error unless it is an object of this format whose fields have these types."""
    if not isinstance(document, dict) or document.get("format") != form:
        raise InputError(f"expected an object whose format is '{form}'")
    for key, kinds in fields.items():
        # type() and not isinstance(): true and false would pass as the numbers 1 and 0
        if key not in document or type(document[key]) not in kinds:
            raise InputError(f"'{key}' is {'of the wrong type' if key in document else 'missing'}")


def refuse_other(path: Path, content: bytes) -> None:
    """An error where the path holds anything but this content."""
    try:
        if path.exists() and (not path.is_file() or path.read_bytes() != content):
            raise InputError(f"'{path}' exists and holds something else; remove it or choose another name")
    except OSError as error:
        let_pass(error)
        raise InputError(f"cannot write '{path}': {error.strerror}; choose a writable place") from None


def _write(path: Path, content: bytes) -> None:
    """Writes all or nothing, into a folder that exists, and never over a file that holds something else."""
    refuse_other(path, content)
    if not path.parent.is_dir():
        raise InputError(f"cannot write '{path}': there is no such folder; choose a writable place")
    try:
        storage.write_atomic(path, content)
    except OSError as error:
        let_pass(error)
        raise InputError(f"cannot write '{path}': {error.strerror}; choose a writable place") from None
