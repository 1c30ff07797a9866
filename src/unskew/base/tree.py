"""Arithmetic on trees: flat dictionaries from parameter names to tensors.

Plain tensor operations, one per name: they run under `vmap` and autograd alike, and on a CPU one call for a
whole list gains nothing here (measured 7.2 against 8.4 µs for four tensors); the in-place local loop does so.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

Tree = dict[str, Tensor]
Groups = dict[str, Tree]
"""Named groups of trees: a message, a reply, a server's or a client's state."""

log = logging.getLogger(__name__)


@functools.cache
def _warn_unshared(left: tuple[str, ...], right: tuple[str, ...]) -> None:
    log.warning("trees do not hold the same names; only on one side: %s", sorted(set(left) ^ set(right)))


def _common_names(a: Tree, b: Tree) -> Iterable[str]:
    if a.keys() == b.keys():
        return a
    _warn_unshared(tuple(a), tuple(b))
    return [name for name in a if name in b]


def add(a: Tree, b: Tree) -> Tree:
    """a + b on the names both hold."""
    return {name: a[name] + b[name] for name in _common_names(a, b)}


def sub(a: Tree, b: Tree) -> Tree:
    """a - b on the names both hold."""
    return {name: a[name] - b[name] for name in _common_names(a, b)}


def scale(a: Tree, factor: float | Tensor) -> Tree:
    """factor * a."""
    return {name: value * factor for name, value in a.items()}


def add_scaled(a: Tree, b: Tree, factor: float | Tensor) -> Tree:
    """a + factor * b on the names both hold."""
    return {name: a[name] + factor * b[name] for name in _common_names(a, b)}


def lerp(a: Tree, b: Tree, share: float | Tensor) -> Tree:
    """(1 - share) * a + share * b on the names both hold."""
    return {name: a[name] + share * (b[name] - a[name]) for name in _common_names(a, b)}


def dot(a: Tree, b: Tree) -> Tensor:
    """The inner product over all names both hold."""
    return _total([(a[name] * b[name]).sum() for name in _common_names(a, b)])


def sqnorm(a: Tree) -> Tensor:
    """The squared L2 norm of all entries together."""
    return _total([value.square().sum() for value in a.values()])


def sqdist(a: Tree, b: Tree) -> Tensor:
    """The squared L2 distance over all names both hold; one pass forward and one backward."""
    return _total([F.mse_loss(a[name], b[name], reduction="sum") for name in _common_names(a, b)])


def norm(a: Tree) -> Tensor:
    """The L2 norm of all entries together."""
    return sqnorm(a).sqrt()


def _total(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).sum() if parts else torch.zeros(())


def zeros_like(a: Tree) -> Tree:
    """A tree of zeros with the same names, shapes and types."""
    return {name: torch.zeros_like(value) for name, value in a.items()}


def copy(a: Tree) -> Tree:
    """A tree whose tensors are free to be changed."""
    return {name: value.detach().clone() for name, value in a.items()}


def copy_groups(groups: Groups) -> Groups:
    """Groups whose tensors are free to be changed."""
    return {group: copy(own) for group, own in groups.items()}


def select(a: Tree, names: Iterable[str]) -> Tree:
    """The part of a tree under these names, in the tree's own order."""
    wanted = set(names)
    return {name: value for name, value in a.items() if name in wanted}


def without(a: Tree, names: Iterable[str]) -> Tree:
    """The part of a tree outside these names."""
    unwanted = set(names)
    return {name: value for name, value in a.items() if name not in unwanted}


def settle(groups: Groups) -> Groups:
    """The groups as a file gives them back: each tensor row after row in memory of its own, on which sums depend."""
    if all(map(_is_settled, (value for tree in groups.values() for value in tree.values()))):
        return groups
    return {
        group: {n: v if _is_settled(v) else v.clone(memory_format=torch.contiguous_format) for n, v in tree.items()}
        for group, tree in groups.items()
    }


def _is_settled(value: Tensor) -> bool:
    """Whether its memory begins where torch's own would, and has its order: of a view's neither need be so."""
    return value.is_contiguous() and value.stride() == _strides(value.shape) and not value.data_ptr() % _ALIGNED


@functools.lru_cache(maxsize=4096)
def _strides(shape: torch.Size) -> tuple[int, ...]:
    return torch.empty(shape, device="meta").stride()


_ALIGNED = 64
"""Bytes of which torch's memory on a CPU begins at a multiple."""


def all_finite(groups: Groups) -> bool:
    """Whether no floating entry of any group is NaN or infinite."""
    floats = [value for tree in groups.values() for value in tree.values() if value.is_floating_point()]
    if not floats:
        return True
    # one pass and, for small models, one number for all; only a sum that overflowed needs the second look
    if len(floats) > 1 and sum(value.numel() for value in floats) < 1 << 16:
        sums = [torch.cat([value.reshape(-1) for value in floats]).sum()]
    else:
        sums = [value.sum() for value in floats]
    return all(map(math.isfinite, sums)) or all(bool(torch.isfinite(value).all()) for value in floats)


def find_finite(groups: Groups, count: int) -> list[bool]:
    """For each of `count` clients whose tensors are stacked, [K, ...], whether its part holds no NaN or infinity."""
    if all_finite(groups):
        return [True] * count
    floats = [value for tree in groups.values() for value in tree.values() if value.is_floating_point()]
    return torch.stack([value.reshape(count, -1).isfinite().all(1) for value in floats]).all(0).tolist()


def nbytes(groups: Groups) -> int:
    """How many bytes the tensors of these groups take on the wire."""
    return sum(value.nbytes for tree in groups.values() for value in tree.values())
