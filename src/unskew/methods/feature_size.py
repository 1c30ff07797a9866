"""How many features the body gives, as a method's server can know it: by the head's weights."""

from __future__ import annotations

from unskew.base.errors import InputError
from unskew.base.tree import Tree


def count_features(model: Tree) -> int:
    """The size of the features that the head of these parameters takes, of a linear layer or a 1x1 convolution."""
    for name, value in model.items():
        if name.startswith("head.") and value.dim() > 1:
            return value.shape[1]
    raise InputError("expected a head with weights, which tell the number of features; the model's has none")
