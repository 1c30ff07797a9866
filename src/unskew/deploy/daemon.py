"""A site's long-lived process: data, network and memory in one place, reached over a Unix socket of its own.

Flower starts a new process for every message; that one only hands the bytes on to here and back.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from pathlib import Path

from unskew.base.errors import InputError
from unskew.deploy.channel import listen, receive, send
from unskew.deploy.site import Site

log = logging.getLogger(__name__)


class Daemon:
    """Answers requests at a socket, one at a time, until it is closed."""

    def __init__(self, site: Site, path: Path) -> None:
        self.site, self.path = site, path
        try:
            self._socket = listen(path)
        except OSError as error:
            raise InputError(f"cannot open the socket {path}: {error.strerror or error}; move the folder") from None

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
