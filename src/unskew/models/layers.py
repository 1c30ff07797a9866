"""Pieces that several architectures share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from unskew.base.errors import InputError

Norm = Callable[[int], nn.Module]

NORMS: dict[str, Norm] = {
    "batch": nn.BatchNorm2d,
    "batch_stats": partial(nn.BatchNorm2d, track_running_stats=False),
    "instance": lambda channels: nn.GroupNorm(channels, channels),
    "none": nn.Identity,
}


class Residual(nn.Module):
    """The sum of a branch and a shortcut."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch, self.shortcut = branch, shortcut

    def forward(self, x: Tensor) -> Tensor:
        """`branch(x) + shortcut(x)`."""
        return self.branch(x) + self.shortcut(x)  # type: ignore[no-any-return]


class Replicate(nn.Module):
    """Repeats a grey image's channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, x: Tensor) -> Tensor:
        """[B, 1, H, W] to [B, channels, H, W], without a copy."""
        return x.expand(-1, self.channels, -1, -1)


class Resize(nn.Module):
    """Resizes images by bilinear interpolation."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.size = (height, width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, h, w] to [B, C, height, width]."""
        return F.interpolate(x, size=self.size, mode="bilinear", align_corners=False)


def as_rgb(channels: int) -> tuple[nn.Module, int]:
    """What makes grey images three-channel ones, and the number of channels after it."""
    return (Replicate(3), 3) if channels == 1 else (nn.Identity(), channels)


def resize_layer(height: int, width: int, to_height: int, to_width: int) -> nn.Module:
    """A layer that resizes where the size differs, else does nothing."""
    return nn.Identity() if (height, width) == (to_height, to_width) else Resize(to_height, to_width)


def image_shape(model: str, shape: tuple[int, ...], at_least: int) -> tuple[int, int, int]:
    """Channels, height and width; an error where the data are no images or are too small for the model."""
    if len(shape) != 3:
        raise InputError(f"{model} needs images (channels, height, width), got inputs of shape {shape}; use mlp")
    channels, height, width = shape
    if min(height, width) < at_least:
        others = "cnn8 or mlp" if min(height, width) >= 2 else "mlp"  # cnn8 halves an image once
        raise InputError(
            f"{model} needs images of at least {at_least}x{at_least}, got {height}x{width}; use {others} instead"
        )
    return channels, height, width
