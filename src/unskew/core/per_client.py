"""What the server remembers of each client."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from unskew.base import tree
from unskew.base.tree import Groups
from unskew.core.jobs import StateStore


class MemoryStore:
    """States in memory alone, for contexts without a run; a run has a store that is part of its checkpoints."""

    def __init__(self) -> None:
        self._states: dict[int, Groups] = {}
        self.latest = 0

    def get(self, client: int) -> Groups:
        """The client's state; empty if there is none."""
        return self._states.get(client, {})

    def put(self, client: int, state: Groups, round_: int) -> None:
        """Replaces the client's state."""
        self._states[client] = state
        self.latest = max(self.latest, round_)


class PerClient:
    """The server's state of single clients, in memory up to a limit and the rest on disk: `s.per_client`.

    Slots that make the server's next state may write here (`init`, `digest`, `update`); the others only read.
    """

    def __init__(
        self, store: StateStore | None = None, round_: int = 0, writable: bool = True, clients: int | None = None
    ) -> None:
        self._store, self._round, self._writable = store or MemoryStore(), round_, writable
        self._clients = clients
        self.spoilt: list[int] = []
        """Clients for which NaN or infinite numbers were put: they are not kept, and the run ends."""
        self._hold: Callable[[str, Groups], None] | None = None

    def watch(self, hold: Callable[[str, Groups], None]) -> None:
        """From now on what is handed out is held by somebody who looks whether it was changed."""
        self._hold = hold

    def get(self, client: int) -> Groups:
        """What was put last for this client; empty if nothing was. Not to be changed."""
        self._check(client)
        found = self._store.get(client)
        if self._hold is not None:
            self._hold(f"s.per_client.get({client})", found)
        return found

    def put(self, client: int, groups: Groups) -> None:
        """Replaces all that the server remembers of this client."""
        if not self._writable:
            raise ValueError("s.per_client.put is for init, digest and update; download, brief and publish only read")
        self._check(client)
        trees = isinstance(groups, dict) and all(isinstance(kept, dict) for kept in groups.values())
        if not trees or not all(isinstance(value, Tensor) for kept in groups.values() for value in kept.values()):
            raise TypeError('s.per_client.put takes groups (named trees of tensors, such as {"control": tree}), got '
                            f"{_describe(groups)}")  # fmt: skip
        own = {group: {name: _own(value) for name, value in kept.items()} for group, kept in groups.items()}
        if self._hold is not None:  # somebody's slot puts it, and may go on to change it
            own = tree.settle(tree.copy_groups(own))
        if not tree.all_finite(own):
            self.spoilt.append(client)
            return
        self._store.put(client, own, self._round)

    def read_only(self) -> PerClient:
        """The same, for slots that only read."""
        return PerClient(self._store, self._round, writable=False, clients=self._clients)

    def _check(self, client: object) -> None:
        known = isinstance(client, int) and not isinstance(client, bool) and client >= 0
        if not known or (self._clients is not None and int(cast("int", client)) >= self._clients):
            last = "" if self._clients is None else f" to {self._clients - 1}"
            raise ValueError(f"s.per_client knows clients by their numbers, from 0{last}, got {client!r}")


def _describe(groups: object) -> str:
    if isinstance(groups, dict):
        groups = {name: type(own).__name__ for name, own in groups.items()}
    text = repr(groups)
    return text if len(text) <= 60 else f"{type(groups).__name__} {text[:50]}..."


def _own(value: Tensor) -> Tensor:
    """The tensor without a graph; copied if it is a view, which would keep all of its base in memory."""
    if value.is_nested or value.layout is not torch.strided:
        raise ValueError("s.per_client.put takes dense tensors, got a nested or sparse one; pad it, or make it dense")
    value = value.detach()
    return value.clone() if value.untyped_storage().nbytes() > value.nbytes else value
