"""What each client remembers, or the server remembers of each: in memory up to a limit, the rest on disk."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

from torch import Tensor

from unskew.base import storage, tree
from unskew.base.tree import Groups
from unskew.runs.state_file import NAME, StateFile, read_from

_OVERHEAD = 1000
"""Bytes of a tensor beside its numbers, measured: without them a million tiny states would pass for nothing."""


class StateStore:
    """Client states by client; the least recently used leave memory first.

    With a folder, the states of the last two checkpoints stay there; without one there are no checkpoints.
    """

    def __init__(self, folder: Path | None = None, limit: int = 256 << 20, name: str = NAME) -> None:
        self.limit = limit
        self._file = StateFile(folder, name)
        self._memory: OrderedDict[int, Groups] = OrderedDict()
        self._sizes: dict[int, int] = {}
        self._dirty: set[int] = set()
        self._held = 0
        self.latest = 0
        """The newest round that any client remembers."""

    def get(self, client: int) -> Groups:
        """The client's state; empty before its first visit."""
        if client in self._memory:
            self._memory.move_to_end(client)
            return self._memory[client]
        data = self._file.read(client)
        if data is None:
            return {}
        state = storage.decode(data)
        self._remember(client, state)
        return state

    def put(self, client: int, state: Groups, round_: int) -> None:
        """Replaces the client's state after its visit in this round."""
        if not state and not self.get(client):
            return
        self._dirty.add(client)
        self.latest = max(self.latest, round_)
        self._remember(client, state)

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been put so far."""
        return not self._memory

    def snapshot(self) -> Tensor:
        """Brings every state to disk, synced; gives what `restore` needs to find them again."""
        for client in sorted(self._dirty):
            self._write(client)
        return self._file.snapshot()

    def restore(self, snapshot: Tensor) -> None:
        """Takes up the states of a snapshot."""
        self.close()
        self._file.restore(snapshot)

    def prune(self) -> None:
        """Called after each checkpoint: removes what neither it nor the one before it needs."""
        self._file.prune()

    def close(self) -> None:
        """Forgets every state that is in no snapshot and closes the file."""
        self._memory.clear()
        self._sizes.clear()
        self._dirty.clear()
        self._held = 0
        self._file.close()

    def _remember(self, client: int, state: Groups) -> None:
        size = tree.nbytes(state) + _OVERHEAD * sum(map(len, state.values()))
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
        if client in self._dirty:
            self._file.write(client, storage.encode(self._memory[client]))
            self._dirty.discard(client)


class SavedStates:
    """The states of a finished run, read from its folder when they are asked for."""

    def __init__(self, folder: Path, snapshot: Tensor, name: str = NAME) -> None:
        self._folder, self._snapshot, self._name = folder, snapshot, name
        self.latest = 0

    def get(self, client: int) -> Groups:
        """The client's state; empty if it was never visited."""
        data = read_from(self._folder, self._snapshot, client, self._name)
        return {} if data is None else storage.decode(data)

    def put(self, client: int, state: Groups, round_: int) -> None:
        """Refused: the run is over."""
        raise TypeError("the states of a finished run do not change")
