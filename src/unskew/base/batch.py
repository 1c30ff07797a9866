"""What goes into a network and what comes out of it: a batch of samples, and a pass's logits and features."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from unskew.base.torch_private import is_batched


class Output(NamedTuple):
    """What one forward pass gives: `logits` [B, C] and `features` [B, D], the head's input."""

    logits: Tensor
    features: Tensor

    @property
    def maps(self) -> Mapping[str, Tensor]:
        """What layers gave by their names, in a pass that was asked for them (`c.forward(..., maps=names)`)."""
        return {}

    def with_maps(self, maps: Mapping[str, Tensor]) -> Output:
        """The same with feature maps."""
        return MappedOutput(self.logits, self.features, maps) if maps else self


class MappedOutput(Output):
    """An output with feature maps; apart, so that all outputs unpack into logits and features."""

    _maps: Mapping[str, Tensor]

    def __new__(cls, logits: Tensor, features: Tensor, maps: Mapping[str, Tensor]) -> MappedOutput:
        """A pair of logits and features that also has maps."""
        made = super().__new__(cls, logits, features)
        made._maps = maps
        return made

    @property
    def maps(self) -> Mapping[str, Tensor]:
        """What the layers that were asked for gave, by their names."""
        return self._maps

    def _replace(self, **changed: Tensor) -> MappedOutput:  # type: ignore[override]
        return MappedOutput(changed.get("logits", self.logits), changed.get("features", self.features), self._maps)


class Batch(NamedTuple):
    """Inputs ready for the model, labels, and the samples' positions within the client's data."""

    x: Tensor
    y: Tensor
    positions: Tensor
    mask: Tensor | None = None
    """[B] bool: which samples are real, where short batches of stacked clients are padded; None: all of them."""

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the batch's real samples of one value per sample, [B]."""
        if self.mask is None:
            return values.mean()
        return torch.where(self.mask, values, 0.0).sum() / self.mask.sum().clamp(min=1)

    def one_hot(self, num_classes: int) -> Tensor:
        """[B, C] float: 1 at each real sample's class, all 0 for padding; its transpose sums samples by class."""
        hot = self.y.unsqueeze(-1) == torch.arange(num_classes, device=self.y.device)
        return (hot if self.mask is None else hot & self.mask.unsqueeze(-1)).float()

    def cross_entropy(self, logits: Tensor) -> Tensor:
        """The mean cross-entropy of the batch's real samples."""
        if self.mask is None and not is_batched(logits):
            return F.cross_entropy(logits, self.y)
        return self.mean(cross_entropy(logits, self.y))


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """The cross-entropy of each sample, [B]; `F.cross_entropy` runs client by client under `vmap`, this does not."""
    return -F.log_softmax(logits, -1).gather(-1, y.unsqueeze(-1)).squeeze(-1)


def group_batches(batches: Iterator[Batch], size: int) -> Iterator[tuple[Batch, ...]]:
    """So many batches at a time; what is left over at the end is not used."""
    while len(group := tuple(itertools.islice(batches, size))) == size:
        yield group
