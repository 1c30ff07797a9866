"""What an object holds, as a short text: the same in every process, for objects that behave the same.

Nothing in it depends on places in memory, on the order of sets or on counters of a process. Functions count by their
code and the values they close over, modules of torch layer by layer, all else by its class and what it holds.
"""

from __future__ import annotations

import contextlib
import copyreg
import enum
import sys
import weakref
from collections.abc import Iterable, Iterator
from types import FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from unskew.base.torch_private import list_hooks, own_buffers, own_parameters
from unskew.base.user_code import digest, is_own, show_uncopied, take_apart

DEPTH = 40
"""What lies deeper counts by its class only."""
_PLAIN = (bool, int, float, complex, str, bytes)
_OWN_OF_TORCH = frozenset(vars(nn.Module()))
"""What every module holds: its layers, parameters, buffers and hooks, and whether it is in training."""


class Contents:
    """Describes a network; `used` are the user's classes and functions among what it holds."""

    def __init__(self, module: nn.Module) -> None:
        self.used: list[Any] = []
        self._known: dict[int, tuple[Any, str]] = {}  # the object, too: else another one may get its place in memory
        self._open: dict[int, int] = {}
        self._note_parts(module)
        self.text = digest(repr(list(self._describe_layers(module))).encode())

    def _note_parts(self, module: nn.Module) -> None:
        """Layers and parameters are named, wherever an attribute or a closure refers to them."""
        for kind, parts in (("layer", module.named_modules()), ("parameter", module.named_parameters())):
            for name, part in parts:  # type: ignore[attr-defined]
                self._known[id(part)] = part, f"{kind} {name}"

    def _describe_layers(self, module: nn.Module) -> Iterator[Any]:
        for name, layer in module.named_modules(remove_duplicate=False):
            known = self._known[id(layer)][1]
            yield name, known if known != f"layer {name}" else self._describe_module(layer)

    def _describe_module(self, module: nn.Module) -> Any:
        own = {name: value for name, value in vars(module).items() if name not in _OWN_OF_TORCH}
        hooks = [(kind, self.describe(hook), *flags) for kind, hook, *flags in list_hooks(module)]
        parameters = [(name, self.describe(value)) for name, value in own_parameters(module).items()]
        # those that are saved count by their values elsewhere; the others are constants
        buffers = [(name, self.describe(value)) for name, value in own_buffers(module).items()]
        return self._name(type(module)), parameters, buffers, self._describe_pairs(sorted(own.items())), hooks

    def describe(self, value: Any) -> str:
        """A short text of any object."""
        if value is None or type(value) in _PLAIN:
            return f"{type(value).__name__} {value!r}"
        if id(value) in self._known:
            return self._known[id(value)][1]
        if id(value) in self._open:  # inside itself: so many levels up
            return f"again {len(self._open) - self._open[id(value)]}"
        if len(self._open) >= DEPTH:
            return self._name(type(value))
        self._open[id(value)] = len(self._open)
        try:
            said = digest(repr(self._take_apart(value)).encode())
        finally:
            del self._open[id(value)]
        self._known[id(value)] = value, said
        return said

    def _take_apart(self, value: Any) -> Any:
        if isinstance(value, type):
            return "class", self._name(value)
        if isinstance(value, ModuleType):
            return "module", value.__name__
        if isinstance(value, FunctionType):
            return self._describe_function(value)
        if isinstance(value, MethodType):
            return "method", self.describe(value.__func__), self.describe(value.__self__)
        kind = self._name(type(value))
        if isinstance(value, RemovableHandle):  # holds the process's count of hooks
            return (kind,)
        if isinstance(value, Tensor):
            return kind, *_describe_tensor(value)
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            return kind, str(value.dtype), value.shape, digest(np.ascontiguousarray(value).tobytes())
        if isinstance(value, nn.Module):  # in a list or a closure
            layers = [(name, self.describe(layer)) for name, layer in value.named_children()]
            return self._describe_module(value), layers
        return kind, *self._describe_parts(value)

    def _describe_parts(self, value: Any) -> Iterator[Any]:
        if isinstance(value, (dict, MappingProxyType)):
            yield self._describe_pairs(value.items())
        elif isinstance(value, (list, tuple)):
            yield list(map(self.describe, value))
        elif isinstance(value, (set, frozenset)):
            yield sorted(map(self.describe, value))
            yield self._describe_attributes(value)
            return
        if type(value) in (dict, list, tuple):
            return
        try:
            known = copyreg.dispatch_table.get(type(value))
            # what a copy would be made of: attributes, slots, items, a generator's state
            made = known(value) if known else value.__reduce_ex__(4)
            if isinstance(value, enum.Enum):  # some versions of Python copy a member by its name, without its value
                made = type(value), (value._value_,)
        except Exception:  # what cannot be copied so, such as a lock
            made = ""
        if isinstance(made, str):
            yield made
            yield self._describe_attributes(value)
            yield self._describe_uncopied(value)
            return
        function, arguments, state, items, pairs = (*made, *(None,) * (5 - len(made)))[:5]
        yield self.describe(function)
        yield list(map(self.describe, arguments))
        yield self._describe_state(state)
        if not isinstance(value, (list, dict)):  # their items are said
            yield list(map(self.describe, items or ()))
            yield self._describe_pairs(pairs or ())

    def _describe_uncopied(self, value: Any) -> Any:
        return self.describe(value()) if isinstance(value, weakref.ref) else show_uncopied(value)

    def _describe_attributes(self, value: Any) -> list[tuple[str, str]]:
        own = getattr(value, "__dict__", {}).items()
        return self._describe_pairs(sorted(pair for pair in own if pair[0] != "__module__"))  # see _name

    def _describe_state(self, state: Any) -> Any:
        plain = isinstance(state, dict) and all(isinstance(name, str) for name in state)
        return self._describe_pairs(sorted(state.items())) if plain else self.describe(state)

    def _describe_pairs(self, pairs: Iterable[tuple[Any, Any]]) -> list[tuple[str, str]]:
        return [(self.describe(key), self.describe(value)) for key, value in pairs]

    def _describe_function(self, function: FunctionType) -> Any:
        name = self._name(function)
        if not is_own(function) and not function.__closure__ and "<" not in function.__qualname__:
            return "function", name
        shape, about = take_apart(function)
        return "function", name, shape, *map(self.describe, about), self.describe(vars(function))

    def _name(self, used: Any) -> str:
        """A class's or function's name; the user's may be in a script in one program and imported in another."""
        if is_own(used):
            # a function's own code is said here; the rest of its file counts, too
            home = sys.modules.get(used.__module__ or "") if isinstance(used, FunctionType) else used
            self.used += [home] if home is not None else []
            return str(used.__qualname__)
        return f"{used.__module__}.{used.__qualname__}"


def _describe_tensor(value: Tensor) -> Iterator[Any]:
    yield from (str(value.dtype), tuple(value.shape), value.requires_grad)
    with contextlib.suppress(RuntimeError):  # those without numbers of their own, as on the meta device
        dense = value.detach().cpu().to_dense().resolve_conj().resolve_neg().contiguous()
        yield digest(dense.reshape(-1).view(torch.uint8).numpy().tobytes())
