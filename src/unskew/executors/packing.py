"""Tensors in one block of bytes: where each is, with its strides, so that other processes read them in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from unskew.base.tree import Groups

Place = Sequence[Any]
"""Where a tensor is: (type, shape, strides, offset in bytes); plain values that JSON carries."""
Layout = dict[str, dict[str, Place]]

A = TypeVar("A")
B = TypeVar("B")

_ALIGN = 64  # equal alignment everywhere, so that vectorised sums round alike in every process


def map_groups(change: Callable[[A], B], groups: Mapping[str, Mapping[str, A]]) -> dict[str, dict[str, B]]:
    """The groups with every entry changed: tensors to their places, places to their tensors."""
    return {group: {name: change(entry) for name, entry in tree.items()} for group, tree in groups.items()}


class Block:
    """Bytes, seen as tensors of any type."""

    def __init__(self, raw: Tensor) -> None:
        self.raw, self.size = raw, len(raw)
        self._typed: dict[str, Tensor] = {}

    def view(self, place: Place, start: int = 0) -> Tensor:
        """The tensor at a place; the block begins `start` bytes behind the beginning of the memory."""
        kind, shape, strides, offset = place[:4]
        flat = self._typed.get(kind)
        if flat is None:
            flat = self._typed[kind] = self.raw.view(getattr(torch, kind))
        return flat.as_strided(shape, strides, (offset - start) // flat.element_size())


def dense_strides(value: Tensor) -> tuple[int, ...]:
    """Those of the tensor where it has no gaps (so channels_last stays channels_last), else those of its clone."""
    return value.stride() if value.is_contiguous() else torch.empty_like(value, device="meta").stride()


def end_of(place: Place) -> int:
    """Where the next tensor may begin."""
    count: int = getattr(torch, place[0]).itemsize
    for length in place[1]:
        count *= length
    return padded(place[3] + count)


def padded(size: int) -> int:
    """So many bytes and what is missing to the next aligned place."""
    return -(-size // _ALIGN) * _ALIGN


def find_place(value: Tensor, offset: int) -> Place:
    """The place of a tensor that begins so many bytes behind the beginning."""
    return (str(value.dtype).removeprefix("torch."), tuple(value.shape), dense_strides(value), offset)


def pack(groups: Groups) -> tuple[Tensor, Layout]:
    """All tensors in a new block of bytes, one behind the other, and where each is."""
    end = 0

    def lay_out(value: Tensor) -> Place:
        nonlocal end
        place = find_place(value, end)
        end = end_of(place)
        return place

    layout = map_groups(lay_out, groups)
    block = Block(torch.empty(end, dtype=torch.uint8))
    for group, own in groups.items():
        for name, value in own.items():
            block.view(layout[group][name]).copy_(value.detach())
    return block.raw, layout


def unpack(raw: Tensor, layout: Layout) -> Groups:
    """The tensors of a block, as views into it; in memory that is aligned as everywhere."""
    block = Block(raw if raw.data_ptr() % _ALIGN == 0 else raw.clone())
    return map_groups(block.view, layout)
