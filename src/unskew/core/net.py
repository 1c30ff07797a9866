"""One module per worker; any parameter tree can be laid into it. Forward passes and gradients of trees."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from unskew.core.tree import Tree
from unskew.models.base import Model, Output

Mode = Literal["train", "batch", "eval"]
"""`train`: batch statistics, running ones updated; `batch`: batch statistics, nothing updated; `eval`: running ones."""


class Forward(Protocol):
    """Logits and features of `x` under any parameter tree."""

    def __call__(self, params: Tree, x: Tensor, mode: Mode = "train", buffers: Tree | None = None) -> Output:
        """`buffers`: other BatchNorm statistics than the context's own."""


@dataclass(frozen=True)
class Names:
    """The names of a model's parameters, and which of them belong to normalisation layers."""

    params: tuple[str, ...]
    norm: frozenset[str]
    buffers: tuple[str, ...]

    @functools.lru_cache(maxsize=256)  # noqa: B019 - lives as long as the process, one model a run
    def match(self, patterns: tuple[str, ...]) -> tuple[str, ...]:
        """Parameters that match a pattern such as `head.*`; `@norm` stands for those of normalisation layers."""
        return tuple(
            name
            for name in self.params
            if any((p == "@norm" and name in self.norm) or fnmatch.fnmatchcase(name, p) for p in patterns)
        )


class Net:
    """A module whose parameters and buffers are swapped by reference: no copy, no `functional_call` per pass."""

    def __init__(self, model: Model) -> None:
        self.module = model
        self._param_slots = _slots(model, "_parameters")
        self._buffer_slots = _slots(model, "_buffers")
        self._norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        norm_layers = (
            nn.modules.batchnorm._BatchNorm,
            nn.GroupNorm,
            nn.LayerNorm,
            nn.modules.instancenorm._InstanceNorm,
        )
        norm = {
            f"{path}.{key}"
            for path, m in model.named_modules()
            if isinstance(m, norm_layers)
            for key, _ in m.named_parameters(recurse=False)
        }
        self.names = Names(tuple(self._param_slots), frozenset(norm), tuple(self._buffer_slots))
        self.has_batchnorm = bool(self._norms)
        self._tracking = [m.track_running_stats for m in self._norms]
        self._params: Tree | None = None
        self._buffers: Tree | None = None
        self._mode: Mode | None = None

    def trees(self) -> tuple[Tree, Tree]:
        """Copies of the module's parameters and buffers as they are now."""
        params = {name: holder[key].detach().clone() for name, (holder, key) in self._param_slots.items()}
        return params, {name: holder[key].detach().clone() for name, (holder, key) in self._buffer_slots.items()}

    def __call__(self, params: Tree, buffers: Tree, x: Tensor, mode: Mode) -> Output:
        """A forward pass with these parameters and buffers; in mode `train` it updates `buffers` in place."""
        if params is not self._params:
            _bind(self._param_slots, params)
            self._params = params
        if buffers is not self._buffers:
            _bind(self._buffer_slots, buffers)
            self._buffers = buffers
        if mode != self._mode:
            self._set_mode(mode)
        out: Output = self.module(x)
        return out

    def _set_mode(self, mode: Mode) -> None:
        self.module.train(mode != "eval")
        for norm, tracking in zip(self._norms, self._tracking, strict=True):
            # in training a BatchNorm that does not track uses the batch's statistics and leaves its buffers alone
            norm.track_running_stats = tracking and mode != "batch"
        self._mode = mode


Slots = dict[str, tuple[dict[str, Tensor], str]]


def _slots(model: nn.Module, kind: str) -> Slots:
    found: Slots = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for key, value in getattr(module, kind).items():
            if value is not None:
                found[f"{path}.{key}" if path else key] = (getattr(module, kind), key)
    return found


def _bind(slots: Slots, tree: Tree) -> None:
    if len(tree) != len(slots):  # a name left out would keep another client's values
        raise KeyError(f"a forward pass needs all of the model's names; missing: {sorted(slots.keys() - tree.keys())}")
    for name, value in tree.items():
        holder, key = slots[name]
        holder[key] = value


def gradient(loss: Callable[[Tree], Tensor], params: Tree, names: Iterable[str]) -> tuple[Tree, Tensor]:
    """The gradient of `loss` at `params` with respect to these names, and the loss (detached)."""
    wanted = list(names)
    leaves = dict(params)
    for name in wanted:
        leaves[name] = params[name].detach().requires_grad_()
    value = loss(leaves)
    grads = torch.autograd.grad(value, [leaves[name] for name in wanted], materialize_grads=True)
    return dict(zip(wanted, grads, strict=True)), value.detach()
