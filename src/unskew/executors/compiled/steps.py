"""Local steps of a stack of clients as compiled graphs; graph.py says how slots become one."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from unskew.base.batch import Batch
from unskew.base.errors import is_from_signal
from unskew.base.settings import LocalSettings
from unskew.base.torch_private import compile_graph
from unskew.base.tree import Groups, Tree
from unskew.core import local_loop
from unskew.core.context import Context, LocalGradient
from unskew.core.optimisers import advance, begin
from unskew.executors.compiled.graph import (
    CompiledContext,
    Compiler,
    Graph,
    Notes,
    Path,
    fingerprint,
    list_batched,
    prune,
    restore_buffers,
    unwrap_if_batched,
)
from unskew.executors.stacked.lanes import LaneDiagnostics, Lanes, NotStackable

UNROLL = 4
"""Steps in one graph: a tiny visit is one call then; more would take long to compile."""
_CHANGING = ("x", "y", "positions", "mask", "active")


class Pulled(NamedTuple):
    """A step that was pulled ahead, and what was current with it."""

    batch: Batch
    active: Tensor | None
    sizes: list[int] | None


class CompiledLanes(Lanes):
    """Lanes whose local steps are compiled."""

    def __init__(self, count: int, device: torch.device, compiler: Compiler) -> None:
        super().__init__(count, device)
        self._compiler = compiler
        self._calls = 0
        self._everyone = torch.ones(count, dtype=torch.bool, device=device)

    def descend(self, c: Context, params: Tree, gradient: LocalGradient, batches: Iterable[Batch]) -> Tree:
        """The same as uncompiled, up to rounding."""
        assert isinstance(c, CompiledContext)
        with self.restore_step():
            return self._descend(c, params, gradient, batches)

    def _descend(self, c: CompiledContext, params: Tree, gradient: LocalGradient, batches: Iterable[Batch]) -> Tree:
        self._calls += 1
        code, numbers_inside = fingerprint(gradient)
        key = (
            (self._calls, code),
            numbers_inside,
            _name_step(c.settings),
            self.count,
            list_batched(c),
            bool(c.observers),
        )
        pending = self._hold_clients(batches)
        memory: Tree | None = None
        current = {name: value.detach() for name, value in params.items()}
        while block := self._pull(pending):
            graph = self._graph((*key, len(block)), c, current, gradient, block, first=memory is None)
            if graph is None:
                rest = self._replay(block, pending)
                return self.continue_descent(c, current, gradient, rest, self._hand_on(c, memory))
            run = _Running(self, graph, c, current, memory)
            run.steps(block, cast("LaneDiagnostics", c.diagnostics))
            current.update((name, self.wrap(value)) for name, value in run.weights.items())
            memory = run.memory
        return current

    def _hand_on(self, c: CompiledContext, memory: Tree | None) -> local_loop.Velocity | local_loop.Memory:
        """What compiled steps remember, for the uncompiled ones that follow them."""
        if c.settings.optimiser is None:
            return local_loop.Velocity(memory)
        return local_loop.Memory(memory and {name: self.wrap(value) for name, value in memory.items()})

    def _pull(self, batches: Iterator[Batch]) -> list[Pulled]:
        """The next steps, as many as one graph takes; each with who is active in it."""
        return [Pulled(batch, self.active, self.sizes) for batch in itertools.islice(batches, UNROLL)]

    def _replay(self, block: list[Pulled], rest: Iterator[Batch]) -> Iterator[Batch]:
        """The steps that were pulled ahead, each made current in its turn, then the rest."""
        for step in block:
            self.make_current(step)
            yield step.batch
        yield from rest

    def make_current(self, step: Pulled) -> None:
        """Makes this the step that BatchNorm and diagnostics look at."""
        if not isinstance(step.batch, Batch):  # several: those of the last one are current already
            self.active, self.sizes = step.active, step.sizes
            return
        self.mask, self.active, self.sizes = step.batch.mask, step.active, step.sizes

    # ------------------------------------------------------------------------------------ the graph

    def _graph(
        self, key: Any, c: CompiledContext, params: Tree, gradient: LocalGradient, block: list[Pulled], first: bool
    ) -> Graph | None:
        graphs = self._compiler.graphs
        if key not in graphs:
            try:
                if c.observers:
                    raise NotStackable("a wrapper or a measure observes every step")
                if not all(isinstance(step.batch, Batch) for step in block):
                    raise NotStackable("a step takes several batches")
                self._compiler.check_number(key[0])
                graphs[key] = self._trace(c, params, gradient, block)
            except Exception as error:  # whatever tracing or a compiler cannot do
                if is_from_signal(error):
                    raise
                self._compiler.refuse(key, error)
        graph = graphs[key]
        # a visit's first steps are looked at, before any of them is taken; its later ones are the same function
        due = first and graph is not None and self._compiler.check_due(key)
        if due and not self._agrees(cast("Graph", graph), c, params, gradient, block):
            self._compiler.refuse(key, NotStackable("it no longer computes what the slots say"))
        return graphs[key]

    def _agrees(
        self, graph: Graph, c: CompiledContext, params: Tree, gradient: LocalGradient, block: list[Pulled]
    ) -> bool:
        """Whether graph and slots make the same steps from here, up to rounding."""
        apart = replace(c, diagnostics=LaneDiagnostics(self))
        with restore_buffers(self, c.buffers):
            plain = super().descend(apart, params, gradient, self._replay(block, iter(())))
            slots = {name: self.unwrap(plain[name]) for name in graph.moved}
        run = _Running(self, graph, c, params, None)
        start = dict(run.weights)
        with restore_buffers(self, c.buffers):
            run.steps(block, LaneDiagnostics(self))
        with self.leave():
            moved = sum(float((slots[name] - start[name]).square().sum()) for name in graph.moved)
            apart_by = sum(float((slots[name] - run.weights[name]).square().sum()) for name in graph.moved)
        return apart_by <= 1e-4 * moved

    def _trace(self, c: CompiledContext, params: Tree, gradient: LocalGradient, block: list[Pulled]) -> Graph:
        # in the first round the initial model is the message itself; later it is not, so the graph must not mix them
        initial = {name: {key: value.clone() for key, value in tree.items()} for name, tree in c.initial.items()}
        c = replace(c, initial=initial)
        fixed = [name for name in params if name in c.names.fixed]  # else the graph would take them for constants
        weights, memory = self.start(c, params, [*c.trainable, *fixed])
        # clones: a tensor that serves several steps today (who is active, say) is several tensors tomorrow
        own = {name: value.clone() for name, value in {**self.numbers(c), **self.batch_inputs(block)}.items()}
        changing = {"weights": weights, "memory": memory, "batch": own}
        named: dict[Path, Tensor] = self._find_known(c)
        named.update({(kind, key): value for kind, tree in changing.items() for key, value in tree.items()})
        found: dict[str, list[str]] = {}

        def traced(values: list[Tensor]) -> list[Tensor]:
            given = dict(zip(named, values, strict=True))
            new_weights, new_memory, notes = self._steps(c, params, gradient, given, len(block))
            found.update(moved=list(new_weights), remembered=list(new_memory), notes=list(notes[0]))
            if any(list(noted) != found["notes"] for noted in notes):
                raise NotStackable("steps of one visit note different numbers")
            noted = [value for each in notes for value in each.values()]
            return [*new_weights.values(), *new_memory.values(), *noted]

        with restore_buffers(self, c.buffers), self.leave(), torch.no_grad():
            graph = make_fx(traced)(list(named.values()))
            takes = prune(graph, list(named))
            run = compile_graph(graph, [named[path] for path in takes])
        return Graph(run, takes, found["moved"], found["remembered"], found["notes"], len(block))

    def _steps(
        self, c: CompiledContext, params: Tree, gradient: LocalGradient, given: dict[Path, Tensor], count: int
    ) -> tuple[Tree, Tree, list[Tree]]:
        """What the graph computes: so many steps; the weights that moved, the memory, and what each step noted."""
        weights, memory, batch = (_tree(given, kind) for kind in ("weights", "memory", "batch"))
        moved, noted = [], []
        for number in range(count):
            own = {name: batch[f"{number}/{name}"] for name in _CHANGING}
            after, memory, notes = self._step(c, params, weights, memory, gradient, own, batch)
            noted.append(notes)
            moved.append(list(after))
            for name, value in after.items():
                active = own["active"].view(-1, *(1,) * (value.dim() - 1))
                weights[name] = torch.where(active, value, weights[name])
        if any(names != moved[0] for names in moved):
            raise NotStackable("steps of one visit move different parameters")
        return {name: weights[name] for name in moved[0]}, memory, noted

    def _step(
        self,
        c: CompiledContext,
        params: Tree,
        weights: Tree,
        memory: Tree,
        gradient: LocalGradient,
        own: Tree,
        numbers: Tree,
    ) -> tuple[Tree, Tree, Tree]:
        """The weights after one step along the slots' direction, the memory, and what was noted; below the level."""
        notes = Notes(self)
        self._open()
        try:
            self.mask, self.active, self.sizes = self.wrap(own["mask"]), own["active"], None
            inside = replace(
                c, round=cast("int", numbers["round"]), settings=replace(c.settings, lr=cast("float", numbers["lr"])),
                diagnostics=notes, tracing=True,
            )  # fmt: skip
            seen = Batch(*(self.wrap(own[name]) for name in ("x", "y", "positions", "mask")))
            current = {**params, **{name: self.wrap(value) for name, value in weights.items()}}
            grads = gradient(inside, current, seen)
            before = {name: self.wrap(value) for name, value in memory.items()}
            after, known = advance({name: current[name] for name in grads}, grads, before, inside.settings)
            return self._below(after), self._below(known), notes.values
        finally:
            self._close()

    def _below(self, values: Tree) -> Tree:
        return {name: self.unwrap(value) for name, value in values.items()}

    def start(self, c: CompiledContext, params: Tree, names: list[str]) -> tuple[Tree, Tree]:
        """Weights and what the optimiser remembers before the first step."""
        weights = {name: self.unwrap(params[name]).detach().contiguous() for name in names}
        if c.settings.optimiser is None:
            return weights, self._compiler.zeros(weights) if c.settings.momentum else {}
        memory = begin({name: self.wrap(value) for name, value in weights.items()}, c.settings)
        return weights, {name: value.contiguous() for name, value in self._below(memory).items()}

    def batch_inputs(self, block: list[Pulled]) -> dict[str, Tensor]:
        """The steps' own tensors."""
        found: dict[str, Tensor] = {}
        for number, (batch, active, _) in enumerate(block):
            found.update((f"{number}/{name}", unwrap_if_batched(value)) for name, value in batch._asdict().items())
            found[f"{number}/active"] = self._everyone if active is None else active
        return found

    def numbers(self, c: CompiledContext) -> dict[str, Tensor]:
        """What changes from round to round, as inputs: a number would be taken for a constant."""
        device = self.device
        return {"lr": torch.tensor(c.settings.lr, device=device), "round": torch.tensor(float(c.round), device=device)}

    def _find_known(self, c: CompiledContext) -> dict[Path, Tensor]:
        """Every tensor that a slot may read from the context, by its path; each tensor once."""
        found: dict[Path, Tensor] = {("counts",): c.stack.counts, ("lengths",): c.stack.sizes}
        seen: set[int] = set()
        for field in _FIELDS:
            value: Any = getattr(c, field)
            groups: Groups = {"": value} if field in _FLAT else value
            for group, tree in groups.items():
                for name, tensor in tree.items():
                    if id(unwrap_if_batched(tensor)) not in seen:
                        seen.add(id(unwrap_if_batched(tensor)))
                        found[field, group, name] = unwrap_if_batched(tensor)
        return found


_FIELDS = ("message", "state", "received", "previous", "made", "buffers", "initial", "constants")
_FLAT = ("buffers", "constants")


class _Running:
    """Some steps of a visit by a graph."""

    def __init__(
        self, lanes: CompiledLanes, graph: Graph, c: CompiledContext, params: Tree, memory: Tree | None
    ) -> None:
        self._lanes, self._graph, self._c, self._params = lanes, graph, c, params
        self.weights, still = lanes.start(c, params, graph.moved)
        self.memory = still if memory is None else memory

    def steps(self, block: list[Pulled], diagnostics: LaneDiagnostics) -> None:
        """Takes the steps; weights and memory are those after them."""
        graph, lanes = self._graph, self._lanes
        changing = {**lanes.numbers(self._c), **lanes.batch_inputs(block)}
        inputs = [_find_input(self._c, self._params, self, changing, lanes, path) for path in graph.takes]
        with lanes.leave():
            out = graph.run(*inputs)
        count = len(graph.moved)
        self.weights = dict(zip(graph.moved, out[:count], strict=True))
        remembered = out[count : count + len(graph.remembered)]
        # outputs are laid out as the compiler likes, another way on each processor; inputs must be as they were traced
        self.memory = {name: value.contiguous() for name, value in zip(graph.remembered, remembered, strict=True)}
        noted = iter(out[len(out) - len(graph.notes) * graph.count :])
        for step in block:
            lanes.make_current(step)
            diagnostics.step(step.batch)
            for name in graph.notes:
                diagnostics.add(name, next(noted))


def _find_input(c: CompiledContext, params: Tree, run: _Running, changing: Tree, lanes: Lanes, path: Path) -> Tensor:
    """The graph's input under this path."""
    kind, *rest = path
    if kind == "batch":
        return changing[rest[0]]
    if kind == "memory":
        return run.memory[rest[0]]
    if kind == "weights":
        known = run.weights.get(rest[0])  # none: trainable, but not moved by this gradient
        return lanes.unwrap(params[rest[0]]).detach().contiguous() if known is None else known
    if kind in ("counts", "lengths"):
        return c.stack.counts if kind == "counts" else c.stack.sizes
    value: Any = getattr(c, kind)
    return unwrap_if_batched(value[rest[1]] if kind in _FLAT else value[rest[0]][rest[1]])


def _name_step(settings: LocalSettings) -> tuple[Any, ...]:
    """What makes the step of a direction another one, but for the rate, which is an input."""
    s = settings
    return s.momentum, s.weight_decay, s.nesterov, s.clip, str(s.optimiser)


def _tree(given: dict[Path, Tensor], kind: str) -> Tree:
    return {path[1]: value for path, value in given.items() if path[0] == kind and len(path) == 2}
