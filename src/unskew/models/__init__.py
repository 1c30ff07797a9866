"""Models: every architecture of the papers, and any `nn.Module` of your own."""

import importlib
import pkgutil

from unskew.base.batch import Output
from unskew.models.base import Architecture, Model, architectures, build
from unskew.models.sizes import ModelSize, count_parameters, describe_model
from unskew.models.user_module import split_head

for _module in pkgutil.iter_modules(__path__):  # importing a file registers what it holds
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "Architecture",
    "Model",
    "ModelSize",
    "Output",
    "architectures",
    "build",
    "count_parameters",
    "describe_model",
    "split_head",
]
