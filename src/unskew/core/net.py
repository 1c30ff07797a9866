"""One module per worker, which runs with any parameter tree: forward passes of trees."""

from __future__ import annotations

import copy
import fnmatch
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypedDict

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from unskew.base import seeds
from unskew.base.batch import Output
from unskew.base.errors import InputError
from unskew.base.torch_private import (
    BatchNormBase,
    NormBase,
    clear_interpreter_stack,
    current_level,
    has_hooks,
    own_buffers,
    own_parameters,
    unsaved_buffers,
    watch_draws,
)
from unskew.base.tree import Groups, Tree
from unskew.core.dropout import find_dropout, use_global_stream, use_own_stream
from unskew.models.base import Model, find_depths

Mode = Literal["train", "batch", "eval", "eval_batch"]
"""`train`: batch statistics, running ones updated; `batch`: the same, nothing updated; `eval`: running statistics, no
dropout; `eval_batch`: no dropout, but statistics of the batch (where running ones mean nothing)."""

Part = Literal["whole", "body", "head"]
"""How much of the network a pass goes through: `body` gives features (as logits, too), `head` takes them as input."""

Layer = Callable[[nn.Module, Tensor], Tensor]
"""What a layer does instead of its own forward pass: called with the layer (its parameters bound) and its input."""


class PassOptions(TypedDict, total=False):
    """What else a pass may be asked for; who wraps a forward pass hands on what it does not know: `**options`."""

    buffers: Tree | None
    """Other BatchNorm statistics than the context's own."""
    layers: Mapping[str, Layer] | None
    """What named layers do instead of their own pass."""
    part: Part
    maps: tuple[str, ...]
    """Layers whose outputs the result has, too."""


class Forward(Protocol):
    """Logits and features of `x` under any parameter tree."""

    def __call__(self, params: Tree, x: Tensor, mode: Mode = "train", **options: Unpack[PassOptions]) -> Output:
        """A pass; see `PassOptions`."""


@dataclass(frozen=True)
class Names:
    """The names of a model's parameters and layers, and which parameters belong to normalisation layers."""

    params: tuple[str, ...]
    norm: frozenset[str]
    batchnorm: frozenset[str]
    buffers: tuple[str, ...]
    layers: tuple[str, ...]
    """Conv2d and Linear layers, in the model's order."""
    blocks: tuple[str, ...] = ()
    """The parts of the body, from the input upwards."""
    depths: tuple[str, ...] = ()
    """Layers that give features of several depths, before the features themselves."""
    fixed: frozenset[str] = frozenset()
    """Parameters that the network itself froze (`requires_grad=False`): never trained, sent to a client once."""

    @functools.lru_cache(maxsize=256)  # noqa: B019 - lives as long as the process, one model a run
    def match(self, patterns: tuple[str, ...]) -> tuple[str, ...]:
        """Parameters that match a pattern such as `head.*`; `@norm`, `@batchnorm`: those of such layers."""
        groups = {"@norm": self.norm, "@batchnorm": self.batchnorm}
        return tuple(
            name
            for name in self.params
            if any(name in groups.get(p, ()) or fnmatch.fnmatchcase(name, p) for p in patterns)
        )


def _record(seen: Tree, name: str, forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    seen[name] = forward(x)
    return seen[name]


class Net:
    """A module whose parameters and buffers are swapped by reference: no copy, no `functional_call` per pass."""

    def __init__(self, model: Model, channels_last: bool = False) -> None:
        self.module, self.channels_last = model, channels_last
        self._param_slots = find_slots(model, own_parameters)
        self._buffer_slots = find_slots(model, own_buffers)
        self._layers = dict(model.named_modules())
        self._norms = [m for m in model.modules() if isinstance(m, BatchNormBase)]
        every_norm = (NormBase, nn.GroupNorm, nn.LayerNorm)
        self.names = Names(
            params=tuple(self._param_slots),
            norm=self._params_of(every_norm),
            batchnorm=self._params_of((BatchNormBase,)),
            buffers=tuple(self._buffer_slots),
            layers=tuple(name for name, m in self._layers.items() if isinstance(m, (nn.Conv2d, nn.Linear))),
            blocks=tuple(f"body.{name}" for name, _ in model.body.named_children()),
            depths=find_depths(model),
            # read now: later these places hold trees, whose tensors know nothing of it
            fixed=frozenset(
                name for name, [(holder, key), *_] in self._param_slots.items() if not holder[key].requires_grad
            ),
        )
        self.has_batchnorm = bool(self._norms)
        self._tracking = [m.track_running_stats for m in self._norms]
        self._mode_dependent = [m for m in model.modules() if not isinstance(m, _SAME_IN_EVERY_MODE)]
        self._own_train = any(type(m).train is not nn.Module.train for m in self._mode_dependent)
        self._chain = _chain(model)
        self._drops = find_dropout(model)
        self._knows_stream = not self._drops
        self.constants = _constants(model)
        """Tensors of the model that nothing changes and nobody sends: buffers that are not saved with it."""
        self._spare: Model | None = None
        self._bound_params: Tree | None = None
        self._bound_buffers: Tree | None = None
        self._mode: Mode | None = None

    @property
    def mode(self) -> Mode | None:
        """The mode of the current pass, or of the last one."""
        return self._mode

    def _params_of(self, kinds: tuple[type[nn.Module], ...]) -> frozenset[str]:
        """Parameters that belong to layers of these kinds."""
        paths = [path for path, module in self._layers.items() if isinstance(module, kinds)]
        return frozenset(name for name in self._param_slots if name.rpartition(".")[0] in paths)

    def trees(self) -> tuple[Tree, Tree]:
        """Copies of the module's parameters and buffers as they are now."""
        return read_slots(self._param_slots), read_slots(self._buffer_slots)

    def working_copy(self, params: Tree) -> Tree:
        """A copy that is free to be changed, in the memory format that suits the machine."""
        if not self.channels_last:
            return {name: value.detach().clone() for name, value in params.items()}
        return {
            name: value.detach().clone(memory_format=torch.channels_last if value.dim() == 4 else torch.preserve_format)
            for name, value in params.items()
        }

    def fresh(self, initial: Groups, seed: int) -> Tree:
        """Parameters as the layers' own initialisers draw them; what has none or is frozen keeps its initial value."""
        if self._spare is None:
            bind(self._param_slots, initial["model"])
            bind(self._buffer_slots, initial["buffers"])
            self._bound_params = self._bound_buffers = None  # the next pass binds its own
            self._spare = copy.deepcopy(self.module)
        # a stack of clients, all of which get the same: inside its level nothing could be drawn
        with clear_interpreter_stack(), seeds.drawing_weights(seed):
            for module in self._spare.modules():
                if callable(reset := getattr(module, "reset_parameters", None)):
                    reset()
        drawn = read_slots(find_slots(self._spare, own_parameters))
        return {name: initial["model"][name].clone() if name in self.names.fixed else v for name, v in drawn.items()}

    def __call__(
        self,
        params: Tree,
        buffers: Tree,
        x: Tensor,
        mode: Mode,
        layers: Mapping[str, Layer] | None = None,
        part: Part = "whole",
        maps: tuple[str, ...] = (),
    ) -> Output:
        """A forward pass with these parameters and buffers; in mode `train` it updates `buffers` in place."""
        # inside a transform of torch.func nothing is reformatted: `vmap` cannot do it
        reformat = self.channels_last and current_level() is None
        if params is not self._bound_params:
            bind(self._param_slots, _to_channels_last(params) if reformat else params)
            self._bound_params = params if reformat == self.channels_last else None
        if buffers is not self._bound_buffers:
            bind(self._buffer_slots, buffers)
            self._bound_buffers = buffers
        if mode == "eval_batch" and len(x) == 1:
            mode = "eval"  # one sample has no statistics of its own
        if mode != self._mode:
            self._set_mode(mode)
        if reformat and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        if not self._knows_stream and mode in ("train", "batch") and current_level() is None:
            self._choose_stream(buffers, x, "head" if part == "head" else "whole")
        if not (layers or maps):
            return self._pass(x, part)
        seen: Tree = {}
        with self._replace_layers(layers or {}), self._record_layers(maps, seen):
            # the chain passes by a sequence inside the body: only the module itself calls it as a whole
            out = self._pass(x, part, any(type(self._layers[name]) is nn.Sequential for name in maps))
        if part != "head" and (missing := [name for name in maps if name not in seen]):
            raise InputError(f"feature maps: a pass through the body does not call its layer {missing[0]}")
        return out.with_maps(seen)

    def _choose_stream(self, buffers: Tree, x: Tensor, part: Part) -> None:
        """Dropout layers draw from the visit's own stream, unless others draw, too: the order of draws must stay.

        Chosen before anything is drawn: a visit that changed over would draw the same numbers twice.
        """
        self._knows_stream = True
        use_own_stream(self._drops)
        bind(self._buffer_slots, {name: value.clone() for name, value in buffers.items()})
        try:
            with seeds.preserve_global_generator(), torch.no_grad(), watch_draws() as seen:
                self._pass(x.clone(), part)
        finally:
            bind(self._buffer_slots, buffers)
        if seen.drew:
            use_global_stream(self._drops)

    def _pass(self, x: Tensor, part: Part, whole_parts: bool = False) -> Output:
        if part == "head":
            return Output(self.module.head(x), x)
        if self._chain is None or whole_parts:
            if part == "body":
                features = self.module.body(x)
                return Output(features, features)
            out: Output = self.module(x)
            return out
        for layer in self._chain:
            x = layer.forward(x)
        return Output(self.module.head.forward(x) if part == "whole" else x, x)

    @contextmanager
    def _replace_layers(self, layers: Mapping[str, Layer]) -> Iterator[None]:
        """For a while these layers do something else."""
        before = {name: self._layers[name].__dict__.get("forward") for name in layers}
        try:
            for name, work in layers.items():
                layer = self._layers[name]
                layer.forward = functools.partial(work, layer)
            yield
        finally:
            self._restore_layers(before)

    @contextmanager
    def _record_layers(self, maps: tuple[str, ...], seen: Tree) -> Iterator[None]:
        """For a while `seen` gets what these layers give, whatever they do now."""
        if unknown := [name for name in maps if name not in self._layers]:
            raise InputError(f"feature maps: the model has no layer {unknown[0]}; its body has {self.names.blocks}")
        before = {name: self._layers[name].__dict__.get("forward") for name in maps}
        try:
            for name in maps:
                layer = self._layers[name]
                layer.forward = functools.partial(_record, seen, name, layer.forward)
            yield
        finally:
            self._restore_layers(before)

    def _restore_layers(self, before: Mapping[str, Any]) -> None:
        for name, own in before.items():
            self._layers[name].__dict__.pop("forward", None)
            if own is not None:
                self._layers[name].forward = own

    def _set_mode(self, mode: Mode) -> None:
        training = mode in ("train", "batch")
        if self._own_train:
            self.module.train(training)
        else:
            for module in self._mode_dependent:  # `train` would walk over all modules, twice a round
                module.training = training
        for norm, tracking in zip(self._norms, self._tracking, strict=True):
            # in training a BatchNorm that does not track uses the batch's statistics and leaves its buffers alone
            norm.training = mode != "eval"
            norm.track_running_stats = tracking and mode in ("train", "eval")
        self._mode = mode


_SAME_IN_EVERY_MODE = (
    nn.Sequential, nn.Flatten, nn.Identity, nn.Linear, nn.Conv2d, nn.ReLU, nn.ReLU6, nn.GELU, nn.MaxPool2d,
    nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.GroupNorm, nn.LayerNorm,
)  # fmt: skip


def _to_channels_last(params: Tree) -> Tree:
    """Convolutions' weights in this memory format: a convolution takes the slower way if only its input has it."""
    # by the strides: with one channel both formats are `contiguous`, but only one of them is the convolution's cue
    return {
        name: value.clone(memory_format=torch.channels_last) if value.dim() == 4 and value.stride(1) != 1 else value
        for name, value in params.items()
    }


def _chain(model: Model) -> list[nn.Module] | None:
    """The body's layers in their order if it is a plain sequence; None where only the module knows the way.

    Calling their `forward` leaves out what `nn.Module.__call__` does for hooks, a fifth of a tiny network's pass.
    """
    modules = list(model.modules())
    hooked = any(has_hooks(module) for module in modules)
    if type(model) is not Model or hooked or not isinstance(model.head, nn.Module):
        return None
    layers: list[nn.Module] = []
    pending = [model.body]
    while pending:
        module = pending.pop()
        if type(module) is nn.Sequential:
            pending.extend(reversed(list(module)))
        else:
            layers.append(module)
    return layers


Slots = dict[str, list[tuple[dict[str, Tensor], str]]]
"""Name → every place in the module that holds this tensor: tied weights are one parameter with several places."""


def find_slots(model: nn.Module, held: Callable[[nn.Module], dict[str, Any]]) -> Slots:
    """Every place of a module's parameters (`held` is `own_parameters`) or buffers (`own_buffers`)."""
    found: Slots = {}
    names: dict[int, str] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        holder = held(module)
        for key, value in holder.items():
            # a buffer that is not saved with the model is a constant of it, not a part of its state
            if value is None or key in unsaved_buffers(module):
                continue
            name = names.setdefault(id(value), f"{path}.{key}" if path else key)
            places = found.setdefault(name, [])
            if not any(other is holder and key == its_key for other, its_key in places):
                places.append((holder, key))
    return found


def _constants(model: nn.Module) -> Tree:
    return {
        f"{path}.{key}" if path else key: own_buffers(module)[key]
        for path, module in model.named_modules()
        for key in sorted(unsaved_buffers(module))
        if own_buffers(module)[key] is not None
    }  # type: ignore[return-value]


def read_slots(slots: Slots) -> Tree:
    """Copies of the tensors in these places."""
    return {name: places[0][0][places[0][1]].detach().clone() for name, places in slots.items()}


def bind(slots: Slots, tree: Tree) -> None:
    """Puts the tree's tensors into these places, by reference."""
    for name, places in slots.items():
        if name not in tree:  # it would keep another client's values
            missing = sorted(slots.keys() - tree.keys())
            raise KeyError(f"a forward pass needs all of the model's names; missing: {missing}")
        for holder, key in places:
            holder[key] = tree[name]
