"""A visit of many clients at once: the same context, with numbers and batches of every client in lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from unskew.base import seeds
from unskew.base.batch import Batch
from unskew.core.context import ClientContext
from unskew.data.batches import LocalData
from unskew.data.stacked_batches import StackedData
from unskew.executors.stacked.lanes import LaneDiagnostics, Lanes, NotStackable


@dataclass(frozen=True)
class StackedContext(ClientContext):
    """K visits as one; `client` is a batched number, every other field is what one client would see."""

    clients: tuple[int, ...] = ()
    lanes: Lanes = None  # type: ignore[assignment]
    even: ClassVar[bool] = False
    """Whether every batch has the full width and a mask."""

    def rng(self, purpose: str) -> torch.Generator:
        """Not here: one stream cannot serve many clients."""
        raise NotStackable("a slot asks for c.rng; with c.draw(purpose, make) it could run for many clients at once")

    def draw(self, purpose: str, make: Callable[[torch.Generator], Tensor]) -> Tensor:
        """Each client's random numbers from its own stream."""
        with self.lanes.leave():
            drawn = torch.stack([make(rng) for rng in self._streams(purpose)])
        return self.lanes.wrap(drawn.to(self.lanes.device))

    def _streams(self, purpose: str) -> Iterator[torch.Generator]:
        """Each client's stream in its turn: one generator, seeded anew for each."""
        shared = torch.Generator()
        for client in self.clients:
            yield shared.manual_seed(seeds.derive(self.seed, purpose, self.round, client))

    def draw_part(self, share: float, purpose: str, at_most: int | None = None) -> StackedContext:
        """The same visits, whose data are a random part of each client's."""
        with self.lanes.leave():
            turns = zip(self.stack.parts, self._streams(purpose), strict=True)
            parts = StackedData([whole.draw_part(share, rng, at_most) for whole, rng in turns])
        return self.with_fields(data=cast("LocalData", LaneData(parts, self.lanes)))

    @property
    def stack(self) -> StackedData:
        """The clients' data."""
        data: Any = self.data
        return data.stack  # type: ignore[no-any-return]

    @property
    def counts(self) -> Tensor:
        """Samples of each class at each client."""
        return self.lanes.wrap(self.stack.counts)

    @property
    def num_samples(self) -> Tensor:
        """Training samples of each client."""
        return self.lanes.wrap(self.stack.sizes)

    @property
    def longest(self) -> int:
        """Training samples of the largest client."""
        return max(self.stack.lengths)

    @property
    def step(self) -> int:
        """The number of the current step; refused where it differs between the clients that take it."""
        assert isinstance(self.diagnostics, LaneDiagnostics)
        return self.diagnostics.find_step()

    @property
    def num_steps(self) -> Tensor:
        """Steps that each client has taken so far."""
        assert isinstance(self.diagnostics, LaneDiagnostics)
        return self.lanes.wrap(self.diagnostics.counted)

    @property
    def augmented(self) -> bool:
        """Whether a sample looks different each time it is drawn."""
        return self.stack.pipeline.augmented

    def batches(self, epochs: int | None = None, purpose: str = "batches") -> Iterator[Batch]:
        """Each client's batches, from the same streams as if it were alone."""
        settings = self.settings if epochs is None else replace(self.settings, epochs=epochs, steps=None)
        noises = self._streams(f"{purpose}/augment") if self.augmented else None
        stacked = self.stack.batches(settings, self._streams(purpose), noises, self.has_batchnorm, self.even)
        return self.lanes.batches(stacked, training=True)

    def passes(self, batch: int = 500) -> Iterator[Batch]:
        """All samples of each client once."""
        return self.data.passes(batch)


class LaneData:
    """What slots of stacked clients see as their data."""

    def __init__(self, stack: StackedData, lanes: Lanes) -> None:
        self.stack, self._lanes = stack, lanes
        self.is_part = stack.parts[0].is_part

    def passes(self, batch: int) -> Iterator[Batch]:
        """All samples of each client once, in order, not augmented."""
        return self._lanes.batches(self.stack.passes(batch))
