"""Calls of somebody's functions beside a method's slots: observers, reducers, wire processors.

Each is looked at while it runs: it changes nothing that it was given, and draws from no generator that nobody seeds.
Parts of the package itself are called as they are.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from torch import Tensor
from typing_extensions import Unpack

from unskew.base import seeds, tree
from unskew.base.errors import InputError
from unskew.base.process import keep_torch_modes
from unskew.base.registry import Component
from unskew.base.torch_private import current_level, get_unwrapped, is_batched
from unskew.base.tree import Tree
from unskew.core.checks.faults import CAUGHT, Fault, Raised, find_spoiler, is_raised_outside, mark_spoilt
from unskew.core.checks.guard import Guard

if TYPE_CHECKING:
    from unskew.base.batch import Batch, Output
    from unskew.core.context import ClientContext, Context, ServerContext
    from unskew.core.jobs import Reply
    from unskew.core.net import Forward, Mode, PassOptions
    from unskew.core.observer import Observer
    from unskew.core.reducers import Reducer

CHANGES = "changes {} in place; let it return new values instead (CONTRIBUTING.md, State)"
LOOKS = "changes {} in place; it may only look: let it change a copy (CONTRIBUTING.md, State)"
DRAWS = "draws from the global generator of {}, so that no run could be repeated; draw from {}"
AT_CLIENT = "c.rng(purpose), or c.draw(purpose, make)"
AT_SERVER = "s.rng(purpose)"
BEFORE = ("init", "remodel")
"""Slots that run before the rounds: there a method may refuse options or data that do not fit (`InputError`)."""


def is_foreign(parts: Iterable[object]) -> bool:
    """Whether any of these is made of code from outside the package."""
    return any(_is_outside(type(part).__module__) for part in parts)


@lru_cache(maxsize=1024)
def _is_outside(module: str) -> bool:
    return module.partition(".")[0] not in ("unskew", "torch")


def call_watched(
    part: Any,
    slot: str,
    function: Callable[..., Any],
    given: tuple[Any, ...],
    guard: Guard,
    stream: str,
    says: str = CHANGES,
    hint: str = "",
) -> Any:
    """What a function of `part` gives; a fault if it changed anything that the guard holds, or drew from elsewhere.

    `stream`: where it should draw from; `says`: what a change is called; `hint`: who else may have drawn.
    """
    try:
        with keep_torch_modes():
            value = function(*given)
    except CAUGHT as error:
        if (changed := guard.find_change()) is not None:
            mark_spoilt(error, Fault(part, slot, says.format(changed)))
        if isinstance(error, InputError) and slot not in BEFORE and is_raised_outside(error):
            raised = Raised.instead_of(error)  # what goes wrong in a round is no input
            if (fault := find_spoiler(error)) is not None:
                mark_spoilt(raised, fault)
            raise raised from error
        raise
    except BaseException as error:
        raise Raised.instead_of(error) from error
    if (changed := guard.find_change()) is not None:
        fault = Fault(part, slot, says.format(changed))
        mark_spoilt(fault, fault)
        raise fault
    if (threads := guard.find_threads()) is not None:
        what = f"{hint}sets the number of torch's threads ({threads}), on which rounding depends"
        raise Fault(part, slot, f"{what}; leave it to the run: --set execution.threads=2", final=True)
    if (whose := guard.find_draw()) is not None:
        raise Fault(part, slot, f"{hint}{DRAWS.format(whose, stream)}", final=True)
    return value


def hold_visit(guard: Guard, c: ClientContext) -> None:
    """Holds what the slots of a visit are given."""
    given = {"c.message": c.message, "c.state": c.state, "c.initial": c.initial, "c.received": c.received,
             "c.previous": c.previous, "c.made": c.made}  # fmt: skip
    for what, made in given.items():
        guard.hold(what, made)
    guard.hold_tensors({"c.counts": c.counts})
    source = getattr(getattr(c.data, "stack", c.data), "source", None)
    if source is not None:
        guard.hold_tensors({"the data set's inputs": source.x, "the data set's labels": source.y}, huge=True)
    guard.hold_fields("c.settings", c.settings)


# ---------------------------------------------------------------------------------------------------- observers


def show(observer: Observer, hook: str, c: Context, *given: Any) -> None:
    """Lets an observer look: at parameters, a batch, the direction of a step. It changes none of it."""
    function = getattr(observer, hook)
    if c.foreign_model:
        given = (tree.copy(given[0]), *given[1:])
    if not c.guarded:
        function(c, *given)
        return
    c.diagnostics.noting = observer, hook
    try:
        if _is_outside(type(observer).__module__):
            _show_watched(observer, hook, function, c, given)
        else:
            function(c, *given)
    finally:
        c.diagnostics.noting = None


def _show_watched(observer: Observer, hook: str, function: Any, c: Context, given: tuple[Any, ...]) -> None:
    kind: Any = type(observer)
    if not _has(kind, hook):
        return
    closely = c.closely and (hook == "trained" or c.diagnostics.steps == 1)
    given = (tree.copy(given[0]), *given[1:])  # it may remember them, and the loop's own change with the next step
    parts = [observer] if isinstance(observer, Component) else []  # a plain observer may remember what it saw
    guard = Guard(closely, parts, streams=hook == "trained")  # else `train` is watched as a whole
    for what, value in zip(_SHOWN[hook], given, strict=True):
        if what == "batch":
            hold_batch(guard, value)
        else:
            guard.hold(what, value)
    if closely or hook == "trained":
        hold_visit(guard, c)  # type: ignore[arg-type]
    looking = c.with_fields(forward=_only_look(c.forward))
    with _undisturbed(c):
        call_watched(observer, hook, function, (looking, *given), guard, AT_CLIENT, LOOKS)


def _only_look(forward: Forward) -> Forward:
    """The passes of an observer: those of training are made without dropout, and leave BatchNorm's statistics alone."""

    def look(params: Tree, x: Tensor, mode: Mode = "train", **options: Unpack[PassOptions]) -> Output:
        return forward(params, x, "eval_batch" if mode in ("train", "batch") else mode, **options)

    return look


@contextmanager
def _undisturbed(c: Context) -> Iterator[None]:
    """Puts back what an observer's passes and draws may move: statistics of layers, what layers draw from."""
    buffers: Tree = getattr(c, "buffers", {})
    before = {name: (_version(value), value.clone()) for name, value in buffers.items()}
    # in a stack a draw stays to be seen: what it gave is no client's own
    with seeds.preserve_global_generator() if current_level() is None else nullcontext():
        yield
    for name, (version, value) in before.items():
        if _version(buffers[name]) != version:
            buffers[name].copy_(value)


def _version(value: Tensor) -> int:
    return (get_unwrapped(value) if is_batched(value) else value)._version


@lru_cache(maxsize=256)
def _has(kind: type, hook: str) -> bool:
    """Whether an observer's class has a hook of its own."""
    return not getattr(kind, hook).__module__.startswith("unskew.")


_SHOWN = {"before_step": ("params", "batch"), "step": ("params", "batch", "grads"), "trained": ("params",)}


def hold_batch(guard: Guard, batch: Batch) -> None:
    """Holds a batch's tensors."""
    guard.hold_tensors({f"batch.{name}": value for name, value in batch._asdict().items()})


# ----------------------------------------------------------------------------------------------------- reducers


def make_reducer(how: Any, s: ServerContext) -> Reducer:
    """A reducer of the round; somebody's leaves its class as it is."""
    kind: type = getattr(how, "func", how)
    guard = Guard(streams=False) if _is_outside(kind.__module__) else None
    if guard is not None:
        guard.hold_class(kind)
        guard.hold("s.initial", s.initial)
    made: Reducer = how(s)
    if guard is not None and (changed := guard.find_change()) is not None:
        raise Fault(made, "__init__", CHANGES.format(changed))
    return made


class WatchedReducer:
    """A reducer of somebody's: neither what it takes in nor the reply is changed, in this call or a later one."""

    def __init__(self, reducer: Reducer, deep: bool, seed: Callable[[int], None]) -> None:
        self._reducer, self._deep, self._seed = reducer, deep, seed
        self._first: Guard | None = None
        """Holds what came first, into which a sum is made where it is not made in a copy."""
        self._given: list[tuple[weakref.ref[Tensor], int, str]] = []
        """What came later and how often it had been changed; what nobody has any more cannot be."""

    def add(self, value: Tree, reply: Reply) -> None:
        """Takes in one client's tree."""
        self._seed(reply.client)
        guard = self._guard()
        guard.hold("value", value)
        guard.hold("reply.groups", reply.groups)
        self._call("add", self._reducer.add, (value, reply), guard)
        self._remember(value, f" of client {reply.client}")

    def _guard(self) -> Guard:
        guard = Guard(self._deep)
        guard.hold_class(type(self._reducer))
        return guard

    def _call(self, slot: str, function: Callable[..., Any], given: tuple[Any, ...], guard: Guard) -> Any:
        found = call_watched(self._reducer, slot, function, given, guard, AT_SERVER)
        if self._first is not None and (changed := self._first.find_change()) is not None:
            self._refuse(slot, changed)
        return found

    def _remember(self, value: Tree, whose: str) -> None:
        """From now on the tensors of a reply that was taken in are watched, too."""
        if self._first is None:
            self._first = Guard(self._deep, streams=False)
            self._first.hold_tensors({f'value["{name}"]{whose}': tensor for name, tensor in value.items()})
            return
        for name, tensor in value.items():
            self._given.append((weakref.ref(tensor), tensor._version, f'value["{name}"]{whose}'))

    def _refuse(self, slot: str, changed: str) -> None:
        fault = Fault(self._reducer, slot, CHANGES.format(changed))
        mark_spoilt(fault, fault)
        raise fault

    def add_stack(self, value: Tree, replies: Sequence[Reply]) -> None:
        """Takes in the trees of many clients at once; one after the other where its class only says how to add one."""
        stack = replies[0].stack
        assert stack is not None
        if not _adds_stacks(type(self._reducer)):
            for place, reply in enumerate(replies):
                own = {name: tensor[place] for name, tensor in value.items()}
                self.add(own, reply._replace(groups=stack.take(reply.place)))
            return
        self._seed(replies[0].client)
        guard = self._guard()
        guard.hold("value", value)
        guard.hold("reply.stack.groups", stack.groups)
        self._call("add_stack", self._reducer.add_stack, (value, replies), guard)
        self._remember(value, f" of clients {replies[0].client} to {replies[-1].client}")

    def result(self) -> Any:
        """The merged value."""
        self._seed(-1)
        self._look_back("add")
        guard = Guard()
        guard.hold_class(type(self._reducer))
        found = self._call("result", self._reducer.result, (), guard)
        self._look_back("result")
        return found

    def _look_back(self, slot: str) -> None:
        for given, version, what in self._given:
            if (tensor := given()) is not None and tensor._version != version:
                self._refuse(slot, what)


def _adds_stacks(kind: type) -> bool:
    """Whether a reducer's `add_stack` belongs to its `add`: a subclass may have changed the latter alone."""
    adds = next(base for base in kind.__mro__ if "add" in vars(base) or "add_stack" in vars(base))
    return "add_stack" in vars(adds) and adds.__name__ != "Reducer"
