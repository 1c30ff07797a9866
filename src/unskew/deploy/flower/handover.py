"""Hands a command of Flower's to the warm process of its folder, which forks it; without one the command starts.

Runs as a file of its own for every message, without site packages: it imports the standard library alone, and little of
that.
"""

# ruff: noqa: PTH109, PTH119, PTH120
# pathlib takes longer to import than all of this takes

from __future__ import annotations

import json
import os
import socket
import struct
import sys
from collections.abc import Mapping, Sequence

LENGTH = struct.Struct(">Q")
STARTED = b"\1"


def hand_over(place: str, words: Sequence[str], environment: Mapping[str, str], out: int, error: int) -> bool:
    """Whether the warm process at this socket has started the command, with these files for what it says."""
    here = os.getcwd()
    request = json.dumps({"words": list(words), "folder": here, "environment": dict(environment)}).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)  # it may still be importing
        try:
            connect(connection, place)
            socket.send_fds(connection, [LENGTH.pack(len(request))], [out, error])
            connection.sendall(request)
            return connection.recv(1) == STARTED
        except OSError:
            return False


def connect(connection: socket.socket, place: str) -> None:
    """Connects to a socket wherever it is; the system takes a hundred letters of its name."""
    here = os.getcwd()
    os.chdir(os.path.dirname(place))
    try:
        connection.connect(os.path.basename(place))
    finally:
        os.chdir(here)


def main() -> None:
    """The command's words after the socket's place and the command's own."""
    place, command, *words = sys.argv[1:]
    if not hand_over(place, [os.path.basename(command), *words], os.environ, 1, 2):
        os.write(2, f"unskew: no warm process; {os.path.basename(command)} starts by itself\n".encode())
        os.execv(command, [command, *words])


if __name__ == "__main__":
    main()
