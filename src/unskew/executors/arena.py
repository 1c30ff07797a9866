"""Memory that two processes share: tensors are written once and read in place, and vanish with the processes."""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import Any

import torch
from torch import Tensor

from unskew.core.tree import Groups

Place = list[Any]
"""Where a tensor lies: [type, shape, offset]; plain values that JSON carries."""
Layout = dict[str, dict[str, Place]]

_ALIGN = 64  # equal alignment everywhere, so that vectorised sums round alike in every process


class Arena:
    """A growing anonymous file, created before the processes part; one side writes, the other reads."""

    def __init__(self) -> None:
        # no name on any file system: nothing is left behind, however the processes end
        if hasattr(os, "memfd_create"):
            self._file = os.memfd_create("unskew")
        else:
            with tempfile.TemporaryFile() as file:
                self._file = os.dup(file.fileno())
        self._map: mmap.mmap | None = None
        self._end = 0
        self._places: dict[int, tuple[Tensor, Place]] = {}

    def close(self) -> None:
        """Gives the memory back, once no view looks into it any more."""
        self.clear()
        self._map = None
        os.close(self._file)

    def clear(self) -> None:
        """Forgets what was written; the next tensors overwrite it."""
        self._end = 0
        self._places.clear()

    def write(self, groups: Groups) -> Layout:
        """Copies the tensors in, each one once however often it is sent, and tells where they lie."""
        return {group: {name: self._put(value) for name, value in tree.items()} for group, tree in groups.items()}

    def read(self, layout: Layout, *, copy: bool) -> Groups:
        """The tensors of a layout: views on the shared memory, or copies that outlive the next `clear`."""
        groups = {group: {name: self._view(*place) for name, place in tree.items()} for group, tree in layout.items()}
        if copy:
            return {group: {name: value.clone() for name, value in tree.items()} for group, tree in groups.items()}
        return groups

    def _put(self, value: Tensor) -> Place:
        known = self._places.get(id(value))
        if known is not None:
            return known[1]
        size = value.numel() * value.element_size()
        place: Place = [str(value.dtype).removeprefix("torch."), list(value.shape), self._end]
        self._reserve(self._end + size)
        self._view(*place).copy_(value.detach())
        self._end += -(-size // _ALIGN) * _ALIGN
        self._places[id(value)] = (value, place)  # holding the tensor keeps its id from being used again
        return place

    def _view(self, dtype: str, shape: list[int], offset: int) -> Tensor:
        kind = getattr(torch, dtype)
        count = 1
        for length in shape:
            count *= length
        if count == 0:
            return torch.empty(shape, dtype=kind)
        memory = self._mapped(offset + count * torch.empty((), dtype=kind).element_size())
        return torch.frombuffer(memory, dtype=kind, count=count, offset=offset).view(shape)

    def _reserve(self, size: int) -> None:
        if size > os.fstat(self._file).st_size:
            # real allocation: a full memory is an error here and not a crash at the first write
            wanted = max(2 * size, 1 << 20)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file, 0, wanted)
            else:
                os.ftruncate(self._file, wanted)

    def _mapped(self, size: int) -> mmap.mmap:
        if self._map is None or len(self._map) < size:
            # the old map lives as long as tensors that look into it
            self._map = mmap.mmap(self._file, os.fstat(self._file).st_size)
        return self._map
