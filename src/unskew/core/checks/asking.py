"""How slots are called: what a slot of the method's own returns is checked, and that it changed nothing it was given.

The defaults are known to keep to both, so FedAvg pays nothing for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from unskew.base.errors import InputError, SlotError, is_from_signal
from unskew.base.tree import Groups, Tree
from unskew.core.checks.faults import CAUGHT, Fault, server_error
from unskew.core.checks.guard import Guard
from unskew.core.checks.handing import READERS, refuse_left_out
from unskew.core.checks.returned import CHECKS, Asked, Wrong
from unskew.core.checks.watching import AT_CLIENT, AT_SERVER, CHANGES, call_watched, hold_visit, is_foreign
from unskew.core.context import ClientContext, ServerContext
from unskew.core.slots import owner_of
from unskew.core.wrapper import walk_nested

if TYPE_CHECKING:
    from unskew.core.jobs import Reply
    from unskew.core.task import Task


Slots = Any
"""A method, or `Guarded` in its place."""


def take_slots(task: Task, kind: str) -> Slots:
    """The slots of one visit; `kind`: of the job, and which part of it."""
    return Guarded(task, kind) if task.guarded_slots else task.method


def hold(slots: Slots, what: str, made: Tree | Groups) -> None:
    """What earlier slots of the visit made is not to be changed by later ones."""
    if isinstance(slots, Guarded):
        slots.guard_also(what, made)


class Guarded:
    """The slots of a method in one visit: `guarded.upload(c, params)`."""

    def __init__(self, task: Task, kind: str) -> None:
        self._task, self._kind = task, kind
        self._guard: Guard | None = None
        self._made: list[tuple[str, Any]] = []

    def __getattr__(self, slot: str) -> Any:
        return partial(self._ask, slot) if slot in self._task.guarded_slots else getattr(self._task.method, slot)

    def _ask(self, slot: str, c: ClientContext, *args: Any) -> Any:
        task = self._task
        guard = self._guard or self._hold(c)
        if slot == "predict":
            return self._ask_for_scores(c, *args)
        value = _call(task, slot, getattr(task.method, slot), (c, *args), guard)
        found = _check(task, slot, Asked(task.method, task.own_slots, c, {}), value, *args[1:])
        _compare_with_inner(task, slot, (c, *args), found)
        return found

    def _ask_for_scores(self, c: ClientContext, params: Tree, x: Tensor) -> Any:
        """Scores of a batch, which may be a part of the user's own data set: the slot gets a copy."""
        assert self._guard is not None
        task, given = self._task, x.clone()
        beside = Guard(self._guard.is_deep, streams=False)
        beside.hold_tensors({"x": given})
        value = _call(task, "predict", task.method.predict, (c, params, given), self._guard)
        if (changed := beside.find_change()) is not None:
            raise Fault(owner_of(task.method, "predict"), "predict", CHANGES.format(changed))
        return _check(task, "predict", Asked(task.method, task.own_slots, c, {}), value, x)

    def guard_also(self, what: str, made: Any) -> None:
        """Holds a tree or groups, too."""
        if self._guard is None:
            self._made.append((what, made))
        else:
            self._guard.hold(what, made)

    def _hold(self, c: ClientContext) -> Guard:
        """The visit's tensors as they are now; the first visit of a kind in a process is looked at closely."""
        deep = self._task.is_first(f"{self._kind} {type(c).__name__}")
        self._guard = guard = Guard(deep, self._task.watched_parts)
        hold_visit(guard, c)
        for what, made in self._made:
            guard.hold(what, made)
        return guard


def ask_server(
    task: Task, slot: str, s: ServerContext, server: Groups | None = None, *args: Any, client: int | None = None
) -> Any:
    """What a slot of the server gives; whatever goes wrong in it is one line."""
    given = (s, *args) if server is None else (s, server, *args)
    try:
        function = getattr(task.method, slot)
        if slot not in task.guarded_slots:
            return function(*given)
        guard = Guard(task.is_first(slot), task.watched_parts)
        guard.hold("server", server or {})
        guard.hold("s.initial", s.initial)
        guard.hold_fields("s.settings", s.settings)
        s.per_client.watch(guard.hold)
        value = _call(task, slot, function, given, guard)
        found = _check(task, slot, Asked(task.method, task.own_slots, s, server or {}), value)
        _compare_with_inner(task, slot, given, found)
        return found
    except (InputError, SlotError):
        raise
    except CAUGHT as error:
        if is_from_signal(error):
            raise
        raise server_error(error, s.round, client) from error


def ask_weigh(task: Task, s: ServerContext, replies: Sequence[Reply]) -> Any:
    """What a method's own rule says of the round's replies, which it only reads."""
    guard = Guard(task.is_first("weigh"), task.watched_parts)
    for reply in replies:
        if isinstance(reply.groups, dict):  # not those that wait on disk
            guard.hold(f"the reply of client {reply.client}", reply.groups)
    guard.hold("s.initial", s.initial)
    guard.hold_fields("s.settings", s.settings)
    s.per_client.watch(guard.hold)
    try:
        return _call(task, "weigh", task.method.weigh, (s, tuple(replies)), guard)
    except InputError:
        raise
    except CAUGHT as error:
        if is_from_signal(error):
            raise
        raise server_error(error, s.round) from error


def _call(task: Task, slot: str, function: Any, given: tuple[Any, ...], guard: Guard) -> Any:
    part, name = _find_suspect(task, slot)
    stream = AT_CLIENT if isinstance(given[0], ClientContext) else AT_SERVER
    hint = "(or the model that it asks) " if task.has_foreign_model else ""
    return call_watched(part, name, function, given, guard, stream, hint=hint)


def _find_suspect(task: Task, slot: str) -> tuple[Any, str]:
    """Whose code it is that a slot runs: a default of the package's own `train` calls a term or an observer."""
    owner = owner_of(task.method, slot)
    if is_foreign([owner]):
        return owner, slot
    divisions = [method.division for method in walk_nested(task.method)]
    if slot != "train" and is_foreign(divisions):  # which the package's own slots ask what travels
        return next(own for own in divisions if is_foreign([own])), "shared"
    if slot != "train":
        return owner, slot
    beside: list[tuple[Any, str]] = [(term, "__call__") for term in task.method.used_terms()]
    beside += [(observer, "step") for observer in task.client_observers]
    return next(((part, name) for part, name in beside if is_foreign([part])), (owner, slot))


def _check(task: Task, slot: str, asked: Asked, value: Any, *more: Any) -> Any:
    try:
        return CHECKS[slot](asked, value, *more)
    except Wrong as wrong:
        raise Fault(owner_of(task.method, slot), slot, str(wrong)) from None


def _compare_with_inner(task: Task, slot: str, given: tuple[Any, ...], found: Any) -> None:
    """Looks for what a user's wrapper left out; of what clients keep in every visit, as nothing would ever miss it."""
    if slot == "keep" or (slot in READERS and task.is_first(f"hand on {slot}")):
        refuse_left_out(task.method, slot, given, found)


USABLE = "0 or from 1e-30 to 1e30"
"""Weights whose products with single-precision numbers neither vanish nor overflow."""


def is_usable_weight(weight: float) -> bool:
    """Whether means can be taken with it."""
    return weight == 0 or 1e-30 <= weight <= 1e30


def refuse_unusable(task: Task, weights: list[float]) -> None:
    """Such weights are a fault of the slot; NaN is a matter of divergence, and a rule of the round may judge all."""
    for weight in weights:
        if not is_usable_weight(weight) and math.isfinite(weight) and not task.weighs_at_the_end:
            what = "a number that is not below 0" if weight < 0 else f"a number that is {USABLE}"
            raise Fault(owner_of(task.method, "weight"), "weight", f"must return {what}, got {weight:g}")


def refuse_unused_terms(task: Task, c: ClientContext) -> None:
    """A fault where somebody's method trained without looking at the terms that the user gave."""
    given = ", ".join(map(str, task.given_terms))
    for method in walk_nested(task.method):
        own = [slot for slot in ("loss", "gradient", "train") if _is_own(method, slot)]
        if own and (c.diagnostics.steps or (own[-1] == "train" and c.longest)):
            raise Fault(method, own[0], f"does not use the terms it was given ({given}), so that they change nothing; "
                        "add those of c.terms to the loss, as Method.loss does, or leave them out")  # fmt: skip


def _is_own(method: Any, slot: str) -> bool:
    return not getattr(type(method), slot).__module__.startswith("unskew.")
