"""How the feedback rule runs for many clients at once: what `vmap` does instead of calling it client by client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

Dims = tuple[int | None, ...]
"""Where each argument has its clients; None: all share it."""


class ConvSettings(NamedTuple):
    """What a convolution is besides its weights."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def stack_linear(
    linear: Callable[..., Tensor], clients: int, in_dims: Dims, given: tuple[Any, ...]
) -> tuple[Tensor, int]:
    """One batched product each way; feedback that the clients share stays single."""
    x, weight, bias = (_in_front(*each, clients) for each in zip(given[:3], in_dims, strict=False))
    fixed, scale = given[3:]
    fixed = fixed if in_dims[3] is None else fixed.movedim(in_dims[3], 0)
    scale = scale if in_dims[4] is None else scale.view(-1, 1, 1)
    out = linear(x.reshape(len(x), -1, x.shape[-1]), weight, bias, fixed, scale)
    return out.view(*x.shape[:-1], -1), 0


def stack_conv(conv: Callable[..., Tensor], clients: int, in_dims: Dims, given: tuple[Any, ...]) -> tuple[Tensor, int]:
    """Each client is a group of channels of its own, as in torch's own rule."""
    *tensors, settings = given
    x, weight, bias, fixed, scale = (_in_front(*each, clients) for each in zip(tensors, in_dims, strict=False))
    channels = x.shape[2]
    out = conv(
        x.transpose(0, 1).flatten(1, 2),
        weight.flatten(0, 1),
        None if bias is None else bias.flatten(),
        fixed.flatten(0, 1),
        scale.repeat_interleave(channels).view(1, -1, 1, 1),
        settings._replace(groups=settings.groups * clients),
    )
    return out.view(len(out), clients, -1, *out.shape[2:]), 1


def _in_front(value: Any, dim: int | None, clients: int) -> Any:
    """A tensor with the clients' dimension in front; one that they share is expanded."""
    if value is None:
        return None
    return value.expand(clients, *value.shape) if dim is None else value.movedim(dim, 0)
