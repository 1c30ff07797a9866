"""States by client on disk, in one SQLite file: what clients remember, or what the server remembers of them.

A row is one version of a client's state; rows are added and removed, never changed. A snapshot is the number of its
last row: it means each client's newest row up to that one. All that is written after a snapshot is one transaction
until the next, so a killed process leaves the file as the last snapshot left it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unskew.base.errors import DamagedRun, InputError

NAME = "clients.sqlite"
"""The file of clients' states in the folder of checkpoints."""
SERVER_NAME = "server.sqlite"
"""The file of what the server remembers of single clients."""
LARGEST = 999_000_000
"""Bytes of one client's state; SQLite takes no row of more than 10^9."""
_PAGE = 16 << 10
"""Bytes of a page: with 4 KiB, states of 1 MB take a third longer; larger pages cost more for tiny states."""
_CACHE = 16 << 10
"""KiB of the file that SQLite keeps in memory."""
_TABLE = (
    "CREATE TABLE IF NOT EXISTS states"
    " (id INTEGER PRIMARY KEY, client INTEGER NOT NULL, checksum INTEGER NOT NULL, data BLOB NOT NULL)"
)
_INDEX = "CREATE INDEX IF NOT EXISTS by_client ON states (client)"
_NEWEST = "SELECT checksum, data FROM states WHERE client = ? ORDER BY id DESC LIMIT 1"
_REPLACED = "DELETE FROM states WHERE client = ? AND id > ? AND id < ?"
_CHANGES = """
SELECT new.id, new.checksum,
    (SELECT checksum FROM states AS old WHERE old.client = new.client AND old.id < new.id ORDER BY old.id DESC LIMIT 1)
FROM states AS new WHERE new.id > ? ORDER BY new.id
"""
_OUTDATED = """
DELETE FROM states WHERE id IN (
    SELECT old.id FROM states AS new CROSS JOIN states AS old ON old.client = new.client AND old.id < new.id
    WHERE new.id > ? AND new.id <= ?)
"""
_IN_SNAPSHOT = """
SELECT client, checksum, data FROM states WHERE id <= ?1 AND NOT EXISTS (
    SELECT 1 FROM states AS newer WHERE newer.client = states.client AND newer.id > states.id AND newer.id <= ?1)
"""


class StateFile:
    """Bytes by client. Without a folder there are no snapshots, and the file is a temporary one."""

    def __init__(self, folder: Path | None, name: str = NAME) -> None:
        self._path = folder / name if folder else None
        self._file: sqlite3.Connection | None = None
        self._error: Exception | None = None
        self._last = self._clients = self._total = 0  # the last snapshot
        self._kept = self._cleared = 0  # that of the last checkpoint; the one up to which outdated rows are removed

    def read(self, client: int) -> bytes | None:
        """The client's bytes; an error if they are not those that were written."""
        if self._file is None and not self._clients:  # no file for methods whose clients remember nothing
            return None
        row = self._run(_NEWEST, client).fetchone()
        return None if row is None else _certify(self._path, client, *row)

    def write(self, client: int, data: bytes) -> None:
        """Replaces the client's bytes."""
        if len(data) > LARGEST:
            raise InputError(f"the state of client {client} takes {len(data)} bytes; at most {LARGEST} can be stored")
        row = self._run("INSERT INTO states VALUES (NULL, ?, ?, ?)", client, _checksum(client, data), data).lastrowid
        self._run(_REPLACED, client, self._last, row)  # no snapshot means the row before

    def snapshot(self) -> Tensor:
        """Brings what was written to disk; gives the last row, the number of clients and the sum of checksums."""
        if self._file is not None:
            last, clients, total = self._last, self._clients, self._total
            for row, new, old in self._run(_CHANGES, self._last):
                last, clients, total = row, clients + (old is None), _wrap(total + new - (old or 0))
            self._run("COMMIT")
            self._last, self._clients, self._total = last, clients, total
        return torch.tensor([self._last, self._clients, self._total])

    def restore(self, snapshot: Tensor) -> None:
        """Takes up what a snapshot means; rows after it are removed."""
        self.close()
        self._last, self._clients, self._total = snapshot.tolist()
        self._kept, self._cleared = self._last, 0

    def prune(self) -> None:
        """Called after each checkpoint: removes what neither it nor the one before it needs."""
        if self._file is not None:
            self._run(_OUTDATED, self._cleared, self._kept)
        self._cleared, self._kept = self._kept, self._last

    def close(self) -> None:
        """Closes the file and with it forgets what was written after the last snapshot."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def _run(self, statement: str, *values: Any) -> sqlite3.Cursor:
        """Executes a statement; after an error none is executed any more, as SQLite may have undone earlier ones."""
        if self._error is not None:
            raise self._error
        try:
            if self._file is None:
                self._file = self._open()
            if not self._file.in_transaction:
                self._file.execute("BEGIN")
            return self._file.execute(statement, values)
        except sqlite3.Error as error:
            self._error = _explain(error, self._path)
            raise self._error from None

    def _open(self) -> sqlite3.Connection:
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        file = sqlite3.connect(self._path or "", isolation_level=None, check_same_thread=False)
        file.execute(f"PRAGMA page_size = {_PAGE}")
        file.execute(f"PRAGMA cache_size = -{_CACHE}")
        if self._path is None:
            file.execute("PRAGMA journal_mode = OFF")
        for statement in ("BEGIN", _TABLE, _INDEX):
            file.execute(statement)
        file.execute("DELETE FROM states WHERE id > ?", (self._last,))  # of rounds that are run again
        return file


def read_from(folder: Path, snapshot: Tensor, client: int, name: str = NAME) -> bytes | None:
    """A client's bytes as a snapshot means them, from a file that is not changed; None: it has none."""
    path, (last, clients, _) = folder / name, snapshot.tolist()
    if not clients:
        return None
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as file:
            row = file.execute(_NEWEST.replace("client = ?", "client = ? AND id <= ?"), (client, last)).fetchone()
    except sqlite3.Error as error:
        raise InputError(f"cannot read {path}: {error}; client_model needs the run's folder as it was left") from None
    return None if row is None else _certify(path, client, *row)


def copy(source: Path, folder: Path, name: str = NAME) -> None:
    """Copies such a file, if there is one, to another folder; what no snapshot has is not among it."""
    if not (source / name).exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with (
            closing(sqlite3.connect(f"{(source / name).absolute().as_uri()}?mode=ro", uri=True)) as old,
            closing(sqlite3.connect(folder / name)) as new,
        ):
            old.backup(new)
    except sqlite3.Error as error:
        raise _explain(error, folder / name) from None


def check(folder: Path, snapshot: Tensor, name: str = NAME) -> None:
    """An error unless every state that a snapshot means is there as it was written."""
    last, clients, total = snapshot.tolist()
    path = folder / name
    if not clients:
        return
    try:
        # mode=rw: a missing file is not created
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as file:
            (answer,) = file.execute("PRAGMA integrity_check(1)").fetchone()
            if answer != "ok":
                raise sqlite3.DatabaseError(answer)
            for client, checksum, data in file.execute(_IN_SNAPSHOT, (last,)):
                _certify(path, client, checksum, data)
                clients, total = clients - 1, _wrap(total - checksum)
    except sqlite3.OperationalError as error:
        raise DamagedRun(f"cannot read {path}: {error}") from None
    except sqlite3.DatabaseError as error:
        raise DamagedRun(f"{path} is damaged: {error}") from None
    if clients or total:
        raise DamagedRun(f"{path} is damaged: its states are not those of the checkpoint")


def _certify(path: Path | None, client: int, checksum: int, data: bytes) -> bytes:
    if _checksum(client, data) != checksum:
        raise DamagedRun(f"{_place(path)} is damaged: the state of client {client} does not match its checksum")
    return data


def _checksum(client: int, data: bytes) -> int:
    made = hashlib.sha256(client.to_bytes(8, "little"))
    made.update(data)
    return int.from_bytes(made.digest()[:8], "little", signed=True)


def _wrap(number: int) -> int:
    """The number modulo 2^64, signed."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _explain(error: sqlite3.Error, path: Path | None) -> Exception:
    if not isinstance(error, sqlite3.OperationalError):
        return InputError(f"{_place(path)} is damaged: {error}")
    if "full" in str(error):
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), _place(path))
    return OSError(errno.EIO, str(error), _place(path))


def _place(path: Path | None) -> str:
    return str(path) if path else "the temporary file of clients' states"
