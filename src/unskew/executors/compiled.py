"""The local step of a stack of clients as one compiled graph.

The step is traced once with real tensors (`make_fx`): slots may be any Python, and what they read from the context is
recognised as an input of the graph by its identity. The graph goes to torch.compile's backend (`torch._inductor`).
What could differ at the next step without being an input (a random draw, a tensor that a slot made for itself, the
round as a number) is refused when the graph is traced; the stack then takes its steps uncompiled, and says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch._C import _functorch
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from unskew.core.context import Context, LocalGradient
from unskew.core.tree import Groups, Tree
from unskew.data.local import Batch
from unskew.errors import one_line
from unskew.executors.cohort import Cohort
from unskew.executors.lanes import LaneDiagnostics, Lanes, NotStackable

log = logging.getLogger(__name__)
Compiled = Callable[..., Any]
Path = tuple[str, ...]


@dataclass
class Graph:
    """A compiled step: which tensors it takes, what it gives."""

    run: Compiled
    takes: list[Path]
    moved: list[str]
    notes: list[str]

    def places(self, kind: str) -> list[tuple[int, str]]:
        """Where in the list of inputs a kind of tensor goes that changes from step to step."""
        known = self.moved if kind != "batch" else _CHANGING
        return [(at, path[1]) for at, path in enumerate(self.takes) if path[0] == kind and path[1] in known]


_CHANGING = ("x", "y", "positions", "mask", "active")


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
        log.warning("the local step is not compiled (%s: %s); stacked clients go on without", type(error).__name__,
                    one_line(error))  # fmt: skip

    def check_due(self, key: Any) -> bool:
        """Whether the graph should be compared with the uncompiled step: at its 2nd, 4th, 8th … visit."""
        used = self._used[key] = self._used.get(key, 0) + 1
        return used > 1 and used & (used - 1) == 0

    def check_number(self, function: Any) -> None:
        """An error where a function has been compiled too often."""
        if sum(key[0] == function for key in self.graphs) >= self.MOST:
            raise NotStackable("a number in the local step changes from round to round")


class CompiledLanes(Lanes):
    """Lanes whose local steps are compiled."""

    def __init__(self, count: int, device: torch.device, compiler: Compiler) -> None:
        super().__init__(count, device)
        self._compiler = compiler
        self._calls = 0
        self._everyone = torch.ones(count, dtype=torch.bool, device=device)

    def descend(self, c: Context, params: Tree, gradient: LocalGradient, batches: Iterable[Batch]) -> Tree:
        """The same as uncompiled, up to rounding."""
        assert isinstance(c, Cohort)
        self._calls += 1
        code, numbers_inside = _fingerprint(gradient)
        key = ((self._calls, code), numbers_inside, c.settings.momentum, c.settings.weight_decay, self.count, _form(c))
        pending = iter(batches)
        first = next(pending, None)
        if first is None:
            return params
        graph = self._graph(key, c, params, gradient, first)
        if graph is None:
            return super().descend(c, params, gradient, _chained(first, pending))
        run = _Running(self, graph, c, params)
        batch: Batch | None = first
        assert isinstance(c.diagnostics, LaneDiagnostics)
        while batch is not None:
            c.diagnostics.step(batch)
            for name, value in run.step(batch):
                c.diagnostics.add(name, value)
            batch = next(pending, None)
        return {**{name: value.detach() for name, value in params.items()},
                **{name: self.wrap(value) for name, value in run.weights.items()}}  # fmt: skip

    # ------------------------------------------------------------------------------------ the graph

    def _graph(self, key: Any, c: Cohort, params: Tree, gradient: LocalGradient, batch: Batch) -> Graph | None:
        graphs = self._compiler.graphs
        if key not in graphs:
            try:
                if c.before_step:
                    raise NotStackable("a wrapper watches every step")
                self._compiler.check_number(key[0])
                graphs[key] = self._traced(c, params, gradient, batch)
            except Exception as error:  # whatever tracing or a compiler cannot do
                self._compiler.refuse(key, error)
        graph = graphs[key]
        if graph is not None and self._compiler.check_due(key) and not self._agrees(graph, c, params, gradient, batch):
            self._compiler.refuse(key, NotStackable("it no longer computes what the slots say"))
        return graphs[key]

    def _agrees(self, graph: Graph, c: Cohort, params: Tree, gradient: LocalGradient, batch: Batch) -> bool:
        """Whether graph and slots make the same step from here, up to rounding."""
        apart = replace(c, diagnostics=LaneDiagnostics(self))
        with _unchanged(self, c.buffers):
            plain = super().descend(apart, params, gradient, [batch])
            slots = {name: self.unwrap(plain[name]) for name in graph.moved}
        run = _Running(self, graph, c, params)
        start = dict(run.weights)
        with _unchanged(self, c.buffers):
            run.step(batch)
        with self.left():
            moved = sum(float((slots[name] - start[name]).square().sum()) for name in graph.moved)
            apart_by = sum(float((slots[name] - run.weights[name]).square().sum()) for name in graph.moved)
        return apart_by <= 1e-4 * moved

    def _traced(self, c: Cohort, params: Tree, gradient: LocalGradient, batch: Batch) -> Graph:
        # in the first round the initial model is the message itself; later it is not, so the graph must not mix them
        initial = {name: {key: value.clone() for key, value in tree.items()} for name, tree in c.initial.items()}
        c = replace(c, initial=initial)
        weights, velocity = self.start(c, params, list(c.trainable))
        changing = {"weights": weights, "velocity": velocity, "batch": {**self.numbers(c), **self.batch_inputs(batch)}}
        named: dict[Path, Tensor] = self._known(c)
        named.update({(kind, key): value for kind, tree in changing.items() for key, value in tree.items()})
        moved: list[str] = []
        notes = _Notes(self)

        def traced(values: list[Tensor]) -> list[Tensor]:
            given = dict(zip(named, values, strict=True))
            moved.clear()
            return self._one_step(c, params, gradient, given, moved, notes)

        with _unchanged(self, c.buffers), self.left(), torch.no_grad():
            graph = make_fx(traced)(list(named.values()))
            takes = _prune(graph, list(named))
            run = torch._inductor.compile(graph, [named[path] for path in takes])
        return Graph(cast("Compiled", run), takes, list(moved), list(notes.values))

    def _one_step(
        self,
        c: Cohort,
        params: Tree,
        gradient: LocalGradient,
        given: dict[Path, Tensor],
        moved: list[str],
        notes: _Notes,
    ) -> list[Tensor]:
        """What the graph computes: gradient, weight decay, momentum, update; only clients with a batch move."""
        weights, velocity, batch = (_tree(given, kind) for kind in ("weights", "velocity", "batch"))
        lr, settings = batch["lr"], c.settings
        self._open()
        try:
            self.mask = self.wrap(batch["mask"])
            self.active, self.sizes = batch["active"], None
            notes.values.clear()
            inside = replace(
                c, round=cast("int", batch["round"]), settings=replace(settings, lr=cast("float", lr)),
                diagnostics=notes, tracing=True,
            )  # fmt: skip
            current = {**params, **{name: self.wrap(value) for name, value in weights.items()}}
            seen = Batch(*(self.wrap(batch[name]) for name in ("x", "y", "positions", "mask")))
            grads = {name: self.unwrap(grad) for name, grad in gradient(inside, current, seen).items()}
        finally:
            self._close()
        moved.extend(grads)
        new_weights, new_velocity = [], []
        for name, grad in grads.items():
            weight = weights[name]
            direction = grad + settings.weight_decay * weight if settings.weight_decay else grad
            if settings.momentum:
                direction = settings.momentum * velocity[name] + direction
                new_velocity.append(direction)
            active = batch["active"].view(-1, *(1,) * (weight.dim() - 1))
            new_weights.append(torch.where(active, weight - lr * direction, weight))
        return [*new_weights, *new_velocity, *notes.values.values()]

    def start(self, c: Cohort, params: Tree, names: list[str]) -> tuple[Tree, Tree]:
        """Weights and velocities before the first step."""
        weights = {name: self.unwrap(params[name]).detach().contiguous() for name in names}
        return weights, self._compiler.zeros(weights) if c.settings.momentum else {}

    def batch_inputs(self, batch: Batch) -> dict[str, Tensor]:
        """The step's own tensors."""
        active = self._everyone if self.active is None else self.active
        return {
            "x": _raw(batch.x), "y": _raw(batch.y), "positions": _raw(batch.positions),
            "mask": _raw(cast("Tensor", batch.mask)), "active": active,
        }  # fmt: skip

    def numbers(self, c: Cohort) -> dict[str, Tensor]:
        """What changes from round to round, as inputs: a number would be taken for a constant."""
        device = self.device
        return {"lr": torch.tensor(c.settings.lr, device=device), "round": torch.tensor(float(c.round), device=device)}

    def _known(self, c: Cohort) -> dict[Path, Tensor]:
        """Every tensor that a slot may read from the context, by its path; each tensor once."""
        found: dict[Path, Tensor] = {("counts",): c.stack.counts, ("lengths",): c.stack.sizes}
        seen: set[int] = set()
        for field in _FIELDS:
            value: Any = getattr(c, field)
            groups: Groups = {"": value} if field == "buffers" else value
            for group, tree in groups.items():
                for name, tensor in tree.items():
                    if id(_raw(tensor)) not in seen:
                        seen.add(id(_raw(tensor)))
                        found[field, group, name] = _raw(tensor)
        return found


_FIELDS = ("message", "state", "received", "buffers", "initial")


class _Notes(LaneDiagnostics):
    """Diagnostics of a traced step: what is noted becomes an output of the graph."""

    def __init__(self, lanes: Lanes) -> None:
        super().__init__(lanes)
        self.values: Tree = {}

    def note(self, name: str, value: Tensor | float) -> None:
        """One observation of the step."""
        self.values[name] = self._lanes.unwrap(torch.as_tensor(value)).detach()


class _Running:
    """A visit's steps by a graph: the list of its inputs, in which only what changes is replaced."""

    def __init__(self, lanes: CompiledLanes, graph: Graph, c: Cohort, params: Tree) -> None:
        self._lanes, self._graph = lanes, graph
        self.weights, self._velocity = lanes.start(c, params, graph.moved)
        numbers = lanes.numbers(c)
        self._inputs: list[Any] = [_found(c, params, numbers, lanes, path) for path in graph.takes]
        self._of_weights, self._of_velocity, self._of_batch = map(graph.places, ("weights", "velocity", "batch"))

    def step(self, batch: Batch) -> Iterable[tuple[str, Tensor]]:
        """Takes one step; what it noted."""
        inputs, graph, own = self._inputs, self._graph, self._lanes.batch_inputs(batch)
        for places, tree in (
            (self._of_weights, self.weights),
            (self._of_velocity, self._velocity),
            (self._of_batch, own),
        ):
            for at, name in places:
                inputs[at] = tree[name]
        with self._lanes.left():
            out = graph.run(*inputs)
        count = len(graph.moved)
        self.weights = dict(zip(graph.moved, out[:count], strict=True))
        if self._velocity:
            self._velocity = dict(zip(graph.moved, out[count : 2 * count], strict=True))
        return zip(graph.notes, out[len(out) - len(graph.notes) :], strict=True)


def _found(c: Cohort, params: Tree, numbers: Tree, lanes: Lanes, path: Path) -> Tensor | None:
    """An input that stays the same during the visit; None: it changes from step to step."""
    kind, *rest = path
    if kind in ("counts", "lengths"):
        return c.stack.counts if kind == "counts" else c.stack.sizes
    if kind == "weights":  # trainable, but not moved by this gradient
        return lanes.unwrap(params[rest[0]]).detach().contiguous()
    if kind in ("velocity", "batch"):
        return numbers.get(rest[0])
    value: Any = getattr(c, kind)
    return _raw(value[rest[1]] if kind == "buffers" else value[rest[0]][rest[1]])


def _prune(graph: GraphModule, names: list[Path]) -> list[Path]:
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
def _unchanged(lanes: Lanes, buffers: Tree) -> Iterator[None]:
    """Puts BatchNorm's statistics back: tracing a step is not taking it."""
    before = {name: _raw(value).clone() for name, value in buffers.items()}
    mask, active, sizes = lanes.mask, lanes.active, lanes.sizes
    try:
        yield
    finally:
        lanes.mask, lanes.active, lanes.sizes = mask, active, sizes
        with lanes.left():
            for name, value in before.items():
                _raw(buffers[name]).copy_(value)


def _form(c: Cohort) -> tuple[bool, ...]:
    """Which tensors of message and state are one for all clients: in a first visit others than later."""
    groups = (*c.message.values(), *c.state.values())
    return tuple(_functorch.is_batchedtensor(value) for tree in groups for value in tree.values())


def _fingerprint(gradient: LocalGradient) -> tuple[Any, Any]:
    """What makes a step's function another one: its code and the plain values it closes over."""
    function: Any = getattr(gradient, "__func__", gradient)
    cells = tuple(cell.cell_contents for cell in function.__closure__ or ())
    return function.__code__, tuple(repr(cell) for cell in cells if isinstance(cell, (int, float, str, bool, tuple)))


def _tree(given: dict[Path, Tensor], kind: str) -> Tree:
    return {path[1]: value for path, value in given.items() if path[0] == kind and len(path) == 2}


def _raw(value: Tensor) -> Tensor:
    return _functorch.get_unwrapped(value) if _functorch.is_batchedtensor(value) else value


def _chained(first: Batch, rest: Iterator[Batch]) -> Iterator[Batch]:
    yield first
    yield from rest
