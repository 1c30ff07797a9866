"""Small convolutional networks: two convolutions and a hidden layer."""

from __future__ import annotations

from typing import Literal

from torch import nn

from unskew.base.registry import param
from unskew.models.base import Architecture, Model, architectures
from unskew.models.layers import NORMS, as_rgb, image_shape

# All of these pool before the ReLU: max and ReLU commute, so the value is the same for a quarter of the work.


@architectures.register("fedavg_cnn")
class FedAvgCNN(Architecture):
    """CNN of the FedAvg paper as FedSOL uses it: two 5x5 convolutions (32, 64) and a hidden layer of 512."""

    padding: int = param(default=2, ge=0, le=2, doc="padding of both convolutions", source="FedSOL code")
    replicate_grey: bool = param(
        default=True,
        doc="grey images become three-channel ones; else the network takes one channel",
        source="FedSOL code",
    )

    def build(self, shape: tuple[int, ...], num_classes: int) -> Model:
        """512 features, a linear head."""
        channels, height, width = image_shape("fedavg_cnn", shape, at_least=16 - 6 * self.padding)
        to_rgb, channels = as_rgb(channels) if self.replicate_grey else (nn.Identity(), channels)
        body = nn.Sequential(to_rgb, *_conv5_layers(channels, height, width, self.padding))
        return Model(body, nn.Linear(512, num_classes))


@architectures.register("fedas_cnn")
class FedASCNN(Architecture):
    """CNN of FedAS: two 5x5 convolutions (32, 64) without padding and a hidden layer of 512."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> Model:
        """512 features, a linear head."""
        channels, height, width = image_shape("fedas_cnn", shape, at_least=16)
        return Model(nn.Sequential(*_conv5_layers(channels, height, width, padding=0)), nn.Linear(512, num_classes))


@architectures.register("cnn8")
class CNN8(Architecture):
    """CNN for 8x8 digits: two 3x3 convolutions (16, 32), max-pool and a hidden layer of 64."""

    norm: Literal["none", "batch"] = param(default="none", doc="normalisation after each convolution")

    def build(self, shape: tuple[int, ...], num_classes: int) -> Model:
        """64 features, a linear head."""
        channels, height, width = image_shape("cnn8", shape, at_least=2)
        norm = NORMS[self.norm]
        body = nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1),
            norm(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            norm(32),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * (height // 2) * (width // 2), 64),
            nn.ReLU(),
        )
        return Model(body, nn.Linear(64, num_classes))


def _conv5_layers(channels: int, height: int, width: int, padding: int) -> list[nn.Module]:
    """Images to 512 features."""

    def side(pixels: int) -> int:
        for _ in range(2):
            pixels = (pixels + 2 * padding - 4) // 2
        return pixels

    return [
        nn.Conv2d(channels, 32, 5, padding=padding),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 5, padding=padding),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * side(height) * side(width), 512),
        nn.ReLU(),
    ]
