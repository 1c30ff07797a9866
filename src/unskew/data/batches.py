"""One client's data as batches: one gather an epoch straight from the data set, normalised, augmented."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unskew.base.batch import Batch
from unskew.data.dataset import Samples
from unskew.data.transforms import Draws, Transform, normalise

if TYPE_CHECKING:
    from unskew.base.settings import LocalSettings

EPOCH_LIMIT = 256 << 20
"""Above this many bytes as float32, an epoch is gathered batch by batch instead of at once."""


@dataclass(frozen=True)
class Pipeline:
    """How samples become inputs of the model, the same for all clients."""

    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: Transform

    @property
    def augmented(self) -> bool:
        """Whether batches are augmented."""
        return not self.augment.is_identity

    def inputs(self, x: Tensor, draws: Draws | None = None) -> Tensor:
        """Normalised samples, augmented if random numbers are given."""
        if draws is None:
            return normalise(x, self.mean, self.std)
        return self.augment.apply(x, draws, self.mean, self.std)

    def draw(self, n: int, shape: tuple[int, ...], noise: torch.Generator | None) -> Draws | None:
        """The random numbers that augment n samples; None: no augmentation."""
        return self.augment.draw(n, shape, noise) if noise is not None and self.augmented else None


class LocalData:
    """A client's samples, as positions in a data set that all clients share, and how they become batches."""

    positions: Tensor | None = None
    """Where the samples of a drawn part are within the client's whole data, [n]; None: these are the whole."""

    def __init__(self, source: Samples, index: Tensor | None, pipeline: Pipeline) -> None:
        self.source, self.pipeline = source, pipeline
        self.index = torch.arange(len(source), device=source.y.device) if index is None else index
        self._whole = index is None

    @property
    def is_part(self) -> bool:
        """Whether these are a drawn part of a client's data."""
        return self.positions is not None

    def draw_part(self, share: float, rng: torch.Generator, at_most: int | None = None) -> LocalData:
        """A random part of the samples: int(share * n) of them, at least one if there is any, in their order."""
        if not 0 < share <= 1:
            raise ValueError(f"a part of a client's data is a share above 0 and up to 1, got {share}")
        n = len(self)
        count = max(1, int(share * n)) if at_most is None else min(at_most, max(1, int(share * n)))
        # drawn on the CPU, so that a run takes the same samples on every device
        chosen = torch.randperm(n, generator=rng)[:count].sort().values.to(self.device)
        part = LocalData(self.source, self.index[chosen], self.pipeline)
        part.positions = chosen if self.positions is None else self.positions[chosen]
        return part

    def first(self, count: int) -> LocalData:
        """The first so many samples, as if the client had no others."""
        return LocalData(self.source, self.index[:count], self.pipeline)

    def __len__(self) -> int:
        return len(self.index)

    @functools.cached_property
    def y(self) -> Tensor:
        """The labels."""
        return self.source.y[self.index]

    @functools.cached_property
    def counts(self) -> Tensor:
        """Samples of each class, [C] int64."""
        return torch.bincount(self.y, minlength=self.pipeline.num_classes)

    @property
    def device(self) -> torch.device:
        """Where batches are made."""
        return self.index.device

    @property
    def augmented(self) -> bool:
        """Whether batches are augmented."""
        return self.pipeline.augmented

    def batches(
        self, settings: LocalSettings, order: torch.Generator, noise: torch.Generator | None, skip_single: bool
    ) -> Iterator[Batch]:
        """The batches of a visit: `epochs` passes, or exactly `steps` batches over as many passes as that takes."""
        bounds = batch_bounds(len(self), settings.batch, settings.drop_last, skip_single)
        left = num_steps(settings, len(bounds))
        while left > 0:
            taken = bounds[:left]
            left -= len(taken)
            yield from self._epoch(taken, settings.shuffle, order, noise)

    def passes(self, batch: int) -> Iterator[Batch]:
        """All samples once, in order, not augmented."""
        for start, stop in merge_single_tail(batch_bounds(len(self), batch)):
            index = slice(start, stop) if self._whole else self.index[start:stop]
            x, y = self.source.x[index], self.source.y[index]
            own = torch.arange(start, stop, device=y.device) if self.positions is None else self.positions[start:stop]
            yield Batch(self.pipeline.inputs(x), y, own)

    def _epoch(
        self, bounds: list[tuple[int, int]], shuffle: bool, order: torch.Generator, noise: torch.Generator | None
    ) -> Iterator[Batch]:
        n, x = len(self), self.source.x
        # drawn on the CPU, so that a run takes the same samples on every device
        positions = torch.randperm(n, generator=order) if shuffle else torch.arange(n)
        if self.index.device.type != "cpu":
            positions = positions.to(self.index.device)
        draws = self.pipeline.draw(n, tuple(x.shape[1:]), noise)
        index = self.index[positions]
        y = self.source.y[index]
        if self.positions is not None:
            positions = self.positions[positions]
        # float32 of everything at once costs memory on huge clients; then each batch gathers for itself
        if draws is None and n * x.stride(0) * 4 <= EPOCH_LIMIT:
            inputs = self.pipeline.inputs(x.index_select(0, index))
            for start, stop in bounds:
                yield Batch(inputs[start:stop], y[start:stop], positions[start:stop])
            return
        for start, stop in bounds:
            part = self.pipeline.inputs(x[index[start:stop]], draws and draws.slice(start, stop))
            yield Batch(part, y[start:stop], positions[start:stop])


def num_steps(settings: LocalSettings, batches: int) -> int:
    """How many steps a visit takes, where an epoch has so many batches."""
    if batches == 0:
        return 0
    return settings.steps if settings.steps is not None else settings.epochs * batches


def batch_bounds(n: int, size: int, drop_last: bool = False, skip_single: bool = False) -> list[tuple[int, int]]:
    """Where each batch of an epoch starts and stops.

    `drop_last` drops a short last batch if there is a full one; `skip_single` skips a batch of one sample, from
    which BatchNorm cannot take statistics.
    """
    bounds = [(start, min(start + size, n)) for start in range(0, n, size)]
    if drop_last and n >= size:
        bounds = [(start, stop) for start, stop in bounds if stop - start == size]
    if skip_single:
        bounds = [(start, stop) for start, stop in bounds if stop - start > 1]
    return bounds


def merge_single_tail(bounds: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Joins a last batch of one sample to the one before it: BatchNorm could not take statistics from it."""
    if len(bounds) > 1 and bounds[-1][1] - bounds[-1][0] == 1:
        return [*bounds[:-2], (bounds[-2][0], bounds[-1][1])]
    return bounds
