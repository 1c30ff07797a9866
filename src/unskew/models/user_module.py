"""Your own network: any `nn.Module` whose last layer you name."""

from __future__ import annotations

import copy
import hashlib

import torch
from torch import Tensor, nn

from unskew.base.errors import InputError, one_line
from unskew.base.plugins import call_object
from unskew.base.registry import param
from unskew.models.base import Architecture, Model, architectures


def split_head(module: nn.Module, head: str | None = None, example: Tensor | None = None) -> Model:
    """A copy of `module` as body and head; `head` names its last layer, such as "fc" or "classifier.1".

    With an `example` batch it checks that the split changes nothing.
    """
    if isinstance(module, Model):
        return module
    body = copy.deepcopy(module)
    layer = dict(body.named_modules()).get(head) if head else None
    if not head or layer is None:
        children = ", ".join(name for name, _ in module.named_children()) or "none"
        problem = f"has no layer '{head}'" if head else "needs its last layer's name"
        raise InputError(f'{type(module).__name__} {problem}; say head="fc"; its layers: {children}')
    parent, _, name = head.rpartition(".")
    setattr(body.get_submodule(parent), name, nn.Identity())
    model = Model(body, layer).train(module.training)
    if example is not None:
        _check_same(module, model, head, example)
    return model


def _check_same(module: nn.Module, model: Model, head: str, example: Tensor) -> None:
    # copies: a forward pass may update buffers, and evaluation mode switches dropout off
    whole, parts = copy.deepcopy(module).eval(), copy.deepcopy(model).eval()
    with torch.no_grad():
        expected = whole(example)
        if not isinstance(expected, Tensor):
            raise InputError(f"{type(module).__name__} must return its logits, got {type(expected).__name__}")
        try:
            same = torch.allclose(parts(example).logits, expected, rtol=1e-4, atol=1e-5)
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

    def build(self, shape: tuple[int, ...], num_classes: int) -> Model:
        """The function's network, split at its head and tried on two random inputs."""
        module = call_object(self.target, "model", shape, num_classes)
        if not isinstance(module, nn.Module):
            raise InputError(f"model {self.target}: expected an nn.Module, got {type(module).__name__}")
        example = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))  # leaves the global state alone
        try:
            model = split_head(module, self.head, example)
            logits, features = copy.deepcopy(model).eval()(example)
        except InputError as error:
            raise InputError(f"model {self.target}: {error}") from None
        except Exception as error:
            raise InputError(f"model {self.target} fails on inputs of shape {shape}: {one_line(error)}") from error
        if logits.shape != (2, num_classes) or features.ndim != 2:
            raise InputError(
                f"model {self.target}: for 2 inputs expected logits of shape (2, {num_classes}) and flat features, "
                f"got {tuple(logits.shape)} and {tuple(features.shape)}"
            )
        return model


@architectures.register("given")
class GivenModule(Architecture):
    """A module that a Python program handed over; it starts from the weights it has, whatever the seed."""

    kind: str = param(default="", doc="the module's class, for the record")
    head: str = param(default="", doc="name of its last layer")
    fingerprint: str = param(default="", doc="a hash of its weights, so that other weights are another run")

    @classmethod
    def of(cls, module: nn.Module, head: str = "") -> GivenModule:
        """The architecture that gives copies of this module."""
        digest = hashlib.sha256()
        for name, value in module.state_dict().items():
            digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
            digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        made = cls(kind=type(module).__name__, head=head, fingerprint=digest.hexdigest()[:16])
        object.__setattr__(made, "_module", module)
        return made

    def build(self, shape: tuple[int, ...], num_classes: int) -> Model:
        """A copy of the module, its head found and checked."""
        module: nn.Module | None = getattr(self, "_module", None)
        if module is None:
            raise InputError(
                f"this run's model ({self.kind}) was handed over by a Python program; resume it from Python "
                "with unskew.resume(folder, model=..., head=...)"
            )
        example = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
        return copy.deepcopy(split_head(module, self.head, example))
