"""One client's data as batches: gathered once a visit, shuffled by one gather an epoch, normalised, augmented."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from unskew.data.dataset import Samples
from unskew.data.transforms import Augment, normalise

if TYPE_CHECKING:
    from unskew.core.context import LocalSettings

_EPOCH_LIMIT = 256 << 20
"""Above this many bytes as float32, an epoch is gathered batch by batch instead of at once."""


class Batch(NamedTuple):
    """Inputs ready for the model, labels, and the samples' positions within the client's data."""

    x: Tensor
    y: Tensor
    positions: Tensor


class LocalData:
    """A client's samples (already its own, in memory) and how they become batches."""

    def __init__(
        self, samples: Samples, num_classes: int, mean: tuple[float, ...], std: tuple[float, ...], augment: Augment
    ) -> None:
        self.samples, self.num_classes = samples, num_classes
        self._mean, self._std, self._augment = mean, std, augment

    def __len__(self) -> int:
        return len(self.samples)

    @functools.cached_property
    def counts(self) -> Tensor:
        """Samples of each class, [C] int64."""
        return torch.bincount(self.samples.y, minlength=self.num_classes)

    @property
    def augmented(self) -> bool:
        """Whether batches are augmented."""
        return not self._augment.is_identity

    def batches(
        self, settings: LocalSettings, order: torch.Generator, noise: torch.Generator, skip_single: bool
    ) -> Iterator[Batch]:
        """The batches of a visit: `epochs` passes, or exactly `steps` batches over as many passes as that takes."""
        bounds = batch_bounds(len(self), settings.batch, settings.drop_last, skip_single)
        if not bounds:
            return
        left = settings.steps if settings.steps is not None else settings.epochs * len(bounds)
        while left > 0:
            taken = bounds[:left]
            left -= len(taken)
            yield from self._epoch(taken, settings.shuffle, order, noise)

    def passes(self, batch: int) -> Iterator[Batch]:
        """All samples once, in order, not augmented."""
        for start, stop in _no_single_tail(batch_bounds(len(self), batch)):
            part = self.samples.x[start:stop], self.samples.y[start:stop]
            yield Batch(normalise(part[0], self._mean, self._std), part[1], torch.arange(start, stop))

    def _epoch(
        self, bounds: list[tuple[int, int]], shuffle: bool, order: torch.Generator, noise: torch.Generator
    ) -> Iterator[Batch]:
        n, x, y = len(self), self.samples.x, self.samples.y
        index = torch.randperm(n, generator=order) if shuffle else torch.arange(n)
        draws = None if self._augment.is_identity else self._augment.draw(n, tuple(x.shape[1:]), noise)
        y_epoch = y[index]
        # float32 of everything at once costs memory on huge clients; then each batch gathers for itself
        whole = normalise(x[index], self._mean, self._std) if draws is None and x.numel() * 4 <= _EPOCH_LIMIT else None
        for start, stop in bounds:
            if whole is not None:
                inputs = whole[start:stop]
            elif draws is None:
                inputs = normalise(x[index[start:stop]], self._mean, self._std)
            else:
                inputs = self._augment.apply(x[index[start:stop]], draws.slice(start, stop), self._mean, self._std)
            yield Batch(inputs, y_epoch[start:stop], index[start:stop])


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


def _no_single_tail(bounds: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """A last batch of one sample joins the one before it: BatchNorm could not take statistics from it."""
    if len(bounds) > 1 and bounds[-1][1] - bounds[-1][0] == 1:
        return [*bounds[:-2], (bounds[-2][0], bounds[-1][1])]
    return bounds
