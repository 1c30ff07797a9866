"""A data set held once in memory: samples as tensors, clients are index lists elsewhere."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from unskew.base.errors import InputError


@dataclass(frozen=True)
class Samples:
    """Inputs `x` ([N, C, H, W] uint8 images, or float32 of any shape [N, ...]) and integer labels `y` ([N] int64)."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: Tensor) -> Samples:
        """The samples at these positions."""
        return Samples(self.x[index], self.y[index])

    def to(self, device: torch.device) -> Samples:
        """The samples on this device."""
        return Samples(self.x.to(device), self.y.to(device))


@dataclass(frozen=True)
class Dataset:
    """Training and test samples with what is known of them; `mean` and `std` normalise a channel after x / 255."""

    name: str
    train: Samples
    test: Samples
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    validation: Samples | None = None
    groups: Tensor | None = None
    """Per training sample: the domain or natural client it belongs to, as an index into `group_names`."""
    group_names: tuple[str, ...] = field(default=())
    test_groups: Tensor | None = None

    def __post_init__(self) -> None:
        for part, samples in (("train", self.train), ("test", self.test), ("validation", self.validation)):
            if samples is not None:
                _check(self.name, part, samples, self.num_classes)
                _check_alike(self, part, samples)

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.classes)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input: (channels, height, width) for images."""
        return tuple(self.train.x.shape[1:])

    def to(self, device: torch.device) -> Dataset:
        """The data set on this device, where every client's batches are gathered; itself if it is there already."""
        if self.train.y.device == device:
            return self
        validation = self.validation.to(device) if self.validation is not None else None
        return replace(self, train=self.train.to(device), test=self.test.to(device), validation=validation)

    def fingerprint(self) -> str:
        """A short hash of labels and a sample of the inputs: the same data give the same text."""
        digest = hashlib.sha256()
        for samples in (self.train, self.test):
            digest.update(repr((tuple(samples.x.shape), str(samples.x.dtype))).encode())
            digest.update(samples.y.cpu().numpy().tobytes())
            step = max(1, len(samples) // 1000)
            digest.update(samples.x[::step].cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]


def _check_alike(data: Dataset, part: str, samples: Samples) -> None:
    """Every part has inputs of one shape, and images a mean and a std for each channel."""
    x, like = samples.x, data.train.x
    if x.shape[1:] != like.shape[1:] or x.is_floating_point() != like.is_floating_point():
        raise InputError(
            f"data '{data.name}': {part} inputs are {x.dtype} {tuple(x.shape[1:])}, those of train are "
            f"{like.dtype} {tuple(like.shape[1:])}; make them alike"
        )
    channels = x.shape[1] if x.dim() > 1 else 1
    given = len(data.mean), len(data.std)
    if not x.is_floating_point() and (any(number not in (1, channels) for number in given) or not all(data.std)):
        raise InputError(
            f"data '{data.name}': expected mean and std for each of {channels} channels and no std of 0, "
            f"got mean {data.mean} and std {data.std}"
        )


def _check(name: str, part: str, samples: Samples, num_classes: int) -> None:
    x, y = samples.x, samples.y
    if len(x) != len(y):
        raise InputError(f"data '{name}': {part} has {len(x)} inputs but {len(y)} labels; they must be equally many")
    if len(y) == 0:
        raise InputError(f"data '{name}': {part} holds no samples; give it at least one")
    if y.dtype != torch.int64 or y.dim() != 1:
        raise InputError(
            f"data '{name}': {part} labels must be a flat int64 tensor, got {y.dtype} of shape {tuple(y.shape)}"
        )
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= num_classes:
        raise InputError(
            f"data '{name}': {part} labels must be in 0..{num_classes - 1}, got {low}..{high}; renumber the labels"
        )
    if x.is_floating_point() and not torch.isfinite(x).all():
        raise InputError(f"data '{name}': {part} inputs hold NaN or infinite values; remove or replace them")
