"""Normalisation and seeded augmentation of whole batches.

Random numbers are drawn for all samples at once, so that the result does not depend on how batches are cut.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from unskew.base.errors import InputError
from unskew.base.registry import Component, Registry, param

Scale = tuple[float, ...]


def normalise(x: Tensor, mean: Scale, std: Scale) -> Tensor:
    """(x / 255 - mean) / std per channel for uint8 images; float inputs stay as they are, as float32."""
    if not isinstance(x, Tensor):
        raise InputError(f"normalise: expected a tensor, got {type(x).__name__}; use torch.as_tensor(x)")
    if x.is_floating_point():
        return x.to(torch.float32)
    if not (isinstance(mean, tuple) and isinstance(std, tuple)):
        mean, std = _read_scale("mean", mean), _read_scale("std", std)
    if not {len(mean), len(std)} <= {1, x.shape[1]}:
        raise InputError(f"normalise: expected a mean and a std for each of {x.shape[1]} channels, or one for all, got "
                         f"{len(mean)} and {len(std)}")  # fmt: skip
    scale, shift = _scale_and_shift(mean, std, x.dim(), x.device)
    return torch.mul(x, scale).add_(shift)


def _read_scale(what: str, given: object) -> Scale:
    try:
        return tuple(float(value) for value in given)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise InputError(f"normalise: expected {what} as numbers, one per channel, got {given!r}") from None


@functools.lru_cache(maxsize=32)
def _scale_and_shift(mean: Scale, std: Scale, dimensions: int, device: torch.device) -> tuple[Tensor, Tensor]:
    if not all(value > 0 for value in std):
        raise InputError(f"normalise: expected every std above 0, got {std}")
    spread = torch.tensor(std, dtype=torch.float64, device=device)
    scale, shift = 1 / (255 * spread), -torch.tensor(mean, dtype=torch.float64, device=device) / spread
    shape = (1, -1, *(1,) * (dimensions - 2))
    return scale.to(torch.float32).view(shape), shift.to(torch.float32).view(shape)


@dataclass(frozen=True)
class Draws:
    """The random numbers of n samples, one row each; of `Augment`: crop row and column, flip, cutout row and column."""

    numbers: Tensor

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: Tensor | slice) -> Draws:
        return Draws(self.numbers[index])

    def slice(self, start: int, stop: int) -> Draws:
        """The rows start..stop-1."""
        return self[start:stop]


class Transform(Component):
    """How training images are augmented: `draw` makes all random numbers, `apply` uses them and draws none."""

    @property
    def is_identity(self) -> bool:
        """Whether it changes nothing, so that samples are only normalised."""
        return False

    def draw(self, n: int, shape: tuple[int, ...], rng: torch.Generator) -> Draws:
        """All random numbers for n samples of this shape."""
        raise TypeError(f"{type(self).__name__} must define draw(n, shape, rng)")

    def apply(self, x: Tensor, draws: Draws, mean: Scale, std: Scale) -> Tensor:
        """The augmented and normalised samples, float32."""
        raise TypeError(f"{type(self).__name__} must define apply(x, draws, mean, std)")

    def check(self, shape: tuple[int, ...]) -> None:
        """An error where inputs of this shape cannot be augmented in this way."""


transforms: Registry[Transform] = Registry("augmentation", Transform)


@transforms.register("augment")
class Augment(Transform):
    """Any combination of random crop, horizontal flip and cutout."""

    crop: int = param(
        default=0, ge=0, doc="padding in pixels before a random crop back to the image's size; 0: no crop"
    )
    pad_mode: Literal["zeros", "reflect"] = param(
        default="zeros", doc="what the padding holds: black pixels or mirrored ones"
    )
    flip: bool = param(default=False, doc="mirror left and right with probability 1/2")
    cutout: int = param(default=0, ge=0, doc="side of a square set to 0 after normalisation; 0: none")

    @property
    def is_identity(self) -> bool:
        """Whether it changes nothing, so that `apply` only normalises."""
        return not (self.crop or self.flip or self.cutout)

    def draw(self, n: int, shape: tuple[int, ...], rng: torch.Generator) -> Draws:
        """All random numbers for n samples of this shape."""
        numbers = torch.zeros(n, 5, dtype=torch.int64)
        if self.is_identity:
            return Draws(numbers)
        self.check(shape)
        if self.crop:
            numbers[:, :2] = torch.randint(2 * self.crop + 1, (n, 2), generator=rng, device=rng.device)
        if self.flip:
            numbers[:, 2] = torch.randint(2, (n,), generator=rng, device=rng.device)
        if self.cutout:
            numbers[:, 3] = torch.randint(shape[1], (n,), generator=rng, device=rng.device)
            numbers[:, 4] = torch.randint(shape[2], (n,), generator=rng, device=rng.device)
        return Draws(numbers)

    def apply(self, x: Tensor, draws: Draws, mean: Scale, std: Scale) -> Tensor:
        """Crop, flip, normalise, cut out; the input is not changed."""
        top, left, flip, row, column = draws.numbers.to(x.device).unbind(1)
        if self.crop:
            x = _crop(x, top, left, self.crop, self.pad_mode)
        if self.flip:
            x = torch.where(flip.bool().view(-1, 1, 1, 1), x.flip(-1), x)
        x = normalise(x, mean, std)
        if self.cutout:
            rows, columns = _mask_cutout(row, x.shape[2], self.cutout), _mask_cutout(column, x.shape[3], self.cutout)
            x = x.masked_fill(rows[:, None, :, None] & columns[:, None, None, :], 0.0)
        return x

    def check(self, shape: tuple[int, ...]) -> None:
        """An error where inputs of this shape cannot be augmented in this way."""
        if len(shape) != 3:
            raise InputError(f"{self}: expected images (channels, height, width), got shape {shape}; use none")
        if self.pad_mode == "reflect" and self.crop >= min(shape[1:]):
            raise InputError(f"{self}: a mirrored padding of {self.crop} needs larger images than {shape}; lower crop")


def _crop(x: Tensor, top: Tensor, left: Tensor, padding: int, mode: str) -> Tensor:
    height, width = x.shape[2:]
    if mode == "reflect":
        rows, columns = (_mirror_positions(length, padding, x.device) for length in (height, width))
        padded = x.index_select(2, rows).index_select(3, columns)
    else:
        padded = torch.nn.functional.pad(x, (padding,) * 4)
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)
    return windows[torch.arange(len(x), device=x.device), :, top, left]


def _mirror_positions(length: int, padding: int, device: torch.device) -> Tensor:
    """Positions -padding..length+padding-1 folded back into 0..length-1 without repeating the edge."""
    position = torch.arange(-padding, length + padding, device=device).abs()
    return length - 1 - (length - 1 - position).abs()


def _mask_cutout(centre: Tensor, length: int, side: int) -> Tensor:
    """Per sample, the positions of 0..length-1 inside a stretch of `side` around the centre."""
    offset = torch.arange(length, device=centre.device) - (centre[:, None] - side // 2)
    return (offset >= 0) & (offset < side)


@transforms.register("none")
class Unvaried(Augment):
    """Normalisation only."""


@transforms.register("flip")
class Flip(Augment):
    """Horizontal flip."""

    flip: bool = param(
        default=True, doc="mirror left and right with probability 1/2", source="FedSOL, Path- and TissueMNIST"
    )


@transforms.register("crop_flip")
class CropFlip(Augment):
    """Crop with a black padding of 4, and flip."""

    crop: int = param(default=4, ge=0, doc="padding in pixels before a random crop", source="FedBlade; FedSOL on SVHN")
    flip: bool = param(
        default=True, doc="mirror left and right with probability 1/2", source="FedBlade; FedSOL on SVHN"
    )


@transforms.register("fedsol_cinic")
class FedSolCinic(CropFlip):
    """Crop with a mirrored padding of 4, and flip."""

    pad_mode: Literal["zeros", "reflect"] = param(
        default="reflect", doc="what the padding holds", source="FedSOL, CINIC-10"
    )


@transforms.register("fedsol_cifar")
class FedSolCifar(CropFlip):
    """Crop with a black padding of 4, flip, and a cutout of 16; FedSOL uses it for CIFAR-10 and MNIST."""

    cutout: int = param(
        default=16, ge=0, doc="side of a square set to 0 after normalisation", source="FedSOL, CIFAR-10"
    )
