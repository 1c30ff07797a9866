"""The ConvNet of the data-condensation papers."""

from __future__ import annotations

from typing import Literal

from torch import nn

from unskew.base.registry import param
from unskew.models.base import Architecture, Model, architectures
from unskew.models.layers import NORMS, image_shape


@architectures.register("convnet3")
class ConvNet3(Architecture):
    """ConvNet of FedAF: three times 3x3 convolution, normalisation, ReLU, average-pool; then a linear head."""

    width: int = param(default=128, ge=1, doc="channels of every convolution", source="FedAF paper")
    norm: Literal["batch", "batch_stats", "instance", "none"] = param(
        default="batch",
        doc="batch; batch_stats (no running statistics); instance (as in data condensation); none",
        source="FedAF paper",
    )

    def build(self, shape: tuple[int, ...], num_classes: int) -> Model:
        """`width` x H/8 x W/8 features, a linear head."""
        channels, height, width = image_shape("convnet3", shape, at_least=8)
        pad = 3 if (height, width) == (28, 28) else 1  # MNIST's 28 pixels become 32
        height, width = height + 2 * pad - 2, width + 2 * pad - 2
        body = nn.Sequential(
            *self._block(channels, padding=pad), *self._block(self.width), *self._block(self.width), nn.Flatten()
        )
        return Model(body, nn.Linear(self.width * (height // 8) * (width // 8), num_classes))

    def _block(self, channels: int, padding: int = 1) -> list[nn.Module]:
        conv = nn.Conv2d(channels, self.width, 3, padding=padding)
        return [conv, NORMS[self.norm](self.width), nn.ReLU(), nn.AvgPool2d(2)]
