"""From the slots of a local step to a compiled graph.

The step is traced once with real tensors (`make_fx`): slots may be any Python, and what they read from the context is
recognised as an input of the graph by its identity. The graph goes to torch.compile's backend.
What could differ at the next step without being an input (a random draw, a tensor that a slot made for itself, the
round as a number) is refused when the graph is traced; the stack then takes its steps uncompiled, and says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.fx import GraphModule

from unskew.base.errors import one_line
from unskew.base.torch_private import get_unwrapped, is_batched
from unskew.base.tree import Tree
from unskew.core.context import LocalGradient
from unskew.executors.stacked.context import StackedContext
from unskew.executors.stacked.lanes import LaneDiagnostics, Lanes, NotStackable

log = logging.getLogger(__name__)
Compiled = Callable[..., Any]
Path = tuple[str, ...]
"""Where an input of a graph is found: a field of the context, group and name; or a kind and a name."""


@dataclass(frozen=True)
class CompiledContext(StackedContext):
    """The visit of a stack whose steps are compiled."""

    even: ClassVar[bool] = True
    tracing: bool = False
    """The step is being traced: what is drawn now would be drawn at every later step."""

    @property
    def step(self) -> int:
        """The number of the current step; not while the step is traced, which is for all numbers alike."""
        if self.tracing:
            raise NotStackable("a slot asks for the number of the step")
        return super().step

    def draw(self, purpose: str, make: Callable[[torch.Generator], Tensor]) -> Tensor:
        """Each client's random numbers from its own stream; not while the step is traced."""
        if self.tracing:
            raise NotStackable("a slot draws random numbers in the local step")
        return super().draw(purpose, make)

    def draw_part(self, share: float, purpose: str, at_most: int | None = None) -> StackedContext:
        """The same visits with a part of the data; not while the step is traced."""
        if self.tracing:
            raise NotStackable("a slot draws a part of the data in the local step")
        return super().draw_part(share, purpose, at_most)


@dataclass
class Graph:
    """A compiled step: which tensors it takes, what it gives."""

    run: Compiled
    takes: list[Path]
    moved: list[str]
    remembered: list[str]
    """What the optimiser remembers, by its names."""
    notes: list[str]
    count: int
    """How many steps it takes."""


class Compiler:
    """The compiled steps of one executor, by what they were traced for."""

    MOST = 8
    """More graphs of one function than this mean that something in it changes from round to round."""

    def __init__(self) -> None:
        self.graphs: dict[Any, Graph | None] = {}
        self._used: dict[Any, int] = {}
        self._zeros: Tree = {}

    def zeros(self, like: Tree) -> Tree:
        """Zeros of these shapes, made once: no graph changes its inputs."""
        for name, value in like.items():
            known = self._zeros.get(name)
            if known is None or known.shape != value.shape or known.dtype != value.dtype:
                self._zeros[name] = torch.zeros_like(value)
        return {name: self._zeros[name] for name in like}

    def refuse(self, key: Any, error: Exception) -> None:
        """Remembers that this step runs uncompiled."""
        self.graphs[key] = None
        log.warning("the local step is not compiled (%s: %s); stacked clients continue without", type(error).__name__,
                    one_line(error))  # fmt: skip

    def check_due(self, key: Any) -> bool:
        """Whether the graph should be compared with the uncompiled step: at its 2nd, 4th, 8th … visit."""
        used = self._used[key] = self._used.get(key, 0) + 1
        return used > 1 and used & (used - 1) == 0

    def check_number(self, function: Any) -> None:
        """An error where a function has been compiled too often."""
        if sum(key[0] == function for key in self.graphs) >= self.MOST:
            raise NotStackable("a number in the local step changes from round to round")


class Notes(LaneDiagnostics):
    """Diagnostics of a traced step: what is noted becomes an output of the graph."""

    def __init__(self, lanes: Lanes) -> None:
        super().__init__(lanes)
        self.values: Tree = {}
        self._counts: dict[str, int] = {}

    def note(self, name: str, value: Tensor | float) -> None:
        """One observation of the step, of which there may be several: their mean."""
        seen, before = self._lanes.unwrap(torch.as_tensor(value)).detach(), self.values.get(name)
        count = self._counts[name] = self._counts.get(name, 0) + 1
        self.values[name] = seen if before is None else before + (seen - before) / count


def prune(graph: GraphModule, names: list[Path]) -> list[Path]:
    """Takes unused inputs out of the graph; refuses tensors that the graph would take for constants."""
    graph.graph.eliminate_dead_code()
    for node in graph.graph.nodes:
        if node.op == "get_attr" and getattr(graph, node.target).numel() > 1:
            shape = tuple(getattr(graph, node.target).shape)
            raise NotStackable(f"a slot keeps a tensor of shape {shape} outside the context")
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    takes = []
    for node, name in zip(inputs, names, strict=True):
        if node.users:
            takes.append(name)
        else:
            graph.graph.erase_node(node)
    graph.graph.set_codegen(torch.fx.graph.CodeGen())  # inputs are no longer the traced function's one list
    graph.recompile()
    return takes


@contextmanager
def restore_buffers(lanes: Lanes, buffers: Tree) -> Iterator[None]:
    """Restores BatchNorm's statistics afterwards: tracing a step is not taking it."""
    before = {name: unwrap_if_batched(value).clone() for name, value in buffers.items()}
    mask, active, sizes = lanes.mask, lanes.active, lanes.sizes
    try:
        yield
    finally:
        lanes.mask, lanes.active, lanes.sizes = mask, active, sizes
        with lanes.leave():
            for name, value in before.items():
                unwrap_if_batched(buffers[name]).copy_(value)


def list_batched(c: CompiledContext) -> tuple[bool, ...]:
    """Which tensors of message and state are one for all clients: in a first visit others than later."""
    groups = (*c.message.values(), *c.state.values(), *c.previous.values(), *c.made.values())
    return tuple(is_batched(value) for tree in groups for value in tree.values())


def fingerprint(gradient: LocalGradient) -> tuple[Any, Any]:
    """What makes a step's function another one: its code and the plain values it closes over."""
    function: Any = getattr(gradient, "__func__", gradient)
    cells = tuple(cell.cell_contents for cell in function.__closure__ or ())
    return function.__code__, tuple(repr(cell) for cell in cells if isinstance(cell, (int, float, str, bool, tuple)))


def unwrap_if_batched(value: Tensor | None) -> Tensor:
    """The tensor under a batched one; any other as it is."""
    assert value is not None
    return get_unwrapped(value) if is_batched(value) else value
