"""How large a model is and what one forward pass costs."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from unskew.models.base import Architecture, Model


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


class _WithoutNumbers(TorchFunctionMode):
    """Skips initialisation: on tensors that are only shapes, some of its functions import torch's compiler (3 s)."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in (Tensor.normal_, Tensor.log) or getattr(function, "__module__", "") == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return (torch.empty if function is torch.randn else function)(*args, **kwargs)


def build_shapes(architecture: Architecture, shape: tuple[int, ...], num_classes: int) -> Model:
    """The model with the shapes of its parameters alone: no memory, however large the input."""
    with torch.device("meta"), _WithoutNumbers():
        return architecture.build(shape, num_classes)
