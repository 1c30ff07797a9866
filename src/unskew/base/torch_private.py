"""Every private name of torch that the package uses, so that a new version of torch breaks one file at most.

The names are bound once: where a call counts (local steps, stacked clients), it is torch's own function that is called.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._C import _functorch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from torch.fx import GraphModule

# ------------------------------------------------------------------------------------- many tensors in one call

add_lists = torch._foreach_add
"""`add_lists(a, b, alpha=1)`: the tensors `a[i] + alpha * b[i]`."""
add_in_place = torch._foreach_add_
"""`add_in_place(a, b, alpha=1)`: adds `alpha * b[i]` to each `a[i]`."""
scale_list = torch._foreach_mul
"""`scale_list(a, factor)`: the tensors `a[i] * factor`."""
scale_in_place = torch._foreach_mul_
"""`scale_in_place(a, factor)`: multiplies each `a[i]` by the factor."""


def count_changes(tensor: Tensor) -> int:
    """How often a tensor was changed in place; tensors made in inference mode do not count."""
    return -1 if tensor.is_inference() else tensor._version


def read_default_device() -> torch.device | None:
    """What `torch.set_default_device` was called with last; None: nothing, which spares torch a look at each call."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device


# ---------------------------------------------------------------------------------------------------- gradients


def has_gradient_hook(tensor: Tensor) -> bool:
    """Whether functions are registered on it that a backward pass would call."""
    return bool(tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None))


_engine: Any = torch.autograd.Variable._execution_engine
run_backward: Callable[..., tuple[Tensor | None, ...]] = _engine.run_backward
"""What `torch.autograd.grad` calls after its checks:

`run_backward(outputs, their gradients, keep_graph, create_graph, inputs, allow_unreachable=, accumulate_grad=)`.
"""

# ----------------------------------------------------------------------------------------- transforms of torch.func

is_batched: Callable[[Tensor], bool] = _functorch.is_batchedtensor
"""Whether a tensor holds a value for each element of a `vmap`, though it looks like one of them."""
get_unwrapped: Callable[[Tensor], Tensor] = _functorch.get_unwrapped
"""The tensor inside a batched one."""
current_level: Callable[[], int | None] = _functorch.maybe_current_level
"""The innermost transform (`vmap`, `grad`) that is at work now; None: none is."""
close_vmap: Callable[[], int] = _functorch._vmap_decrement_nesting
"""Ends the innermost level of `vmap`."""
add_batch_dim: Callable[[Tensor, int, int], Tensor] = _functorch._add_batch_dim
"""`add_batch_dim(tensor, dim, level)`: hides this dimension from what runs inside the level."""
remove_batch_dim: Callable[[Tensor, int, int, int], Tensor] = _functorch._remove_batch_dim
"""`remove_batch_dim(tensor, level, size, dim)`: shows it again; a tensor that has none is expanded to the size."""
clear_interpreter_stack: Callable[[], AbstractContextManager[Any]] = temporarily_clear_interpreter_stack
"""Outside all transforms for a while."""


def open_vmap(size: int) -> int:
    """Begins a level of `vmap` over so many elements, which draw different random numbers; gives its number."""
    return _functorch._vmap_increment_nesting(size, "different")


# ------------------------------------------------------------------------------------------------------- modules

BatchNormBase = _BatchNorm
"""What all BatchNorm layers derive from."""
NormBase = _NormBase
"""What all BatchNorm and InstanceNorm layers derive from."""
DropoutBase = _DropoutNd
"""What all dropout layers derive from."""


def own_parameters(module: nn.Module) -> dict[str, Any]:
    """The module's own parameters (or None), without those of modules inside it; writing here swaps one unchecked."""
    return module._parameters


def own_buffers(module: nn.Module) -> dict[str, Any]:
    """The same for its buffers."""
    return module._buffers


def unsaved_buffers(module: nn.Module) -> set[str]:
    """The buffers that are no part of the module's state dictionary."""
    return module._non_persistent_buffers_set


def has_hooks(module: nn.Module) -> bool:
    """Whether calling the module does more than its `forward`."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


def list_hooks(module: nn.Module) -> list[tuple[str, Any, bool, bool]]:
    """What calling the module does more than its `forward`: the kind, the function, with keywords, in any case."""
    kinds = {
        "forward_pre": (module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs, {}),
        "forward": (module._forward_hooks, module._forward_hooks_with_kwargs, module._forward_hooks_always_called),
        "backward_pre": (module._backward_pre_hooks, {}, {}),
        "backward": (module._backward_hooks, {}, {}),
    }
    return [
        (kind, hook, number in with_keywords, number in always)
        for kind, (hooks, with_keywords, always) in kinds.items()
        for number, hook in hooks.items()
    ]


def both_sided_padding(layer: nn.Conv2d) -> list[int]:
    """The padding of a convolution as `F.pad` takes it."""
    return layer._reversed_padding_repeated_twice


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that torch does not wrap for its compiler: importing that takes longer than many a run."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class _DrawWatcher(_Mode):  # type: ignore[no-untyped-call]
    """Notes whether this thread draws from torch's global generator while the mode is on."""

    drew = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The operation as it is."""
        given = (*args, *(kwargs or {}).values())
        if torch.Tag.nondeterministic_seeded in func.tags and not any(isinstance(v, torch.Generator) for v in given):
            self.drew = True
        return func(*args, **(kwargs or {}))


watch_draws: Callable[[], Any] = _DrawWatcher
"""A context whose `drew` says whether this thread drew from torch's global generator meanwhile."""


class _OwnDraws(_Mode):  # type: ignore[no-untyped-call]
    """While the mode is on, what this thread draws on the CPU is drawn from a generator that no other thread knows.

    With `follows` it follows the global one where that is seeded or restored: drawing only moves it on.
    """

    def __init__(self, seed: int, follows: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._follows = follows
        torch.default_generator.manual_seed(seed)
        self._own = torch.Generator().manual_seed(seed)
        self._left = self._own.get_state()
        self._seen = {self._left.numpy().tobytes()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The operation, with the generator where it would take the global one."""
        given = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or not _draws_from_global(args, given):
            return func(*args, **given)
        self._follow()
        if (seeded := _find_seeded(func)) is not None:
            out = seeded(*args, **{**given, "generator": self._own})
        else:
            torch.default_generator.set_state(self._left)
            out = func(*args, **given)
            self._own.set_state(torch.default_generator.get_state())
        self._left = self._own.get_state()
        self._seen.add(self._left.numpy().tobytes())
        torch.default_generator.set_state(self._left)
        return out

    def _follow(self) -> None:
        now, seed = torch.default_generator.get_state(), torch.default_generator.initial_seed()
        if not self._follows or torch.equal(now, self._left):
            return
        known = now.numpy().tobytes() in self._seen or torch.equal(now, torch.Generator().manual_seed(seed).get_state())
        if known or seed != self._own.initial_seed():  # else somebody else drew
            self._own.set_state(now)
            self._left = now
            self._seen.add(now.numpy().tobytes())


def _draws_from_global(args: Any, kwargs: dict[str, Any]) -> bool:
    values = (*args, *kwargs.values())
    devices = [torch.device(kwargs["device"])] if kwargs.get("device") is not None else []
    devices += [value.device for value in values if isinstance(value, Tensor)]
    return all(d.type == "cpu" for d in devices) and not any(isinstance(value, torch.Generator) for value in values)


@lru_cache
def _find_seeded(func: Any) -> Any:
    """The operation that takes a generator, too: itself or its twin; None if there is none."""
    names = [argument.name for argument in func._schema.arguments]
    if "generator" in names:
        return func
    packet = func.overloadpacket
    twins = (getattr(packet, overload) for overload in packet.overloads())
    wanted = sorted([*names, "generator"])
    return next((twin for twin in twins if sorted(a.name for a in twin._schema.arguments) == wanted), None)


own_draws: Callable[[int, bool], AbstractContextManager[Any]] = _OwnDraws
"""`own_draws(seed, follows)`: a context in which what this thread draws is the seed's, whatever other threads draw."""


# ---------------------------------------------------------------------------------------------------- compilation


def compile_graph(graph: GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
    """A traced graph, compiled by torch.compile's backend for inputs of these shapes."""
    return torch._inductor.compile(graph, [*inputs])  # type: ignore[no-any-return]
