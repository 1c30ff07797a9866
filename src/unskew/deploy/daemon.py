"""A site's long-lived process: data, network and memory in one place, reached over a Unix socket of its own.

Flower starts a new process for every message; that one only hands the bytes on to here and back.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
from pathlib import Path

from unskew.base.errors import InputError
from unskew.deploy.messages import LIMIT
from unskew.deploy.site import Site

log = logging.getLogger(__name__)
_LENGTH = struct.Struct(">Q")


class Daemon:
    """Answers requests at a socket, one at a time, until it is closed."""

    def __init__(self, site: Site, path: Path) -> None:
        self.site, self.path = site, path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o700)  # nobody else may even look
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX)
        before = os.umask(0o177)
        try:
            self._socket.bind(str(path))
        except OSError as error:
            raise InputError(
                f"cannot open the socket {path}: {error.strerror or error}; choose a shorter path"
            ) from None
        finally:
            os.umask(before)
        self._socket.listen()

    def serve(self) -> None:
        """Works until `close` is called."""
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            with peer, contextlib.suppress(ConnectionError, EOFError):
                data = receive(peer, self.site.limit)
                send(peer, self.site.answer(data))

    def start(self) -> threading.Thread:
        """The same in a thread."""
        thread = threading.Thread(target=self.serve, name="unskew site", daemon=True)
        thread.start()
        return thread

    def close(self) -> None:
        """Ends it; what was begun is finished first."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.path.unlink(missing_ok=True)


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
