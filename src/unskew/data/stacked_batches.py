"""Many clients' batches side by side: equal step counts and sizes by padding, the same samples as one by one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unskew.data.batches import EPOCH_LIMIT, LocalData, Pipeline, batch_bounds, merge_single_tail, num_steps
from unskew.data.dataset import Samples
from unskew.data.transforms import Draws

if TYPE_CHECKING:
    from unskew.base.settings import LocalSettings


class StackedBatch(NamedTuple):
    """One step of K clients: tensors [K, B, ...]."""

    x: Tensor
    y: Tensor
    positions: Tensor
    sizes: list[int]
    """How many samples of each row are real."""
    mask: Tensor | None
    """[K, B] bool: which samples are real; None: no row is padded."""
    active: Tensor | None
    """[K] bool: who has any sample in this step; None: everyone has."""


@dataclass(frozen=True)
class Layout:
    """Where the samples of K clients go in T steps of at most B samples each; it depends on their numbers alone."""

    shape: tuple[int, int, int]
    """T, K, B."""
    epochs: list[int]
    """How many shuffled orders each client draws."""
    taken: Tensor | None
    """Which entries of all orders, one after the other, are used; None: all."""
    place: Tensor
    """Where these go in [T, K, B], flattened."""
    sizes: list[list[int]]
    """How many samples each client has in each step."""
    masks: Tensor
    """[T, K, B] bool: which samples are real."""
    active: Tensor
    """[T, K] bool: who has any."""


@dataclass(frozen=True)
class Schedule:
    """Which samples each client takes at each step."""

    layout: Layout
    positions: Tensor
    """Positions within each client's data, [T, K, B]; padding is position 0."""
    numbers: Tensor | None = None
    """Random numbers of the augmentation, [T, K, B, ...]."""


Bounds = tuple[tuple[int, int], ...]
"""Where each batch of a client's epoch starts and stops."""


@lru_cache(maxsize=64)
def make_layout(bounds: tuple[Bounds, ...], totals: tuple[int, ...], n: tuple[int, ...], width: int = 0) -> Layout:
    """The layout of clients with these batches an epoch, steps in all, and samples; at least so wide."""
    clients, steps = len(bounds), max(totals, default=0)
    width = width or max((stop - start for own in bounds for start, stop in own), default=0)
    sizes = [[0] * clients for _ in range(steps)]
    taken, places, offset, epochs = [], [], 0, []
    for client, own in enumerate(bounds):
        firsts = range(0, totals[client], max(1, len(own)))
        epochs.append(len(firsts))
        for first in firsts:
            for step, (start, stop) in enumerate(own[: totals[client] - first], first):
                sizes[step][client] = stop - start
                taken.append(np.arange(offset + start, offset + stop))
                places.append((step * clients + client) * width + np.arange(stop - start))
            offset += n[client]
    entries = torch.from_numpy(np.concatenate([*taken, np.empty(0, np.int64)]))
    place = torch.from_numpy(np.concatenate([*places, np.empty(0, np.int64)]))
    real = torch.tensor(sizes, dtype=torch.int64).view(steps, clients)
    masks = torch.arange(width) < real.unsqueeze(-1)
    whole = len(entries) == offset and bool((entries.diff() == 1).all())
    return Layout((steps, clients, width), epochs, None if whole else entries, place, sizes, masks, real > 0)


class StackedData:
    """The data of K clients, which are all part of one data set."""

    def __init__(self, parts: list[LocalData]) -> None:
        self.parts = parts
        self.source: Samples = parts[0].source
        self.pipeline: Pipeline = parts[0].pipeline
        if any(part.source is not self.source for part in parts):
            raise TypeError("clients of different data sets cannot be stacked")
        self.lengths = [len(part) for part in parts]

    @cached_property
    def sizes(self) -> Tensor:
        """How many samples each client has, [K] float64."""
        return torch.tensor(self.lengths, dtype=torch.float64, device=self.source.y.device)

    @cached_property
    def counts(self) -> Tensor:
        """Samples of each class at each client, [K, C] int64."""
        return torch.stack([part.counts for part in self.parts])

    @cached_property
    def _index(self) -> Tensor:
        """The positions of each client's samples, [K, longest]; short rows are filled up with their first sample."""
        return self._tabulate([part.index for part in self.parts])

    @cached_property
    def _positions(self) -> Tensor | None:
        """The same of their positions within each client's whole data; None: these are the whole."""
        known = [part.positions for part in self.parts if part.positions is not None]
        return self._tabulate(known) if known else None

    def _tabulate(self, each: list[Tensor]) -> Tensor:
        longest = max(self.lengths)
        if min(self.lengths) == longest:
            return torch.stack(each)
        table = torch.zeros(len(each), longest, dtype=torch.int64, device=self.source.y.device)
        for row, own in zip(table, each, strict=True):
            if len(own):
                row.fill_(own[0])[: len(own)] = own
        return table

    def batches(
        self,
        settings: LocalSettings,
        orders: Iterable[torch.Generator],
        noises: Iterable[torch.Generator] | None,
        skip_single: bool,
        even: bool = False,
    ) -> Iterator[StackedBatch]:
        """The steps of a visit; `even`: every step has the full width and a mask, so that one graph fits all.

        `orders` and `noises` give each client's stream when it is its turn; the next one may end the one before.
        """
        schedule = self._schedule(settings, orders, noises, skip_single, settings.batch if even else 0)
        yield from self._gather(schedule, even)

    def passes(self, batch: int) -> Iterator[StackedBatch]:
        """All samples of each client once, in order, not augmented."""
        bounds = tuple(tuple(merge_single_tail(batch_bounds(n, batch))) for n in self.lengths)
        layout = make_layout(bounds, tuple(len(own) for own in bounds), tuple(self.lengths))
        orders = [torch.arange(n) for n in self.lengths]
        yield from self._gather(Schedule(layout, _spread(layout, orders)), even=False)

    def _schedule(
        self,
        settings: LocalSettings,
        orders: Iterable[torch.Generator],
        noises: Iterable[torch.Generator] | None,
        skip_single: bool,
        width: int,
    ) -> Schedule:
        bounds = tuple(_cached_bounds(n, settings.batch, settings.drop_last, skip_single) for n in self.lengths)
        totals = tuple(num_steps(settings, len(own)) for own in bounds)
        layout = make_layout(bounds, totals, tuple(self.lengths), width)
        visits = list(zip(self.lengths, layout.epochs, strict=True))
        if settings.shuffle:
            drawn = [torch.randperm(n, generator=rng) for rng, (n, epochs) in zip(orders, visits, strict=True)
                     for _ in range(epochs)]  # fmt: skip
        else:
            drawn = [torch.arange(n) for n, epochs in visits for _ in range(epochs)]
        if noises is None:
            return Schedule(layout, _spread(layout, drawn))
        shape = tuple(self.source.x.shape[1:])
        draw = self.pipeline.augment.draw
        draws = [draw(n, shape, rng).numbers for rng, (n, epochs) in zip(noises, visits, strict=True)
                 for _ in range(epochs)]  # fmt: skip
        return Schedule(layout, _spread(layout, drawn), _spread(layout, draws))

    def _gather(self, plan: Schedule, even: bool) -> Iterator[StackedBatch]:
        (steps, clients, widest), device = plan.layout.shape, self.source.y.device
        shape, layout = self.source.x.shape[1:], plan.layout
        at_once = max(1, EPOCH_LIMIT // max(1, clients * widest * shape.numel() * 4))
        for first in range(0, steps, at_once):
            block = slice(first, first + at_once)
            positions = plan.positions[block].to(device)
            index = self._index.expand(len(positions), -1, -1).gather(2, positions)
            if self._positions is not None:
                positions = self._positions.expand(len(positions), -1, -1).gather(2, positions)
            y = self.source.y[index]
            draws = None if plan.numbers is None else Draws(plan.numbers[block].flatten(0, 2))
            x = self.pipeline.inputs(self.source.x[index.view(-1)], draws).view(*index.shape, *shape)
            for step, own in enumerate(layout.sizes[block]):
                cut = widest if even else max(own)
                mask = layout.masks[first + step].to(device) if even or min(own) < cut else None
                part = [x[step], y[step], positions[step]]
                if cut < widest:
                    part = [item[:, :cut].contiguous() for item in part]
                    mask = None if mask is None else mask[:, :cut].contiguous()
                active = layout.active[first + step].to(device) if min(own) == 0 else None
                yield StackedBatch(part[0], part[1], part[2], own, mask, active)


@lru_cache(maxsize=1024)
def _cached_bounds(n: int, batch: int, drop_last: bool, skip_single: bool) -> Bounds:
    return tuple(batch_bounds(n, batch, drop_last, skip_single))


def _spread(layout: Layout, drawn: list[Tensor]) -> Tensor:
    """What was drawn for each client and epoch, arranged by step, client and place; padding is zero."""
    entries = torch.cat(drawn) if drawn else torch.empty(0, dtype=torch.int64)
    rest = entries.shape[1:]
    spread = entries.new_zeros(math.prod(layout.shape), *rest)
    spread[layout.place] = entries if layout.taken is None else entries[layout.taken]
    return spread.view(*layout.shape, *rest)
