"""Models: every architecture of the papers, and any `nn.Module` of your own."""

from unskew.models import cnn, convnet, mlp, mobilenet, resnet, vgg, vit  # noqa: F401  (importing registers them)
from unskew.models.base import Architecture, Model, Output, architectures, build
from unskew.models.own import split_head
from unskew.models.summary import Summary, count_parameters, describe

__all__ = [
    "Architecture",
    "Model",
    "Output",
    "Summary",
    "architectures",
    "build",
    "count_parameters",
    "describe",
    "split_head",
]
