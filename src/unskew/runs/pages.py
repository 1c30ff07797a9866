"""Clients' states on disk: a few large files that are only ever appended to, and a table of where each state lies.

A file per client would cost the file system's time at every visit and every checkpoint. Here a hundred thousand states
are a few files, and a checkpoint syncs those that grew.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from unskew.base import storage
from unskew.base.errors import InputError

Row = list[int]
"""Of the table: client, file, start, length, checksum."""
_WIDTH = 5
_LARGEST = 64 << 20
"""A file of this size is not appended to any more."""
_SLACK = 4 << 20
"""Files may hold as much waste as states, and this much more, before they are cleared."""


class Pages:
    """Bytes by client. What a client had before stays on disk until its file holds mostly waste and is cleared.

    With `keep`, a file goes only when two checkpoints were written without it: the one before the last still works.
    """

    def __init__(self, folder: Path, keep: bool = True) -> None:
        self.folder, self.keep = folder, keep
        self._rows: dict[int, int] = {}
        self._table = array("q")
        self._sizes: dict[int, int] = {}  # by file: bytes in it
        self._needed: dict[int, int] = {}  # by file: those of them that are some client's
        self._file: int | None = None
        self._retired: set[int] = set()
        self._unsynced: set[int] = set()

    def __contains__(self, client: int) -> bool:
        return client in self._rows

    def read(self, client: int) -> bytes:
        """The client's bytes; an error if they are not those that were written."""
        first = self._rows[client] * _WIDTH
        row = self._table[first : first + _WIDTH].tolist()
        with _opened(self.folder, row[1]) as file:
            return _certified(file, row)

    def write(self, client: int, data: bytes) -> None:
        """Replaces the client's bytes, of which there is at least one."""
        self._append(client, data)
        if sum(self._sizes.values()) > 2 * sum(self._needed.values()) + _SLACK:
            self._clear()

    def sync(self) -> Tensor:
        """Brings what was written to disk and gives the table, [clients, 5]."""
        for file in self._unsynced & self._sizes.keys():
            handle = os.open(_path(self.folder, file), os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        if self._unsynced:
            storage.sync_folder(self.folder)
        self._unsynced.clear()
        return torch.from_numpy(np.array(self._table)).reshape(-1, _WIDTH)

    def restore(self, table: Tensor) -> None:
        """Takes up what a table names; new bytes go into a new file."""
        rows = table.numpy()
        self._table = array("q", rows.tobytes())
        self._rows = {client: row for row, client in enumerate(rows[:, 0].tolist())}
        self._sizes = {file: _path(self.folder, file).stat().st_size for file in np.unique(rows[:, 1]).tolist()}
        self._needed = {file: int(rows[rows[:, 1] == file, 3].sum()) for file in self._sizes}
        self._file = None

    def prune(self) -> None:
        """Called after each checkpoint: removes the files that neither it nor the one before it names."""
        for path in self.folder.glob("states-*"):  # few files, however many clients
            if _number(path) not in self._sizes.keys() | self._retired:
                path.unlink()
        self._retired.clear()

    def _append(self, client: int, data: bytes) -> None:
        if self._file is None or self._sizes[self._file] >= _LARGEST:
            self._file = self._new_file()
        file, start = self._file, self._sizes[self._file]
        try:
            with _path(self.folder, file).open("ab") as stream:
                stream.write(data)
        except OSError:
            self._file = None  # how much of it was written is unknown: nothing may follow
            raise
        self._sizes[file] += len(data)
        self._needed[file] += len(data)
        self._unsynced.add(file)
        self._note([client, file, start, len(data), _checksum(data)])

    def _new_file(self) -> int:
        self.folder.mkdir(parents=True, exist_ok=True)
        file = 1 + max(map(_number, self.folder.glob("states-*")), default=0)
        self._sizes[file] = self._needed[file] = 0
        return file

    def _note(self, row: Row) -> None:
        first = self._rows.setdefault(row[0], len(self._rows)) * _WIDTH
        old = self._table[first : first + _WIDTH].tolist()
        self._table[first : first + _WIDTH] = array("q", row)
        if old:
            self._needed[old[1]] -= old[3]
            self._let_go(old[1])

    def _let_go(self, file: int) -> None:
        """Gives up a file that no client needs; the last checkpoint may still name it."""
        if file not in self._sizes or self._needed[file] or file == self._file:
            return
        del self._sizes[file], self._needed[file]
        if self.keep:
            self._retired.add(file)
        else:
            _path(self.folder, file).unlink(missing_ok=True)

    def _clear(self) -> None:
        """Moves the states out of files that hold more waste than states: never more bytes than that frees."""
        self._file = None
        rows = np.array(self._table).reshape(-1, _WIDTH)
        for file in [file for file, size in self._sizes.items() if 2 * self._needed[file] < size]:
            for row in rows[rows[:, 1] == file].tolist():
                self._append(row[0], self.read(row[0]))
            self._let_go(file)


def check(folder: Path, table: Tensor) -> None:
    """An error unless every state that the table names is whole."""
    rows = table.numpy()
    for number in np.unique(rows[:, 1]).tolist():
        held = rows[rows[:, 1] == number]
        with _opened(folder, number) as file:
            for row in held[held[:, 2].argsort()].tolist():  # in the order they lie on disk
                _certified(file, row)


def _opened(folder: Path, number: int) -> BinaryIO:
    try:
        return _path(folder, number).open("rb")
    except OSError as error:
        raise InputError(f"cannot read {_path(folder, number)}: {error.strerror or error}") from None


def _certified(file: BinaryIO, row: Row) -> bytes:
    client, _, start, length, checksum = row
    file.seek(start)
    data = file.read(length)
    if _checksum(data) != checksum:
        raise InputError(f"{file.name} is damaged: what it holds of client {client} does not match its checksum")
    return data


def _checksum(data: bytes) -> int:
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "little", signed=True)


def _path(folder: Path, number: int) -> Path:
    return folder / f"states-{number:06d}"


def _number(path: Path) -> int:
    return int(path.name.removeprefix("states-"))
