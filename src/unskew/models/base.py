"""A model is a body and a head; calling it gives logits and the features between the two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from unskew.base.batch import Output
from unskew.base.errors import InputError
from unskew.base.registry import Component, Registry
from unskew.base.user_code import Loaded, note_loaded


class Model(nn.Module):
    """A network split in two, so that parameter names start with `body.` or `head.`.

    `depths`: parts of the body whose outputs are features of several depths; by default all that learn (`find_depths`).
    """

    def __init__(self, body: nn.Module, head: nn.Module, depths: tuple[str, ...] | None = None) -> None:
        super().__init__()
        self.body, self.head, self.depths = body, head, depths

    def forward(self, x: Tensor) -> Output:
        """Logits and features of a batch."""
        features = self.body(x)
        return Output(self.head(features), features)


ACTIVATIONS = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.GELU, nn.SiLU)


def find_depths(model: Model) -> tuple[str, ...]:
    """Layers that give features of several depths, from the input upwards, each before its part's last activation.

    The last part that learns gives the features themselves, and is not among them.
    """
    parts = dict(model.body.named_children())
    learn = [name for name, part in parts.items() if any(isinstance(m, (nn.Conv2d, nn.Linear)) for m in part.modules())]
    chosen = learn[:-1] if model.depths is None else model.depths
    return tuple(_descend(f"body.{name}", parts[name]) for name in chosen)


def _descend(path: str, part: nn.Module) -> str:
    """The layer before an activation at the end of a part, or the part itself."""
    while isinstance(part, nn.Sequential) and len(part):
        *before, (name, last) = part.named_children()
        if isinstance(last, ACTIVATIONS) and before and not getattr(last, "inplace", False):  # else it changes the map
            name, last = before[-1]
        elif not isinstance(last, nn.Sequential):
            break
        path, part = f"{path}.{name}", last
    return path


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


def _is_too_large(error: Exception) -> bool:
    """Whether torch could not make a tensor because of its size; it says so in several ways."""
    words = ("allocate memory", "not enough memory", "overflow", "out of memory")
    return isinstance(error, (MemoryError, OverflowError)) or any(word in str(error).lower() for word in words)


architectures: Registry[Architecture] = Registry("model", Architecture)


def build(spec: str | Mapping[str, Any] | Architecture, shape: tuple[int, ...], num_classes: int) -> Model:
    """A freshly initialised model from text such as `convnet3(width=64)`, a table, or an architecture.

    A user's network is checked: what is wrong with it is one line.
    """
    from unskew.models.checks import check_model, explain_failure  # which needs the classes above

    architecture = architectures.build(spec)
    if not architecture.is_foreign:
        try:
            return architecture.build(shape, num_classes)
        except (MemoryError, OverflowError, RuntimeError, TypeError) as error:
            if not _is_too_large(error):
                raise
            raise InputError(f"{architecture.label} does not fit memory; make it smaller") from error
    loaded = Loaded()  # what a network imports while it is tried, a run should know of
    try:
        model: object = architecture.build(shape, num_classes)
    except InputError as error:
        label = architecture.label
        raise InputError(str(error) if label in str(error) else f"{label}: {error}") from None
    except Exception as error:
        raise explain_failure(architecture.label, shape, 2, error) from error
    checked = check_model(architecture.label, model, shape, num_classes)
    note_loaded(loaded.list_files())
    return checked
