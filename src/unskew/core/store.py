"""What each client remembers between its visits: in memory up to a limit, the rest paged to disk."""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path

from unskew.core import tree, wire
from unskew.core.tree import Groups


class StateStore:
    """Client states by client; the least recently used leave memory first.

    A file is written once and never changed, its name carries round and checksum: the states that an older
    checkpoint names are still there after the run went on (unless `keep_versions` is off: no checkpoints then).
    """

    def __init__(self, folder: Path, limit: int = 256 << 20, keep_versions: bool = True) -> None:
        self.folder, self.limit, self.keep_versions = folder, limit, keep_versions
        self._memory: OrderedDict[int, Groups] = OrderedDict()
        self._sizes: dict[int, int] = {}
        self._dirty: dict[int, int] = {}
        self._files: dict[int, str] = {}
        self._unsynced: set[str] = set()
        self._held = 0
        self.latest = 0
        """The newest round that any client remembers."""

    def get(self, client: int) -> Groups:
        """The client's state; empty before its first visit."""
        if client in self._memory:
            self._memory.move_to_end(client)
            return self._memory[client]
        if client not in self._files:
            return {}
        state = wire.decode(wire.read_certified(self.folder / self._files[client]))
        self._remember(client, state)
        return state

    def put(self, client: int, state: Groups, round_: int) -> None:
        """Replaces the client's state after its visit in this round."""
        if not state and client not in self._memory and client not in self._files:
            return
        self._dirty[client] = round_
        self.latest = max(self.latest, round_)
        self._remember(client, state)

    def snapshot(self) -> dict[int, str]:
        """Brings every state to disk, synced; gives the file of each client."""
        for client in list(self._dirty):
            self._write(client)
        for name in self._unsynced:
            handle = os.open(self.folder / name, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        if self._unsynced:
            wire.sync_folder(self.folder)
        self._unsynced.clear()
        return dict(self._files)

    def restore(self, files: dict[int, str]) -> None:
        """Takes up the states that a snapshot named."""
        self._memory.clear()
        self._sizes.clear()
        self._dirty.clear()
        self._held = 0
        self._files = dict(files)

    def prune(self, keep: set[str]) -> None:
        """Removes files that neither a kept checkpoint nor a client of now needs."""
        keep = keep | set(self._files.values())
        for path in self.folder.glob("client-*.safetensors"):
            if path.name not in keep:
                path.unlink(missing_ok=True)
                self._unsynced.discard(path.name)

    def _remember(self, client: int, state: Groups) -> None:
        size = tree.nbytes(state)
        self._held += size - self._sizes.get(client, 0)
        self._sizes[client] = size
        self._memory[client] = state
        self._memory.move_to_end(client)
        while self._held > self.limit and len(self._memory) > 1:
            oldest = next(iter(self._memory))
            self._write(oldest)
            del self._memory[oldest]
            self._held -= self._sizes.pop(oldest)

    def _write(self, client: int) -> None:
        round_ = self._dirty.pop(client, None)
        if round_ is None:
            return
        stem = f"client-{client:06d}.round-{round_:06d}"
        name = wire.write_certified(self.folder, stem, wire.encode(self._memory[client]), sync=False)
        old = self._files.get(client)
        if old not in (None, name) and not self.keep_versions:
            (self.folder / str(old)).unlink(missing_ok=True)
        self._files[client] = name
        self._unsynced.add(name)
