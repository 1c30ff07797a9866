"""A projection head: two layers between a network's features and its classifier."""

from __future__ import annotations

import copy
from collections import OrderedDict

from torch import nn

from unskew.models.base import Model
from unskew.models.etf import head_inputs


def attach_projection(model: Model, num_classes: int, size: int) -> Model:
    """A copy of the model whose features are `size` projected ones, with a linear classifier behind them."""
    made, inputs = copy.deepcopy(model), head_inputs(model.head)
    project = nn.Sequential(nn.Linear(inputs, inputs), nn.ReLU(), nn.Linear(inputs, size))
    layers = made.body.named_children() if type(made.body) is nn.Sequential else [("encoder", made.body)]
    body = nn.Sequential(OrderedDict([*layers, ("projection", project)]))
    return Model(body, nn.Linear(size, num_classes)).to(next(model.parameters()))
