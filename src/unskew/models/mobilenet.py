"""MobileNetV2 for small images, in the two forms that papers use."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from torch import nn

from unskew.models.base import Architecture, Model, architectures
from unskew.models.layers import Residual, as_rgb, image_shape

Stage = tuple[int, int, int, int]  # expansion, output channels, repeats, stride of the first block
Block = Callable[[int, int, int, int], nn.Module]  # input channels, output channels, expansion, stride


@architectures.register("mobilenetv2_flfa")
class MobileNetV2FLFA(Architecture):
    """MobileNetV2 of FLFA: a padded 1x1 stem, convolutions with bias, ReLU6 and a 1x1 convolution as the head."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> Model:
        """1280 features; the head is a 1x1 convolution, so that each layer is a candidate for feedback alignment."""
        channels, _, _ = image_shape("mobilenetv2_flfa", shape, at_least=8)
        to_rgb, channels = as_rgb(channels)
        stem = nn.Sequential(to_rgb, nn.Conv2d(channels, 32, 1, padding=1), nn.BatchNorm2d(32), nn.ReLU6())
        last = nn.Sequential(nn.Conv2d(320, 1280, 1), nn.BatchNorm2d(1280), nn.ReLU6())
        stages = (
            (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 1), (6, 320, 1, 1)
        )  # fmt: skip
        return Model(_body(stem, stages, _flfa_block, last), _conv_head(1280, num_classes), _strided(stages))


@architectures.register("mobilenetv2")
class MobileNetV2(Architecture):
    """MobileNetV2 of FedETF, FedDecorr and FedBlade: a 3x3 stem, no biases, ReLU and projected shortcuts."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> Model:
        """1280 features, a linear head."""
        channels, _, _ = image_shape("mobilenetv2", shape, at_least=8)
        stem = nn.Sequential(nn.Conv2d(channels, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU())
        last = nn.Sequential(nn.Conv2d(320, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.ReLU())
        stages = (
            (1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)
        )  # fmt: skip
        return Model(_body(stem, stages, _projected_block, last), nn.Linear(1280, num_classes), _strided(stages))


def _strided(stages: tuple[Stage, ...]) -> tuple[str, ...]:
    """Stages that halve the image: each is a depth of its own."""
    return tuple(f"stage{number}" for number, (*_, stride) in enumerate(stages, start=1) if stride > 1)


def _body(stem: nn.Module, stages: tuple[Stage, ...], block: Block, last: nn.Module) -> nn.Module:
    layers: OrderedDict[str, nn.Module] = OrderedDict(stem=stem)
    channels = 32
    for number, (expansion, out, repeats, stride) in enumerate(stages, start=1):
        blocks = [block(channels, out, expansion, stride)]
        blocks += [block(out, out, expansion, 1) for _ in range(repeats - 1)]
        layers[f"stage{number}"] = nn.Sequential(*blocks)
        channels = out
    return nn.Sequential(layers | {"last": last, "pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()})


def _inverted(channels: int, out: int, expansion: int, stride: int, bias: bool, relu: type[nn.Module]) -> nn.Module:
    """Widen (1x1), filter each channel on its own (3x3), narrow (1x1)."""
    wide = channels * expansion
    return nn.Sequential(
        nn.Conv2d(channels, wide, 1, bias=bias),
        nn.BatchNorm2d(wide),
        relu(),
        nn.Conv2d(wide, wide, 3, stride, padding=1, groups=wide, bias=bias),
        nn.BatchNorm2d(wide),
        relu(),
        nn.Conv2d(wide, out, 1, bias=bias),
        nn.BatchNorm2d(out),
    )


def _flfa_block(channels: int, out: int, expansion: int, stride: int) -> nn.Module:
    branch = _inverted(channels, out, expansion, stride, bias=True, relu=nn.ReLU6)
    return Residual(branch, nn.Identity()) if stride == 1 and channels == out else branch


def _projected_block(channels: int, out: int, expansion: int, stride: int) -> nn.Module:
    branch = _inverted(channels, out, expansion, stride, bias=False, relu=nn.ReLU)
    if stride != 1:
        return branch
    projection = nn.Sequential(nn.Conv2d(channels, out, 1, bias=False), nn.BatchNorm2d(out))
    return Residual(branch, nn.Identity() if channels == out else projection)


def _conv_head(features: int, num_classes: int) -> nn.Module:
    to_map = nn.Unflatten(1, (features, 1, 1))
    conv = nn.Conv2d(features, num_classes, 1)
    return nn.Sequential(OrderedDict(to_map=to_map, conv=conv, flatten=nn.Flatten()))
