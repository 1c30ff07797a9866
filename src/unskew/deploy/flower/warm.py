"""A process that has imported Flower already. Its commands are forked from it in no time.

Flower starts a Python process for every message, whose imports alone take seconds of a core. Here the same commands
(the console scripts that Flower's package declares) are run in children of a process which imported them once. Whoever
asks sends the words, the folder, the environment and two files for the output over a Unix socket that is its owner's
alone.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.metadata
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unskew.deploy.flower.handover import LENGTH, STARTED

MODULES = {
    "server": "unskew.deploy.flower.server_app",
    "site": "unskew.deploy.flower.client_app",
}
COMMANDS = {
    "server": ("flower-superexec", "flwr-serverapp", "flwr"),
    "site": ("flower-superexec", "flwr-clientapp"),
}
_LIMIT = 1 << 24


def main() -> None:
    """Serves `server` or `site` at a socket that is open already until it is ended; in a child, runs the command."""
    role, listener = sys.argv[1], socket.socket(fileno=int(sys.argv[2]))
    commands = {name: load_command(name) for name in COMMANDS[role]}
    importlib.import_module(MODULES[role])
    gc.collect()
    gc.freeze()  # pages that nobody writes to stay shared
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    request = serve(listener)
    listener.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["words"]
    sys.exit(commands[sys.argv[0]]())


def load_command(name: str) -> Callable[[], Any]:
    """What a console script runs."""
    (found,) = importlib.metadata.entry_points(group="console_scripts", name=name)
    run: Callable[[], Any] = found.load()
    return run


def serve(listener: socket.socket) -> dict[str, Any]:
    """Forks a child for each request; returns in the child, with the request."""
    while True:
        peer, _ = listener.accept()
        with peer, contextlib.suppress(OSError, ValueError, EOFError):
            peer.settimeout(10)
            request, files = _receive(peer)
            sys.stdout.flush()
            sys.stderr.flush()
            if not os.fork():
                _take_files(files)
                return request
            for file in files:
                os.close(file)
            peer.sendall(STARTED)


def _receive(peer: socket.socket) -> tuple[dict[str, Any], list[int]]:
    head, files, _, _ = socket.recv_fds(peer, LENGTH.size, 2)
    if len(head) < LENGTH.size or len(files) != 2:
        raise EOFError
    (length,) = LENGTH.unpack(head)
    with peer.makefile("rb") as stream:
        request: dict[str, Any] = json.loads(stream.read(min(length, _LIMIT)))
    return request, files


def _take_files(files: list[int]) -> None:
    """The files of whoever asked become this process's output; it reads nothing."""
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for number, file in enumerate(files, start=1):
        os.dup2(file, number)
        os.close(file)


if __name__ == "__main__":
    main()
