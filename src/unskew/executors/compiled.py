"""The local step of a stack of clients as one compiled graph.

The step is traced once with real tensors (`make_fx`): slots may be any Python, and what they read from the context is
recognised as an input of the graph by its identity. The graph goes to torch.compile's backend (`torch._inductor`).
What could differ at the next step without being an input (a random draw, a tensor that a slot made for itself, the
round as a number) is refused when the graph is traced; the stack then takes its steps uncompiled, and says so.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch._C import _functorch
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from unskew.core import local
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
    count: int
    """How many steps it takes."""


UNROLL = 4
"""Steps in one graph: a tiny visit is one call then; more would take long to compile."""
_CHANGING = ("x", "y", "positions", "mask", "active")


class Pulled(NamedTuple):
    """A step that was pulled ahead, and what was current with it."""

    batch: Batch
    active: Tensor | None
    sizes: list[int] | None


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
        velocity: Tree | None = None
        current = {name: value.detach() for name, value in params.items()}
        while block := self._pulled(pending):
            graph = self._graph((*key, len(block)), c, current, gradient, block, first=velocity is None)
            if graph is None:
                rest = self._again(block, pending)
                return self.descend_on(c, current, gradient, rest, local.Velocity(velocity))
            run = _Running(self, graph, c, current, velocity)
            run.steps(block, cast("LaneDiagnostics", c.diagnostics))
            current.update((name, self.wrap(value)) for name, value in run.weights.items())
            velocity = run.velocity
        return current

    def _pulled(self, batches: Iterator[Batch]) -> list[Pulled]:
        """The next steps, as many as one graph takes; each with who is active in it."""
        return [Pulled(batch, self.active, self.sizes) for batch in itertools.islice(batches, UNROLL)]

    def _again(self, block: list[Pulled], rest: Iterator[Batch]) -> Iterator[Batch]:
        """Steps that were pulled ahead, one after the other as the current one, then the others."""
        for step in block:
            self.make_current(step)
            yield step.batch
        yield from rest

    def make_current(self, step: Pulled) -> None:
        """What BatchNorm and diagnostics look at is this step's again."""
        self.mask, self.active, self.sizes = step.batch.mask, step.active, step.sizes

    # ------------------------------------------------------------------------------------ the graph

    def _graph(
        self, key: Any, c: Cohort, params: Tree, gradient: LocalGradient, block: list[Pulled], first: bool
    ) -> Graph | None:
        graphs = self._compiler.graphs
        if key not in graphs:
            try:
                if c.before_step:
                    raise NotStackable("a wrapper watches every step")
                self._compiler.check_number(key[0])
                graphs[key] = self._traced(c, params, gradient, block)
            except Exception as error:  # whatever tracing or a compiler cannot do
                self._compiler.refuse(key, error)
        graph = graphs[key]
        # a visit's first steps are looked at, before any of them is taken; its later ones are the same function
        if (
            first
            and graph is not None
            and self._compiler.check_due(key)
            and not self._agrees(graph, c, params, gradient, block)
        ):
            self._compiler.refuse(key, NotStackable("it no longer computes what the slots say"))
        return graphs[key]

    def _agrees(self, graph: Graph, c: Cohort, params: Tree, gradient: LocalGradient, block: list[Pulled]) -> bool:
        """Whether graph and slots make the same steps from here, up to rounding."""
        apart = replace(c, diagnostics=LaneDiagnostics(self))
        with _unchanged(self, c.buffers):
            plain = super().descend(apart, params, gradient, self._again(block, iter(())))
            slots = {name: self.unwrap(plain[name]) for name in graph.moved}
        run = _Running(self, graph, c, params, None)
        start = dict(run.weights)
        with _unchanged(self, c.buffers):
            run.steps(block, LaneDiagnostics(self))
        with self.left():
            moved = sum(float((slots[name] - start[name]).square().sum()) for name in graph.moved)
            apart_by = sum(float((slots[name] - run.weights[name]).square().sum()) for name in graph.moved)
        return apart_by <= 1e-4 * moved

    def _traced(self, c: Cohort, params: Tree, gradient: LocalGradient, block: list[Pulled]) -> Graph:
        # in the first round the initial model is the message itself; later it is not, so the graph must not mix them
        initial = {name: {key: value.clone() for key, value in tree.items()} for name, tree in c.initial.items()}
        c = replace(c, initial=initial)
        weights, velocity = self.start(c, params, list(c.trainable))
        # clones: a tensor that serves several steps today (who is active, say) is several tensors tomorrow
        own = {name: value.clone() for name, value in {**self.numbers(c), **self.batch_inputs(block)}.items()}
        changing = {"weights": weights, "velocity": velocity, "batch": own}
        named: dict[Path, Tensor] = self._known(c)
        named.update({(kind, key): value for kind, tree in changing.items() for key, value in tree.items()})
        found: dict[str, list[str]] = {}

        def traced(values: list[Tensor]) -> list[Tensor]:
            given = dict(zip(named, values, strict=True))
            new_weights, new_velocity, notes = self._steps(c, params, gradient, given, len(block))
            found.update(moved=list(new_weights), notes=list(notes[0]))
            if any(list(noted) != found["notes"] for noted in notes):
                raise NotStackable("steps of one visit note different numbers")
            noted = [value for each in notes for value in each.values()]
            return [*new_weights.values(), *(new_velocity[name] for name in new_weights if new_velocity), *noted]

        with _unchanged(self, c.buffers), self.left(), torch.no_grad():
            graph = make_fx(traced)(list(named.values()))
            takes = _prune(graph, list(named))
            run = torch._inductor.compile(graph, [named[path] for path in takes])
        return Graph(cast("Compiled", run), takes, found["moved"], found["notes"], len(block))

    def _steps(
        self, c: Cohort, params: Tree, gradient: LocalGradient, given: dict[Path, Tensor], count: int
    ) -> tuple[Tree, Tree, list[Tree]]:
        """What the graph computes: so many steps; the weights and velocities that moved, and what each step noted."""
        weights, velocity, batch = (_tree(given, kind) for kind in ("weights", "velocity", "batch"))
        moved, noted = [], []
        for number in range(count):
            own = {name: batch[f"{number}/{name}"] for name in _CHANGING}
            grads, notes = self._gradient_of(c, params, weights, gradient, own, batch)
            noted.append(notes)
            moved.append(list(grads))
            for name, grad in grads.items():
                weight, decay, momentum = weights[name], c.settings.weight_decay, c.settings.momentum
                direction = grad + decay * weight if decay else grad
                if momentum:
                    direction = velocity[name] = momentum * velocity[name] + direction
                active = own["active"].view(-1, *(1,) * (weight.dim() - 1))
                weights[name] = torch.where(active, weight - batch["lr"] * direction, weight)
        if any(names != moved[0] for names in moved):
            raise NotStackable("steps of one visit move different parameters")
        return {name: weights[name] for name in moved[0]}, velocity, noted

    def _gradient_of(
        self, c: Cohort, params: Tree, weights: Tree, gradient: LocalGradient, own: Tree, numbers: Tree
    ) -> tuple[Tree, Tree]:
        """The slots' direction of one step, below the level, and what was noted."""
        notes = _Notes(self)
        self._open()
        try:
            self.mask, self.active, self.sizes = self.wrap(own["mask"]), own["active"], None
            inside = replace(
                c, round=cast("int", numbers["round"]), settings=replace(c.settings, lr=cast("float", numbers["lr"])),
                diagnostics=notes, tracing=True,
            )  # fmt: skip
            seen = Batch(*(self.wrap(own[name]) for name in ("x", "y", "positions", "mask")))
            current = {**params, **{name: self.wrap(value) for name, value in weights.items()}}
            return {name: self.unwrap(grad) for name, grad in gradient(inside, current, seen).items()}, notes.values
        finally:
            self._close()

    def start(self, c: Cohort, params: Tree, names: list[str]) -> tuple[Tree, Tree]:
        """Weights and velocities before the first step."""
        weights = {name: self.unwrap(params[name]).detach().contiguous() for name in names}
        return weights, self._compiler.zeros(weights) if c.settings.momentum else {}

    def batch_inputs(self, block: list[Pulled]) -> dict[str, Tensor]:
        """The steps' own tensors."""
        found: dict[str, Tensor] = {}
        for number, (batch, active, _) in enumerate(block):
            found[f"{number}/x"], found[f"{number}/y"] = _raw(batch.x), _raw(batch.y)
            found[f"{number}/positions"], found[f"{number}/mask"] = _raw(batch.positions), _raw(batch.mask)
            found[f"{number}/active"] = self._everyone if active is None else active
        return found

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
    """Some steps of a visit by a graph."""

    def __init__(self, lanes: CompiledLanes, graph: Graph, c: Cohort, params: Tree, velocity: Tree | None) -> None:
        self._lanes, self._graph, self._c, self._params = lanes, graph, c, params
        self.weights, still = lanes.start(c, params, graph.moved)
        self.velocity = still if velocity is None else velocity

    def steps(self, block: list[Pulled], diagnostics: LaneDiagnostics) -> None:
        """Takes the steps; weights and velocity are those after them."""
        graph, lanes = self._graph, self._lanes
        changing = {**lanes.numbers(self._c), **lanes.batch_inputs(block)}
        inputs = [_found(self._c, self._params, self, changing, lanes, path) for path in graph.takes]
        with lanes.left():
            out = graph.run(*inputs)
        count = len(graph.moved)
        self.weights = dict(zip(graph.moved, out[:count], strict=True))
        if self.velocity:
            self.velocity = dict(zip(graph.moved, out[count : 2 * count], strict=True))
        noted = iter(out[len(out) - len(graph.notes) * graph.count :])
        for step in block:
            lanes.make_current(step)
            diagnostics.step(step.batch)
            for name in graph.notes:
                diagnostics.add(name, next(noted))


def _found(c: Cohort, params: Tree, run: _Running, changing: Tree, lanes: Lanes, path: Path) -> Tensor:
    """The graph's input under this path."""
    kind, *rest = path
    if kind == "batch":
        return changing[rest[0]]
    if kind == "velocity":
        return run.velocity[rest[0]]
    if kind == "weights":
        known = run.weights.get(rest[0])  # none: trainable, but not moved by this gradient
        return lanes.unwrap(params[rest[0]]).detach().contiguous() if known is None else known
    if kind in ("counts", "lengths"):
        return c.stack.counts if kind == "counts" else c.stack.sizes
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


def _raw(value: Tensor | None) -> Tensor:
    assert value is not None
    return _functorch.get_unwrapped(value) if _functorch.is_batchedtensor(value) else value
