"""A model is a body and a head; calling it gives logits and the features between the two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from unskew.base.batch import Output
from unskew.base.errors import InputError
from unskew.base.registry import Component, Registry


class Model(nn.Module):
    """A network split in two, so that parameter names start with `body.` or `head.`."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, x: Tensor) -> Output:
        """Logits and features of a batch."""
        features = self.body(x)
        return Output(self.head(features), features)


class Architecture(Component):
    """The recipe of a model; it adapts to the data's input shape and number of classes."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> Model:
        """A freshly initialised model for inputs of `shape` (channels, height, width)."""
        raise TypeError(f"{type(self).__name__} must define build(shape, num_classes)")

    @property
    def is_foreign(self) -> bool:
        """Whether it gives a user's network, which is tried before a run."""
        return not type(self).__module__.startswith("unskew.models.")

    @property
    def label(self) -> str:
        """How errors call it."""
        return f"model {self}"


architectures: Registry[Architecture] = Registry("model", Architecture)


def build(spec: str | Mapping[str, Any] | Architecture, shape: tuple[int, ...], num_classes: int) -> Model:
    """A freshly initialised model from text such as `convnet3(width=64)`, a table, or an architecture.

    A user's network is checked: what is wrong with it is one line.
    """
    from unskew.models.checks import check_model, explain_failure  # which needs the classes above

    architecture = architectures.build(spec)
    if not architecture.is_foreign:
        return architecture.build(shape, num_classes)
    try:
        model: object = architecture.build(shape, num_classes)
    except InputError as error:
        label = architecture.label
        raise InputError(str(error) if label in str(error) else f"{label}: {error}") from None
    except Exception as error:
        raise explain_failure(architecture.label, shape, 2, error) from error
    return check_model(architecture.label, model, shape, num_classes)
