"""Every private name of torch that the package uses, so that a new version of torch breaks one file at most.

The names are bound once: where a call counts (local steps, stacked clients), it is torch's own function that is called.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._C import _functorch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd

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

# ---------------------------------------------------------------------------------------------------- gradients

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


def both_sided_padding(layer: nn.Conv2d) -> list[int]:
    """The padding of a convolution as `F.pad` takes it."""
    return layer._reversed_padding_repeated_twice


# ---------------------------------------------------------------------------------------------------- compilation


def compile_graph(graph: GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
    """A traced graph, compiled by torch.compile's backend for inputs of these shapes."""
    return torch._inductor.compile(graph, [*inputs])  # type: ignore[no-any-return]
