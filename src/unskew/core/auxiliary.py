"""A network beside the model, such as a generator at the server: a pure function of a tree."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Literal

from torch import Tensor, nn, no_grad

from unskew.base import seeds
from unskew.base.errors import InputError
from unskew.base.torch_private import (
    BatchNormBase,
    DropoutBase,
    clear_interpreter_stack,
    own_buffers,
    own_parameters,
    unsaved_buffers,
)
from unskew.base.tree import Tree
from unskew.core.net import bind, find_slots, read_slots

Use = Literal["train", "eval", "track"]
Build = Callable[..., nn.Module]


class Auxiliary:
    """A network that `build(*sizes)` makes; its parameters and BatchNorm's statistics are a tree that the caller keeps.

    Equal `build` and `sizes` share one module in each process, so a slot may write `Auxiliary(build, ...)` at every
    call; `build` is a function of a file, not a lambda made anew.
    """

    def __init__(self, build: Build, *sizes: Hashable) -> None:
        self._build, self._sizes = build, sizes

    @property
    def trainable(self) -> tuple[str, ...]:
        """The names to take gradients for: `s.grad(loss, params, generator.trainable)`."""
        return _share(self._build, self._sizes).trainable

    def init(self, seed: int) -> Tree:
        """Parameters as the layers' initialisers draw them from this seed, and BatchNorm's first statistics."""
        return read_slots(_find_all(_make(self._build, self._sizes, seed)))

    def __call__(self, params: Tree, *inputs: Tensor, training: bool = True) -> Tensor:
        """What the network gives; in training BatchNorm uses the batch's statistics. Nothing is changed."""
        return _share(self._build, self._sizes).run(params, inputs, "train" if training else "eval")

    def track(self, params: Tree, *inputs: Tensor) -> Tree:
        """The tree with BatchNorm's running statistics after a pass over these inputs."""
        shared = _share(self._build, self._sizes)
        moved = {name: v if name in shared.trainable else v.clone() for name, v in params.items()}
        with no_grad():
            shared.run(moved, inputs, "track")
        return moved


class _Shared:
    """The one module of a process, into which each call binds its tree."""

    def __init__(self, module: nn.Module) -> None:
        self._module, self._slots = module, _find_all(module)
        self._norms = [m for m in module.modules() if isinstance(m, BatchNormBase) and m.track_running_stats]
        places = find_slots(module, own_parameters)
        self.trainable = tuple(name for name, [(holder, key), *_] in places.items() if holder[key].requires_grad)
        self._use: Use | None = None

    def run(self, params: Tree, inputs: tuple[Tensor, ...], use: Use) -> Tensor:
        if use != self._use:
            self._module.train(use != "eval")
            for norm in self._norms:
                # in training a BatchNorm that does not track uses the batch's statistics and leaves its buffers alone
                norm.track_running_stats = use != "train"
            self._use = use
        bind(self._slots, params)  # `functional_call` takes 200 µs longer for three layers
        out: Tensor = self._module(*inputs)
        return out


@lru_cache(maxsize=16)
def _share(build: Build, sizes: tuple[Hashable, ...]) -> _Shared:
    return _Shared(_make(build, sizes, seed=0))


def _make(build: Build, sizes: tuple[Hashable, ...], seed: int) -> nn.Module:
    # inside the level of a stack of clients nothing could be drawn
    with clear_interpreter_stack(), seeds.drawing_weights(seed):
        module = build(*sizes)
    for layer in module.modules():
        kind = type(layer).__name__
        if isinstance(layer, DropoutBase):
            raise InputError(f"an auxiliary network cannot hold {kind}: its masks would not be each client's own")
        if not isinstance(layer, BatchNormBase) and own_buffers(layer).keys() - unsaved_buffers(layer):
            raise InputError(f"an auxiliary network cannot hold {kind}: of layers with buffers it knows only BatchNorm")
    return module


def _find_all(module: nn.Module) -> dict[str, list[tuple[dict[str, Tensor], str]]]:
    return {**find_slots(module, own_parameters), **find_slots(module, own_buffers)}
