"""How large a model is and what one forward pass costs."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from unskew.models.base import Model


class ModelSize(NamedTuple):
    """How large a model is; `macs` are the multiply-accumulates of its convolutions and linear layers on one input."""

    parameters: int
    buffers: int
    features: int
    macs: int


def count_parameters(model: nn.Module) -> int:
    """How many trainable numbers the model has."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def describe_model(model: Model, shape: tuple[int, ...]) -> ModelSize:
    """The sizes of a model for inputs of this shape; the model itself stays as it is."""
    macs = 0

    def add(module: nn.Module, _: Any, output: Tensor) -> None:
        nonlocal macs
        weight: Any = module.weight
        macs += output.numel() * weight[0].numel()  # each output is one dot product with one filter

    probe = copy.deepcopy(model).eval()
    for module in probe.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            module.register_forward_hook(add)
    like = next(probe.parameters())
    with torch.no_grad():
        features = probe(torch.zeros(1, *shape, dtype=like.dtype, device=like.device)).features
    buffers = sum(buffer.numel() for buffer in model.buffers())
    return ModelSize(count_parameters(model), buffers, features.shape[1], macs)
