"""ResNets, for small images (3x3 stem) and in ImageNet's form."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Literal

from torch import nn

from unskew.base.registry import param
from unskew.models.base import Architecture, Model, architectures
from unskew.models.layers import NORMS, Norm, Residual, image_shape

Branch = Callable[[int, int, int, Norm], tuple[nn.Module, int]]  # input channels, width, stride, norm


@architectures.register("resnet18")
class ResNet18(Architecture):
    """ResNet-18 for small images: 3x3 stem, no max-pool, strides 1, 2, 2, 2."""

    norm: Literal["batch", "batch_stats"] = param(
        default="batch",
        doc="batch_stats: batch statistics at test time too (no buffers), as FedSOL does",
        source="FedBlade",
    )

    def build(self, shape: tuple[int, ...], num_classes: int) -> Model:
        """512 features, a linear head."""
        channels, _, _ = image_shape("resnet18", shape, at_least=8)
        norm = NORMS[self.norm]
        return _resnet(_small_stem(channels, norm), (2, 2, 2, 2), _basic, norm, num_classes)


@architectures.register("resnet18_imagenet")
class ResNet18ImageNet(Architecture):
    """ResNet-18 in torchvision's form: 7x7 stem of stride 2 and a max-pool; FedAF uses it."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> Model:
        """512 features, a linear head."""
        channels, _, _ = image_shape("resnet18_imagenet", shape, at_least=16)
        stem = nn.Sequential(
            nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        model = _resnet(stem, (2, 2, 2, 2), _basic, nn.BatchNorm2d, num_classes)
        for module in model.modules():
            if isinstance(module, nn.Conv2d):  # torchvision's initialisation
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        return model


@architectures.register("resnet50")
class ResNet50(Architecture):
    """ResNet-50 for small images: 3x3 stem, no max-pool, bottleneck blocks."""

    norm: Literal["batch", "batch_stats"] = param(
        default="batch",
        doc="batch_stats: batch statistics at test time too (no buffers)",
        source="FLFA, form not stated",
    )

    def build(self, shape: tuple[int, ...], num_classes: int) -> Model:
        """2048 features, a linear head."""
        channels, _, _ = image_shape("resnet50", shape, at_least=8)
        norm = NORMS[self.norm]
        return _resnet(_small_stem(channels, norm), (3, 4, 6, 3), _bottleneck, norm, num_classes)


def _resnet(stem: nn.Module, depths: tuple[int, ...], branch: Branch, norm: Norm, num_classes: int) -> Model:
    layers: OrderedDict[str, nn.Module] = OrderedDict(stem=stem)
    channels = 64
    for stage, depth in enumerate(depths):
        blocks = []
        for index in range(depth):
            stride = 2 if stage > 0 and index == 0 else 1
            block, channels = _block(channels, 64 * 2**stage, stride, norm, branch)
            blocks.append(block)
        layers[f"stage{stage + 1}"] = nn.Sequential(*blocks)
    body = nn.Sequential(layers | {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()})
    return Model(body, nn.Linear(channels, num_classes))


def _block(channels: int, width: int, stride: int, norm: Norm, branch: Branch) -> tuple[nn.Module, int]:
    """A residual block and its output channels; the shortcut is projected where the shape changes."""
    path, out = branch(channels, width, stride, norm)
    shortcut: nn.Module = nn.Identity()
    if stride != 1 or channels != out:
        shortcut = nn.Sequential(_conv(channels, out, 1, stride), norm(out))
    return nn.Sequential(Residual(path, shortcut), nn.ReLU()), out


def _basic(channels: int, width: int, stride: int, norm: Norm) -> tuple[nn.Module, int]:
    convs = _conv(channels, width, 3, stride), norm(width), nn.ReLU(), _conv(width, width, 3), norm(width)
    return nn.Sequential(*convs), width


def _bottleneck(channels: int, width: int, stride: int, norm: Norm) -> tuple[nn.Module, int]:
    narrow = _conv(channels, width, 1), norm(width), nn.ReLU()
    middle = _conv(width, width, 3, stride), norm(width), nn.ReLU()
    return nn.Sequential(*narrow, *middle, _conv(width, 4 * width, 1), norm(4 * width)), 4 * width


def _small_stem(channels: int, norm: Norm) -> nn.Module:
    return nn.Sequential(_conv(channels, 64, 3), norm(64), nn.ReLU())


def _conv(channels: int, out: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels, out, size, stride, padding=size // 2, bias=False)
