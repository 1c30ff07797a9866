"""Your own network: any `nn.Module` whose last layer you name."""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import torch
from torch import Tensor, nn

from unskew.base import seeds
from unskew.base.contents import Contents
from unskew.base.errors import InputError
from unskew.base.plugins import call_object, load_home
from unskew.base.registry import param
from unskew.base.torch_private import own_parameters
from unskew.models.base import Architecture, Model, architectures
from unskew.models.checks import check_module, copy_module, make_example


def split_head(module: nn.Module, head: str | None = None, example: Tensor | None = None) -> Model:
    """A copy of `module` as body and head; `head` names its last layer, such as "fc" or "classifier.1".

    With an `example` batch it checks that the split changes nothing.
    """
    if isinstance(module, Model):
        return module
    if not isinstance(head, str | None):
        raise InputError(f"{type(module).__name__}: expected head as the name of its last layer, got {head!r}")
    body = copy_module(f"model {type(module).__name__}", module)
    layer = dict(body.named_modules()).get(head) if head else None
    if not head or layer is None:
        children = ", ".join(name for name, _ in module.named_children()) or "none"
        problem = f"has no layer '{head}'" if head else "needs its last layer's name"
        trained = [name for name, each in module.named_modules() if name and own_parameters(each)]
        hint = f'say head="{trained[-1]}" if that is the last' if trained else "put its last layer into an attribute"
        raise InputError(f"{type(module).__name__} {problem}; {hint}; its layers: {children}")
    parent, _, name = head.rpartition(".")
    setattr(body.get_submodule(parent), name, nn.Identity())
    model = Model(body, layer).train(module.training)
    if example is not None:
        _check_same(module, model, head, example)
    return model


def _check_same(module: nn.Module, model: Model, head: str, example: Tensor) -> None:
    # copies: a forward pass may update buffers, and evaluation mode switches dropout off
    whole, parts = copy.deepcopy(module).eval(), copy.deepcopy(model).eval()
    # a forward pass that draws something draws the same in both
    with torch.no_grad(), seeds.seed_everything(0, "head"):
        expected = whole(example.clone())  # one that it changes is found, and said, later
    if not isinstance(expected, Tensor):
        raise InputError(f"{type(module).__name__} must return its logits, got {type(expected).__name__}")
    with torch.no_grad(), seeds.seed_everything(0, "head"):
        trained = whole.train()(example.clone())
    if not isinstance(trained, Tensor) or trained.shape != expected.shape:
        got = tuple(trained.shape) if isinstance(trained, Tensor) else type(trained).__name__
        raise InputError(
            f"{type(module).__name__} must return its logits of shape {tuple(expected.shape)} in training, too, got "
            f"{got}; leave out auxiliary outputs"
        )
    with torch.no_grad(), seeds.seed_everything(0, "head"):
        try:
            same = torch.allclose(parts(example.clone()).logits, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
        except (RuntimeError, TypeError, ValueError, AttributeError, IndexError):
            same = False  # what follows the head cannot work on the head's input
    if not same:
        raise InputError(
            f"{type(module).__name__}: the head must be the last layer, but the output changes after '{head}'; "
            "move what follows it (softmax, flatten) before it or into it"
        )


@architectures.register("python")
class PythonModule(Architecture):
    """Your own network: a Python function (or class) of the input's shape and the number of classes."""

    target: str = param(doc="path/to/file.py:function or package.module:function, called with (shape, num_classes)")
    head: str = param(
        default="", doc="name of its last layer, such as fc; not needed where the function returns a Model"
    )

    def code_used(self) -> tuple[Any, ...]:
        """The module of the function."""
        return (load_home(self.target, "model"),)

    def build(self, shape: tuple[int, ...], num_classes: int) -> Model:
        """The function's network, split at its head."""
        module = call_object(self.target, "model", shape=shape, num_classes=num_classes)
        if not isinstance(module, nn.Module):
            raise InputError(f"model {self.target}: expected an nn.Module, got {type(module).__name__}")
        check_module(self.label, module)
        return split_head(module, self.head, make_example(shape))

    @property
    def is_foreign(self) -> bool:
        """It is the user's."""
        return True

    @property
    def label(self) -> str:
        """The function."""
        return f"model {self.target}"


@architectures.register("given")
class GivenModule(Architecture):
    """A module that a Python program handed over; it starts from the weights it has, whatever the seed."""

    kind: str = param(default="", doc="the module's class, for the record")
    head: str = param(default="", doc="name of its last layer")
    fingerprint: str = param(default="", doc="a hash of its weights and layers, so that others are another run")

    @classmethod
    def of(cls, module: nn.Module, head: str = "") -> GivenModule:
        """The architecture that gives copies of this module."""
        check_module(f"model {type(module).__name__}", module)
        digest = hashlib.sha256()
        for name, value in module.state_dict().items():
            if not isinstance(value, Tensor):  # what get_extra_state gives is made of attributes, which count below
                continue
            digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
            digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        frozen = [name for name, value in module.named_parameters() if not value.requires_grad]
        digest.update(repr(frozen).encode() if frozen else b"")
        contents = Contents(module)
        digest.update(contents.text.encode())
        made = cls(kind=type(module).__name__, head=head, fingerprint=digest.hexdigest()[:16])
        # a copy: what the program does with its own later is not the run's
        object.__setattr__(made, "_module", copy_module(made.label, module))
        object.__setattr__(made, "_used", tuple(contents.used))
        return made

    def code_used(self) -> tuple[Any, ...]:
        """The classes of the module and of its layers, and what else of the user's these hold."""
        classes = (type(layer) for layer in self._require().modules())
        held: tuple[Any, ...] = getattr(self, "_used", ())
        return tuple(dict.fromkeys((*classes, *held)))

    def build(self, shape: tuple[int, ...], num_classes: int) -> Model:
        """A copy of the module, its head found and checked."""
        return copy_module(self.label, split_head(self._require(), self.head, make_example(shape)))

    def _require(self) -> nn.Module:
        module: nn.Module | None = getattr(self, "_module", None)
        if module is None:
            raise InputError(
                f"this run's model ({self.kind}) was handed over by a Python program; hand it over again from Python, "
                "with model=... and head=... of unskew.resume or unskew.open"
            )
        return module

    @property
    def is_foreign(self) -> bool:
        """It is the user's."""
        return True

    @property
    def label(self) -> str:
        """The module's class."""
        return f"model {self.kind}"
