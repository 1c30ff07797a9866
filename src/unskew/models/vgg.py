"""VGG-11 for small images."""

from __future__ import annotations

from torch import nn

from unskew.models.base import Architecture, Model, architectures
from unskew.models.layers import image_shape, resize_layer


@architectures.register("vgg11")
class VGG11(Architecture):
    """VGG-11 of FedSOL: eight 3x3 convolutions without normalisation and two hidden layers of 512."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> Model:
        """512 features, a linear head; images below 32 pixels are up-sampled to 32, five max-pools need that."""
        channels, height, width = image_shape("vgg11", shape, at_least=16)
        layers: list[nn.Module] = [resize_layer(height, width, max(height, 32), max(width, 32))]
        for group in ((64,), (128,), (256, 256), (512, 512), (512, 512)):
            for out in group:
                layers += [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU()]
                channels = out
            layers.insert(-1, nn.MaxPool2d(2))  # before the ReLU: same value (they commute), a quarter of the work
        # the pool does nothing on 32 pixels and makes larger images fit
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        layers += [nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()]
        return Model(nn.Sequential(*layers), nn.Linear(512, num_classes))
