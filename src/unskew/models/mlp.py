"""Fully connected networks."""

from __future__ import annotations

import math
from itertools import pairwise

from pydantic import PositiveInt
from torch import nn

from unskew.base.registry import param
from unskew.models.base import Architecture, Model, architectures


@architectures.register("mlp")
class MLP(Architecture):
    """Fully connected network with ReLU; takes inputs of any shape; no hidden layer is logistic regression."""

    hidden: tuple[PositiveInt, ...] = param(
        default=(64,), doc="widths of the hidden layers; the last one gives the features"
    )

    def build(self, shape: tuple[int, ...], num_classes: int) -> Model:
        """Flatten, hidden layers; a linear head."""
        widths = (math.prod(shape), *self.hidden)
        layers = [layer for ins, outs in pairwise(widths) for layer in (nn.Linear(ins, outs), nn.ReLU())]
        return Model(nn.Sequential(nn.Flatten(), *layers), nn.Linear(widths[-1], num_classes))
