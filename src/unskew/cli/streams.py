"""What a process may lack when it begins: open standard streams, a folder that exists. Imports nothing heavy."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path


def open_closed() -> None:
    """A standard stream that was closed (`>&-`) is as good as /dev/null; no file may get its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        try:
            os.fstat(number)
        except OSError:
            _discard_number(number)
        made = Path(os.devnull).open("w" if number else "r", encoding="utf-8")  # noqa: SIM115 - for good
        setattr(sys, name, made)


def discard(name: str) -> None:
    """What could not be written to a stream stays unwritten: the interpreter must not try again when it ends."""
    stream = getattr(sys, name)
    try:
        stream.flush()
    except OSError:
        with suppress(OSError, ValueError):  # not a file of the system
            _discard_number(stream.fileno())


def _discard_number(number: int) -> None:
    opened = os.open(os.devnull, os.O_RDWR)
    if opened != number:
        os.dup2(opened, number)
        os.close(opened)


def check_current_folder() -> None:
    """Ends the command where the current folder was deleted."""
    try:
        Path.cwd()
    except OSError:
        with suppress(OSError):
            os.write(2, b"error: the current folder no longer exists; go to another one (cd)\n")
        sys.exit(2)
