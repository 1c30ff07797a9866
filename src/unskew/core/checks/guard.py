"""Notices that somebody's function changed what it was given, where executors would differ in what comes of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from unskew.base import seeds
from unskew.base.torch_private import get_unwrapped, is_batched
from unskew.base.tree import Groups, Tree
from unskew.core.checks.faults import name_of


class Guard:
    """Tensors as they were given: the same ones in the same dictionaries, not written to since.

    Torch counts changes in place, but not those through `.data` or numpy; with `deep` contents are compared, too.
    `parts`: components whose fields must stay as they are; without `streams`, generators are somebody else's to watch.
    """

    def __init__(self, deep: bool = False, parts: Iterable[object] = (), streams: bool = True) -> None:
        self._entries: list[tuple[Mapping[str, object], str, Tensor, Tensor, int, str]] = []
        """Where a tensor is, its name, itself, what is below it (it may hold many clients' values), its version."""
        self._groups: list[tuple[Mapping[str, object], str, object, str]] = []
        self._dicts: list[tuple[Mapping[str, object], int, str]] = []
        self._parts = [(part, _read_options(part), name_of(part)) for part in parts]
        self._classes = [(kind, _read_class(kind)) for kind in {type(part): None for part, *_ in self._parts}]
        self._copies: dict[int, Tensor] | None = {} if deep else None
        self._streams = seeds.read_unseeded_streams() if streams else None
        self._threads = torch.get_num_threads()

    @property
    def is_deep(self) -> bool:
        """Whether contents are compared."""
        return self._copies is not None

    def hold(self, what: str, made: Tree | Groups) -> None:
        """Remembers a tree or groups; `what` they are called by who gets them."""
        self._dicts.append((made, len(made), what))
        for name, value in made.items():
            if isinstance(value, Tensor):
                self._hold(made, name, value, f'{what}["{name}"]')
            else:
                self._groups.append((made, name, value, f'{what}["{name}"]'))
                self.hold(f'{what}["{name}"]', value)

    def hold_tensors(self, tensors: Mapping[str, Tensor | None], huge: bool = False) -> None:
        """Remembers single tensors by what they are called; the contents of `huge` ones are not compared."""
        for what, value in tensors.items():
            if value is not None:
                self._hold({"": value}, "", value, what, huge)

    def hold_fields(self, what: str, part: object) -> None:
        """Remembers the fields of an object."""
        self._parts.append((part, _read_options(part), what))

    def hold_class(self, kind: type) -> None:
        """Remembers what a class from outside the package holds, where its objects may change as they like."""
        self._classes.append((kind, _read_class(kind)))

    def _hold(self, where: Mapping[str, object], name: str, value: Tensor, what: str, huge: bool = False) -> None:
        below = get_unwrapped(value) if is_batched(value) else value
        self._entries.append((where, name, value, below, below._version, what))
        if self._copies is not None and id(below) not in self._copies and not huge:
            self._copies[id(below)] = below.detach().clone()

    def find_change(self) -> str | None:
        """What was changed first, by all its names; None if nothing was."""
        for place, name, group, what in self._groups:
            if place.get(name) is not group:
                return what
        for place, name, value, below, version, _ in self._entries:
            if place.get(name) is not value:
                return _join(told for held, own, *_, told in self._entries if held is place and own == name)
            if below._version != version:
                return self._list_names(below)
        for held, size, what in self._dicts:
            if len(held) != size:
                return what
        for part, before, what in self._parts:
            if (option := _find_option(part, before)) is not None:
                return f"{what}.{option}"
        for kind, attributes in self._classes:
            if (attribute := _find_class_change(kind, attributes)) is not None:
                return attribute
        return None if self._copies is None else self._compare(self._copies)

    def _compare(self, copies: dict[int, Tensor]) -> str | None:
        for below in {id(below): below for _, _, _, below, _, _ in self._entries}.values():
            if id(below) in copies and not _same(below.detach(), copies[id(below)]):
                return self._list_names(below)
        return None

    def _list_names(self, changed: Tensor) -> str:
        """All names of a tensor: in the first round the message, say, is the initial model itself."""
        return _join(what for *_, below, _, what in self._entries if below is changed)

    def find_threads(self) -> int | None:
        """How many threads torch was told to use since; None: as many as before, which is restored."""
        now = torch.get_num_threads()
        if now == self._threads:
            return None
        torch.set_num_threads(self._threads)
        return now

    def find_draw(self) -> str | None:
        """Whose global generator was drawn from or seeded, numpy's or Python's, which nobody else does."""
        if self._streams is None:
            return None
        now = seeds.read_unseeded_streams()
        return next((whose for whose, state in now.items() if state != self._streams[whose]), None)


def _join(names: Iterable[str]) -> str:
    return " and ".join(dict.fromkeys(names))


def _read_options(part: object) -> dict[str, Any]:
    """A component's options; what can be changed in place as a copy."""
    return {name: _copy(value) for name, value in vars(part).items()}


def _read_class(kind: type) -> dict[tuple[type, str], Any]:
    """What classes from outside the package hold beside functions: the same in every visit, or executors differ."""
    return {
        (base, name): _copy(value)
        for base in kind.__mro__
        if base.__module__.partition(".")[0] not in ("unskew", "torch", "builtins", "abc", "typing")
        for name, value in vars(base).items()
        if not name.startswith("__") and not callable(value) and not hasattr(value, "__get__")
    }


def _find_class_change(kind: type, before: dict[tuple[type, str], Any]) -> str | None:
    now = _read_class(kind)
    changed = [key for key, value in now.items() if key not in before or not _is_same(value, before[key])]
    every = [*changed, *(before.keys() - now.keys())]
    return next((f"{base.__name__}.{name} (of the class)" for base, name in every), None)


def _copy(value: Any) -> Any:
    return type(value)(value) if type(value) in (list, dict, set) else value


def _is_same(one: Any, other: Any) -> bool:
    """The same object, or a collection of the same ones."""
    if one is other:
        return True
    if type(one) is not type(other) or type(one) not in (list, dict, set) or len(one) != len(other):
        return False
    if isinstance(one, dict):
        return all(name in other and own is other[name] for name, own in one.items())
    return one == other if isinstance(one, set) else all(a is b for a, b in zip(one, other, strict=True))


def _find_option(part: object, before: dict[str, Any]) -> str | None:
    """Which of them changed; what a `cached_property` adds is no change."""
    now = vars(part)
    for name, value in before.items():
        if name not in now:
            return name
        kept = now[name]
        if kept is not value and not (type(kept) in (list, dict, set) and kept == value):
            return name
    added = now.keys() - before.keys()
    return next((name for name in sorted(added) if not _is_cached(type(part), name)), None)


def _is_cached(kind: type, name: str) -> bool:
    return isinstance(next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None), cached_property)


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())  # a NaN equals nothing
