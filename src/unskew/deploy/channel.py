"""Bytes between two processes of a site, over a Unix socket. Imports nothing heavy: it is started for every message."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

LIMIT = 1 << 30
"""Bytes of a message, unless a site or a server says otherwise."""
_LENGTH = struct.Struct(">Q")


class Refused(Exception):
    """A message that cannot be used, and why."""


def listen(path: Path) -> socket.socket:
    """A socket at this place that only its owner can open, in a folder that nobody else may even look into."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    mask, here = os.umask(0o177), Path.cwd()
    os.chdir(path.parent)  # the system takes a hundred letters; by its name alone a socket may be anywhere
    try:
        listener.bind(path.name)
    finally:
        os.chdir(here)
        os.umask(mask)
    listener.listen()
    return listener


def ask(path: Path, data: bytes, limit: int = LIMIT) -> bytes:
    """The site's answer to a request."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        send(connection, data)
        return receive(connection, limit)


def send(connection: socket.socket, data: bytes) -> None:
    """Its length, then the bytes."""
    connection.sendall(_LENGTH.pack(len(data)))
    connection.sendall(data)


def receive(connection: socket.socket, limit: int) -> bytes:
    """What the other side sent; no more is read than it announced, and no more than the limit."""
    (length,) = _LENGTH.unpack(_read(connection, _LENGTH.size))
    if length > limit:
        raise ConnectionError(f"{length} bytes announced, expected at most {limit}")
    return _read(connection, length)


def _read(connection: socket.socket, length: int) -> bytes:
    found = bytearray()
    while len(found) < length:
        part = connection.recv(min(1 << 20, length - len(found)))
        if not part:
            raise EOFError("the other side has gone")
        found += part
    return bytes(found)
