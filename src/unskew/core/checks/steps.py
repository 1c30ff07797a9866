"""Whose fault it is when a local step goes wrong: a slot or term changes what it was given, or trains nothing.

Found in the first step of a visit; then the parts of the loss are asked again, one after the other, to name the one.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unskew.base import seeds
from unskew.base.batch import Batch, Output
from unskew.base.once import warn_once
from unskew.base.torch_private import get_unwrapped, is_batched
from unskew.base.tree import Tree
from unskew.core.checks.faults import Fault, mark_spoilt, title
from unskew.core.checks.guard import Guard
from unskew.core.checks.returned import find_loss_slot
from unskew.core.checks.watching import CHANGES, hold_batch
from unskew.core.slots import overrides

if TYPE_CHECKING:
    from unskew.core.context import Context, LocalGradient

log = logging.getLogger(__name__)


def hold_step(params: Tree, batch: Any, closely: bool = True) -> Guard:
    """Holds what a step is given; looked at `closely`, contents are compared."""
    guard = Guard(deep=closely, streams=False)
    guard.hold("params", params)
    for one in (batch,) if isinstance(batch, Batch) else batch:
        hold_batch(guard, one)
    return guard


def read_versions(params: Tree) -> list[int]:
    """How often each parameter was changed in place so far: cheap enough to ask in every step."""
    return [(get_unwrapped(value) if is_batched(value) else value)._version for value in params.values()]


def find_written(params: Tree, before: list[int]) -> str | None:
    """The first parameter that was changed in place since; None if none was."""
    now = zip(params, read_versions(params), before, strict=False)
    return next((f'params["{name}"]' for name, version, known in now if version != known), None)


def hold_output(c: Context, out: Output) -> Guard:
    """Holds what a pass gave: criterion and terms read it one after the other."""
    alone = not is_batched(out.logits)  # in a stack torch itself refuses what its counter would not notice
    guard = Guard(deep=alone and c.closely and c.diagnostics.steps <= 1, streams=False)
    guard.hold_tensors({"out.logits": out.logits, "out.features": out.features})
    guard.hold_tensors({f'out.maps["{name}"]': value for name, value in out.maps.items()})
    return guard


def refuse_output_change(guard: Guard, part: Any, slot: str) -> None:
    """A fault where criterion or a term changed what the others are to read."""
    if (changed := guard.find_change()) is not None:
        fault = Fault(part, slot, CHANGES.format(changed))
        mark_spoilt(fault, fault)
        raise fault


def refuse_change(c: Context, gradient: LocalGradient, params: Tree, batch: Any, changed: str) -> None:
    """The parameters and the batch of a step are the loop's to change."""
    owner: Any = getattr(gradient, "__self__", None)
    part, slot = _find_culprit(owner, c, params, batch) or (owner, getattr(gradient, "__name__", ""))
    whose = "" if part is not None else "takes steps along a function which "
    fault = Fault(part, slot, f"{whose}{CHANGES.format(changed)}")
    mark_spoilt(fault, fault)
    raise fault


def _find_culprit(method: Any, c: Context, params: Tree, batch: Any) -> tuple[Any, str] | None:
    """The part of a method's loss that changes what it is given, if it does so again."""
    if not (hasattr(method, "criterion") and isinstance(batch, Batch)):
        return None
    for part, slot, ask in _list_parts(method, c):
        own = {name: value.detach().clone() for name, value in params.items()}
        seen = batch._replace(x=batch.x.clone(), y=batch.y.clone())
        guard = hold_step(own, seen)
        with contextlib.suppress(Exception):  # it is asked in another way: without a graph, after a change
            ask(own, seen)
        if guard.find_change() is not None:
            return part, slot
    return None


def _list_parts(method: Any, c: Any) -> Iterator[tuple[Any, str, Callable[[Tree, Batch], Any]]]:
    yield method, "criterion", lambda p, batch: method.criterion(c, c.forward(p, batch.x), batch)
    for term in c.terms:
        yield term, "__call__", partial(_ask_term, c, term)
    yield method, "loss", lambda p, batch: method.loss(c, p, batch)
    yield method, "correction", lambda p, batch: method.correction(c, p, batch)


def _ask_term(c: Any, term: Any, params: Tree, batch: Batch) -> Any:
    return term(c, params, batch, c.forward(params, batch.x, maps=c.maps))


def refuse_unused(c: Context, gradient: LocalGradient, params: Tree, batch: Any, grads: Tree) -> None:
    """A fault where the loss of a step depends on no parameter: all would stay as they are."""
    owner: Any = getattr(gradient, "__self__", None)
    if not hasattr(owner, "criterion") or not isinstance(batch, Batch):
        return
    # a correction moves the parameters whatever the loss is
    hidden = c.round == 1 and overrides(owner, "correction") and not overrides(owner, "gradient")
    moved = not hidden and any(map(_moves, grads.values()))
    if moved or any(map(is_batched, (batch.x, *params.values()))):  # one of the stack's clients also works alone
        return
    leaves = {name: value.detach().clone().requires_grad_(name in c.trainable) for name, value in params.items()}
    wanted = [leaves[name] for name in c.trainable]
    drawn = seeds.layer_stream().get_state()
    with torch.enable_grad(), seeds.preserve_global_generator():  # the step itself must not notice
        value = owner.loss(beside(c), leaves, batch)
    seeds.layer_stream().set_state(drawn)
    found = torch.autograd.grad(value, wanted, allow_unused=True) if value.requires_grad else ()
    if all(grad is None for grad in found):
        raise Fault(owner, find_loss_slot(owner), "must return a loss that depends on the parameters it was given, got "
                    "one that none of them changes")  # fmt: skip


_STEEP = ("has a gradient of NaN or infinite values in the first step of the run, though it is finite itself; keep "
          "roots, logarithms and divisions away from 0")  # fmt: skip


def refuse_spoilt(c: Context, gradient: LocalGradient, params: Tree, batch: Any, grads: Tree) -> None:
    """A fault where somebody's part of the loss spoils the first step of all: no learning rate would help."""
    owner: Any = getattr(gradient, "__self__", None)
    if c.round > 1 or not (isinstance(batch, Batch) and hasattr(owner, "criterion")):
        return
    stacked = any(map(is_batched, params.values()))  # of whose clients one also works alone
    if stacked or all(map(_is_finite, grads.values())):
        return
    drawn = seeds.layer_stream().get_state()
    with seeds.preserve_global_generator():  # the step itself must not notice
        found = _find_spoilt(owner, beside(c), params, batch)
    seeds.layer_stream().set_state(drawn)
    if found is not None and _is_theirs(*found[:2]):
        raise Fault(*found)


def _is_theirs(part: Any, slot: str) -> bool:
    """Whether the function itself is from outside the package: somebody's method may have our criterion."""
    return bool(getattr(type(part), slot).__module__.partition(".")[0] != "unskew")


def _find_spoilt(method: Any, c: Any, params: Tree, batch: Batch) -> tuple[Any, str, str] | None:
    """The first part of a method's loss that is not finite, or has no finite gradient."""
    for part, slot, ask in _list_parts(method, c):
        leaves = {name: value.detach().clone().requires_grad_(name in c.trainable) for name, value in params.items()}
        with torch.enable_grad(), contextlib.suppress(Exception):  # it is asked in another way: once more, alone
            value = ask(leaves, batch)
            if isinstance(value, dict):  # a correction
                if not all(map(_is_finite, value.values())):
                    return part, slot, "gives NaN or infinite values in the first step of the run"
                continue
            if value is None:
                continue
            if not _is_finite(value):
                return part, slot, f"gives {value.item():g} in the first step of the run"
            wanted = [leaves[name] for name in c.trainable]
            made = torch.autograd.grad(value, wanted, allow_unused=True) if value.requires_grad else ()
            if not all(_is_finite(grad) for grad in made if grad is not None):
                return part, slot, _STEEP
    return None


def _is_finite(value: Tensor) -> bool:
    return bool(torch.isfinite(get_unwrapped(value) if is_batched(value) else value).all())


def warn_detached(term: Any, value: Tensor, supervised: Tensor) -> None:
    """Says once that a term adds a number to the loss of which nothing is learnt; a term may be 0 for a while."""
    if _has_graph(supervised) and not _has_graph(value) and _moves(value):
        what = "does not depend on the parameters it was given (detached, or made of numbers)"
        warn_once(log, f"{title(term, '__call__')} {what}, so that nothing is learnt from it")


def _has_graph(value: Tensor) -> bool:
    return (get_unwrapped(value) if is_batched(value) else value).requires_grad


def beside(c: Any) -> Any:
    """The same visit, of which nothing is counted and whose BatchNorm statistics are a copy."""
    beside = c.aside()
    return beside.with_buffers(c.buffers) if hasattr(c, "with_buffers") else beside


def _moves(grad: Tensor) -> bool:
    return bool((get_unwrapped(grad) if is_batched(grad) else grad).any())
