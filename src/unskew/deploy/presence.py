"""Who is at work in a folder: a lock that ends with its process, however that ends, and the process's number in it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from unskew.base.errors import InputError


@contextmanager
def hold(path: Path, what: str) -> Iterator[None]:
    """Holds the lock of this file; refuses where another process has it."""
    with path.open("a+") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"{what} is at work already (process {find(path) or 'unknown'}); stop it first") from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def find(path: Path) -> int | None:
    """The process that holds the lock of this file; 0 if it has not said its number yet."""
    try:
        with path.open("r+") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                text = file.read().strip()
                return int(text) if text.isdecimal() else 0
    except FileNotFoundError:
        pass
    return None
