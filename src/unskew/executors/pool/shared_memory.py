"""Memory that processes share: tensors are written once and read in place, and vanish with the processes."""

from __future__ import annotations

import mmap
import os
import tempfile

import torch
from torch import Tensor

from unskew.base.tree import Groups
from unskew.executors.packing import Block, Layout, Place, end_of, find_place, map_groups, padded


class SharedTensors:
    """A growing anonymous file, created before the fork; one side writes tensors, the others read them."""

    def __init__(self) -> None:
        # no name on any file system: nothing is left behind, however the processes end
        if hasattr(os, "memfd_create"):
            self._file = os.memfd_create("unskew")
        else:
            with tempfile.TemporaryFile() as file:
                self._file = os.dup(file.fileno())
        self._block = Block(torch.empty(0, dtype=torch.uint8))
        self._end = 0
        self._known: dict[int, tuple[Tensor, Place]] = {}

    def close(self) -> None:
        """Frees the memory, once no view into it is left."""
        self.clear()
        self._block = Block(torch.empty(0, dtype=torch.uint8))
        os.close(self._file)

    def clear(self) -> None:
        """Forgets what was written; the next tensors overwrite it."""
        self._end = 0
        self._known.clear()

    def __contains__(self, value: Tensor) -> bool:
        return id(value) in self._known

    @property
    def used(self) -> int:
        """Bytes written since the last `clear`."""
        return self._end

    def put(self, value: Tensor) -> Place:
        """Copies a tensor in, once however often it is put, and gives its place."""
        known = self._known.get(id(value))
        if known is not None:
            return known[1]
        place = find_place(value, self._end)
        end = padded(self._end + value.numel() * value.element_size())
        self._reserve(end)
        self._block.view(place).copy_(value.detach())
        self._end = end
        self._known[id(value)] = (value, place)  # holding the tensor keeps its id from being used again
        return place

    def write(self, groups: Groups) -> Layout:
        """Copies groups in, one tensor behind the other, behind what was written before; keeps no reference to them."""
        self._known.clear()
        layout = map_groups(self.put, groups)
        self._known.clear()
        return layout

    def view(self, place: Place) -> Tensor:
        """A tensor in the shared memory: the next `clear` at the other side makes it invalid."""
        self._map(end_of(place))
        return self._block.view(place)

    def copy(self, layout: Layout) -> Groups:
        """A copy of groups that were written together: one block of memory for all their tensors."""
        places = [place for tree in layout.values() for place in tree.values()]
        if not places:
            return {group: {} for group in layout}
        start, end = min(place[3] for place in places), max(map(end_of, places))
        self._map(end)
        block = Block(self._block.raw[start:end].clone())
        return map_groups(lambda place: block.view(place, start), layout)

    def _reserve(self, size: int) -> None:
        if size > self._block.size and size > os.fstat(self._file).st_size:
            # real allocation: a full memory is an error here and not a crash at the first write
            wanted = padded(size + size // 4 + (1 << 20))
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file, 0, wanted)
            else:
                os.ftruncate(self._file, wanted)
        self._map(size)

    def _map(self, size: int) -> None:
        if self._block.size < size:
            # the old map lives as long as tensors that use it
            memory = mmap.mmap(self._file, os.fstat(self._file).st_size)
            self._block = Block(torch.frombuffer(memory, dtype=torch.uint8))
