"""Many clients side by side under one level of `vmap`: slots written for one client run once for all of them.

The level is opened and closed by hand (`torch.func.vmap` would need all that a visit touches as its arguments, and
could not be left for a while): inside it a slot sees one client's shapes, below it the tensors are [K, ...]. Gradients
are plain autograd on these, a third faster than `torch.func.grad` under `vmap`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unskew.base.batch import Batch, Output
from unskew.base.torch_private import add_batch_dim, close_vmap, current_level, open_vmap, remove_batch_dim
from unskew.base.tree import Groups, Tree
from unskew.core import local_loop
from unskew.core.checks.returned import check_loss, refuse_detached
from unskew.core.context import Context, Diagnostics, LocalGradient, Noter, check_note, refuse_shared
from unskew.core.net import Forward
from unskew.core.optimisers import clip
from unskew.data.stacked_batches import StackedBatch


class NotStackable(Exception):
    """What a method or model does can only be done for one client at a time."""


@dataclass(eq=False)
class Loop:
    """One loop over batches."""

    held: bool
    """Whether clients without a batch are held still: not so in a slot's own loop."""
    first: dict[str, tuple[Tensor, int]] | None = None
    """The parameters at which the loop's first gradient was taken, and how often each had been changed in place."""


class Step(NamedTuple):
    """What is current while clients take a step."""

    x: Tensor | None
    mask: Tensor | None
    active: Tensor | None
    sizes: list[int] | None


RECENT = 4
"""Batches whose masks are known: a step may take several."""


class Lanes:
    """K clients; also the `Steps` of their visit."""

    def __init__(self, count: int, device: torch.device) -> None:
        self.count, self.device = count, device
        self.level = 0
        self.mask: Tensor | None = None
        self.active: Tensor | None = None
        self.sizes: list[int] | None = None
        self._recent: deque[Step] = deque(maxlen=RECENT)
        self._loops: list[Loop] = []
        self._holds_next = False

    # ------------------------------------------------------------------------------------- the level

    def __enter__(self) -> Lanes:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _open(self) -> None:
        self.level = open_vmap(self.count)

    def _close(self) -> None:
        close_vmap()
        self.level = 0

    @contextmanager
    def leave(self) -> Iterator[None]:
        """Leaves the level for a while: random numbers drawn inside it would be drawn for all clients at once."""
        if current_level() != self.level:
            raise NotStackable("a slot asks for gradients or data inside a vmap or grad of its own")
        self._close()
        try:
            yield
        finally:
            self._open()

    def wrap(self, value: Tensor) -> Tensor:
        """What a slot sees of a tensor [K, ...]."""
        return add_batch_dim(value, 0, self.level)

    def unwrap(self, value: Tensor) -> Tensor:
        """The tensor [K, ...] below; one that is the same for all clients is expanded."""
        return remove_batch_dim(value, self.level, self.count, 0)

    def wrap_groups(self, every: list[Groups]) -> Groups:
        """The clients' groups as one: tensors that all clients share stay single, the others are stacked."""
        first = every[0]
        if any(list(groups) != list(first) for groups in every):
            raise NotStackable(f"clients hold different groups: {sorted({name for one in every for name in one})}")
        return {group: self._wrap_tree([groups[group] for groups in every]) for group in first}

    def _wrap_tree(self, trees: list[Tree]) -> Tree:
        wrapped: Tree = {}
        for name, value in trees[0].items():
            values = [tree[name] for tree in trees]
            shared = all(other is value for other in values)
            wrapped[name] = value if shared else self.wrap(torch.stack(values))
        return wrapped

    # ------------------------------------------------------------------------------ gradients and steps

    def bind(self, forward: Forward) -> Forward:
        """A pass over one of the current batches leaves that batch's padding out of BatchNorm's statistics."""

        def see(params: Tree, x: Tensor, *args: Any, **options: Any) -> Output:
            for step in self._recent:
                if step.x is x:
                    self.mask, self.sizes = step.mask, step.sizes
            return forward(params, x, *args, **options)

        return see

    def copy(self, params: Tree) -> Tree:
        """A copy of its own for each client."""
        return {name: self.wrap(self.unwrap(value).detach().clone()) for name, value in params.items()}

    def gradient(self, loss: Callable[[Tree], Tensor], params: Tree, names: Iterable[str]) -> tuple[Tree, Tensor]:
        """The gradient of each client's loss at its parameters, and the losses (detached)."""
        wanted = list(names)
        self._refuse_own_steps(params)
        below = [self.unwrap(params[name]).detach() for name in wanted]
        with self.leave():
            for leaf in below:  # not allowed inside the level
                leaf.requires_grad_()
        leaves = {name: value.detach() for name, value in params.items()}
        leaves.update((name, self.wrap(leaf)) for name, leaf in zip(wanted, below, strict=True))
        with torch.enable_grad():
            value = check_loss(None, "", loss(leaves))
            losses = self.unwrap(value)
            with self.leave():
                try:
                    grads = local_loop.backward(losses.sum(), below)  # clients do not mix: it is each one's gradient
                except RuntimeError:
                    refuse_detached(losses)
                    raise
        return {name: self.wrap(grad) for name, grad in zip(wanted, grads, strict=True)}, value.detach()

    def _refuse_own_steps(self, params: Tree) -> None:
        """In a slot's own loop, steps of its own would also move clients whose batches are used up."""
        loop = self._loops[-1] if self._loops else None
        if loop is None or loop.held:
            return
        if loop.first is None:
            loop.first = {name: (value, self.unwrap(value)._version) for name, value in params.items()}
        elif self.active is not None and any(
            params[name] is not old or self.unwrap(old)._version != version
            for name, (old, version) in loop.first.items()
        ):
            raise NotStackable(_OWN_STEPS)

    def fold(self, c: Context, step: Callable[[Groups, Any], Groups], start: Groups, batches: Iterable[Any]) -> Groups:
        """`start` after `step(groups, batch)` for each batch; who has no batch left stands still."""
        with self.restore_step(), torch.no_grad():
            for batch in self._hold_clients(batches):
                c.diagnostics.step(batch)
                new = step(start, batch)
                start = new if self.active is None else self._keep_inactive(new, start)
        return start

    def _keep_inactive(self, new: Groups, old: Groups) -> Groups:
        """The new groups, where a client has a batch; else the old ones."""
        assert self.active is not None
        active = self.wrap(self.active)
        return {
            group: {name: torch.where(active, value, old[group][name]) for name, value in own.items()}
            for group, own in new.items()
        }

    def _hold_clients(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches of a loop that holds clients without a batch still."""
        self._holds_next = True
        for batch in batches:
            self._holds_next = False
            yield batch
        self._holds_next = False

    def descend(self, c: Context, params: Tree, gradient: LocalGradient, batches: Iterable[Any]) -> Tree:
        """Each client's parameters after its own steps; who has no batch left stands still."""
        with self.restore_step():
            return self.continue_descent(c, params, gradient, batches, local_loop.start_memory(c.settings))

    def continue_descent(
        self,
        c: Context,
        params: Tree,
        gradient: LocalGradient,
        batches: Iterable[Any],
        memory: local_loop.Velocity | local_loop.Memory,
    ) -> Tree:
        """The same, continuing with what the optimiser remembers."""
        current = {name: value.detach() for name, value in params.items()}
        moving: Tree = {}
        with torch.no_grad():
            for batch in self._hold_clients(batches):
                grads = local_loop.step_gradient(c, gradient, current, batch)
                for name in grads.keys() - moving.keys():
                    moving[name] = self.unwrap(current[name]).clone()
                    current[name] = self.wrap(moving[name])
                weights = [moving[name] for name in grads]
                before = None if self.active is None else [weight.clone() for weight in weights]
                if isinstance(memory, local_loop.Velocity):
                    if c.settings.clip is not None:
                        grads = clip(grads, c.settings.clip)  # inside the level: each client's by its own norm
                    memory.update(weights, {name: self.unwrap(grad) for name, grad in grads.items()}, c.settings)
                else:
                    memory.move([current[name] for name in grads], grads, c.settings)
                if before is not None:
                    self._hold(weights, before)
        return current

    def _hold(self, weights: list[Tensor], before: list[Tensor]) -> None:
        """Puts back what moved at clients that have no batch in this step."""
        assert self.active is not None
        for weight, old in zip(weights, before, strict=True):
            weight.copy_(torch.where(self.active.view(-1, *(1,) * (weight.dim() - 1)), weight, old))

    # ---------------------------------------------------------------------------------------- batches

    @contextmanager
    def restore_step(self) -> Iterator[None]:
        """Makes the step that is current now current again afterwards: others may be taken meanwhile."""
        before, recent = (self.mask, self.active, self.sizes), self._recent.copy()
        try:
            yield
        finally:
            self.mask, self.active, self.sizes = before
            self._recent = recent  # also frees the batches of the loop that ends here

    def batches(self, stacked: Iterator[StackedBatch], training: bool = False) -> Iterator[Batch]:
        """The steps as slots see them; the data are gathered outside the level. `training`: not a look at all samples.

        Clients whose batches are used up see empty ones. Who sums over samples need not care; who takes steps must
        hold them still, as `descend` and `fold` do, so a slot's own loop over training batches is refused there.
        """
        loop, self._holds_next = Loop(held=self._holds_next), False
        self._loops.append(loop)
        try:
            with self.restore_step():
                while True:
                    with self.leave():
                        step = next(stacked, None)
                    if step is None:
                        return
                    if training and step.active is not None and not loop.held:
                        raise NotStackable(_OWN_STEPS)
                    yield self._batch(step)
        finally:
            self._loops.remove(loop)

    def _batch(self, stacked: StackedBatch) -> Batch:
        """A step as slots see it; from now on it is the current one, for BatchNorm and whoever counts."""
        self.mask = None if stacked.mask is None else self.wrap(stacked.mask)
        self.sizes, self.active = stacked.sizes, stacked.active
        x = self.wrap(stacked.x)
        self._recent.append(Step(x, self.mask, self.active, self.sizes))
        return Batch(x, self.wrap(stacked.y), self.wrap(stacked.positions), self.mask)


_OWN_STEPS = (
    "a slot takes steps in a loop of its own, and clients have different numbers of batches; "
    "sgd(c, params, gradient) or c.fold(step, start) would hold those still that have no batch left"
)


class LaneDiagnostics(Diagnostics):
    """Diagnostics of each client, of the steps it took."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self.steps = 0
        self._totals: dict[str, tuple[Tensor | float, Tensor | float]] = {}
        self._counted: Tensor | float = 0.0

    def make_empty(self) -> LaneDiagnostics:
        """The same kind of diagnostics, with nothing counted yet."""
        return LaneDiagnostics(self._lanes)

    @property
    def counted(self) -> Tensor:
        """How many steps each client took, [K] float64."""
        counted = torch.as_tensor(self._counted, dtype=torch.float64, device=self._lanes.device)
        return counted.expand(self._lanes.count)

    def find_step(self) -> int:
        """The number of the current step, equal for all clients that take it."""
        if isinstance(self._counted, float):
            return self.steps
        active = self._lanes.active
        found = set((self._counted if active is None else self._counted[active]).tolist())
        if len(found) > 1:
            raise NotStackable("a slot asks for c.step, and clients have taken different numbers of steps before")
        return int(found.pop()) if found else self.steps

    def step(self, batch: Batch) -> None:
        """Counts one step for each client that has a batch in it."""
        active = self._lanes.active
        self.steps += 1
        self._counted = self._counted + (1.0 if active is None else active.double())

    def note(self, name: str, value: Tensor | float) -> None:
        """Adds one observation to the mean kept under this name, for clients that have a batch."""
        if name not in self._totals:
            check_note(name, value)
        self.add(name, self._lanes.unwrap(torch.as_tensor(value)).detach())

    def add(self, name: str, each: Tensor) -> None:
        """The same for values [K] that are no longer wrapped."""
        active = self._lanes.active
        total, counts = self._totals.get(name, (0.0, 0.0))
        if active is None:
            self._totals[name] = (total + each, counts + 1.0)
        else:
            self._totals[name] = (total + torch.where(active, each, 0.0), counts + active.double())

    def means_by_client(self) -> list[dict[str, float]]:
        """The means of each client."""
        means: list[dict[str, float]] = [{} for _ in range(self._lanes.count)]
        for name, (total, counts) in self._totals.items():
            every = torch.as_tensor(counts).expand(len(means)).tolist()
            for own, value, count in zip(means, torch.as_tensor(total).tolist(), every, strict=True):
                if count:
                    own[name] = value / count
        return means


class CheckedLaneDiagnostics(LaneDiagnostics):
    """The same where somebody's code notes numbers."""

    def __init__(self, lanes: Lanes) -> None:
        super().__init__(lanes)
        self._owners: dict[str, Noter] = {}

    def make_empty(self) -> CheckedLaneDiagnostics:
        """The same kind of diagnostics, with nothing counted yet."""
        return CheckedLaneDiagnostics(self._lanes)

    def note(self, name: str, value: Tensor | float) -> None:
        """Adds one observation; refuses a name that another part uses."""
        if isinstance(name, str):
            refuse_shared(self._owners, name, self.noting)
        super().note(name, value)
