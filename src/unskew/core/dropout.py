"""Dropout layers of one client at a time: their masks come from the visit's own stream.

The numbers are those that torch's global generator gives after the visit has seeded it. But that one belongs to the
whole process: what a program draws in another thread would change the masks.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from unskew.base import seeds
from unskew.base.torch_private import current_level

KINDS = (nn.Dropout, nn.Dropout2d)


def find_dropout(module: nn.Module) -> list[nn.Module]:
    """The layers whose masks can be drawn from another stream; no subclass, which may do something else."""
    return [layer for layer in module.modules() if type(layer) in KINDS]


def use_own_stream(layers: list[nn.Module]) -> None:
    """From now on these layers draw from the visit's own stream."""
    for layer in layers:
        layer.forward = functools.partial(drop, layer)


def use_global_stream(layers: list[nn.Module]) -> None:
    """They are as torch made them again."""
    for layer in layers:
        layer.__dict__.pop("forward", None)


def drop(layer: Any, x: Tensor) -> Tensor:
    """What torch does on a CPU, step for step, with another generator."""
    whole = type(layer) is nn.Dropout
    plain = x.device.type == "cpu" and 0 < layer.p < 1 and x.numel() and (whole or x.dim() == 4)
    if not layer.training or not plain or current_level() is not None:
        untouched: Tensor = type(layer).forward(layer, x)
        return untouched
    noise = torch.empty_like(x) if whole else x.new_empty(*x.shape[:2], 1, 1)
    noise = noise.detach().bernoulli_(1 - layer.p, generator=seeds.layer_stream()).div_(1 - layer.p)
    return x.mul_(noise) if layer.inplace else x * noise
