"""Replies that wait until the round's weights are known: in memory up to a limit, the rest in temporary files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from unskew.base import storage, tree
from unskew.base.tree import Groups, Tree
from unskew.core.jobs import Reply

LIMIT = 1 << 30
"""Bytes of replies that wait in memory."""


class HeldReplies:
    """The replies of a round in the order in which they came."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.replies: list[Reply] = []
        self._left = limit
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def add(self, reply: Reply) -> None:
        """Takes in one reply."""
        size = tree.nbytes(reply.groups) if reply.stack is None else reply.stack.nbytes
        if size > self._left:
            groups = reply.groups if reply.stack is None else reply.stack.take(reply.place)
            reply = reply._replace(groups=self._write(groups), stack=None)
        else:
            self._left -= size
        self.replies.append(reply)

    def _write(self, groups: Groups) -> Groups:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="unskew-")
        path = Path(self._folder.name) / str(len(self.replies))
        path.write_bytes(storage.encode(groups))
        return cast("Groups", GroupsOnDisk(path))

    def close(self) -> None:
        """Removes the files."""
        if self._folder is not None:
            self._folder.cleanup()


class GroupsOnDisk(Mapping[str, Any]):
    """A reply's groups, read when they are asked for and not kept."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Groups:
        """The groups in memory."""
        return storage.decode(self._path.read_bytes())

    def __getitem__(self, group: str) -> Tree:
        return self.read()[group]

    def __iter__(self) -> Iterator[str]:
        return iter(self.read())

    def __len__(self) -> int:
        return len(self.read())


def load(reply: Reply) -> Reply:
    """The reply with its groups in memory."""
    groups: Any = reply.groups
    return reply._replace(groups=groups.read()) if isinstance(groups, GroupsOnDisk) else reply
