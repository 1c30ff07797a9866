"""A site's long-lived process: data, network and memory in one place, reached over a Unix socket of its own.

Flower starts a new process for every message; that one only hands the bytes on to here and back.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from pathlib import Path

from unskew.base.errors import InputError
from unskew.deploy.channel import receive, send
from unskew.deploy.site import Site

log = logging.getLogger(__name__)


class Daemon:
    """Answers requests at a socket, one at a time, until it is closed."""

    def __init__(self, site: Site, path: Path) -> None:
        self.site, self.path = site, path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o700)  # nobody else may even look
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX)
        mask, here = os.umask(0o177), Path.cwd()
        os.chdir(path.parent)  # the system takes a hundred letters; by its name alone a socket may be anywhere
        try:
            self._socket.bind(path.name)
        except OSError as error:
            raise InputError(f"cannot open the socket {path}: {error.strerror or error}; move the folder") from None
        finally:
            os.chdir(here)
            os.umask(mask)
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
