"""What a user's wrapper must hand on: groups that the method inside it makes, and reads again in a later slot."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from unskew.base import seeds
from unskew.base.tree import Groups
from unskew.core.checks.faults import Fault
from unskew.core.checks.steps import beside
from unskew.core.context import Context, ServerContext
from unskew.core.wrapper import Wrapper, walk_nested

if TYPE_CHECKING:
    from unskew.core.method import Method

READERS: dict[str, tuple[str, ...]] = {
    "init": ("download", "update"),
    "download": ("prepare", "brief"),
    "upload": ("update",),
    "keep": (),
}
"""Slots whose groups are handed on, and where a wrapper that has one of its own may have put them back together."""


def refuse_left_out(method: Method, slot: str, given: tuple[Any, ...], made: Groups) -> None:
    """A fault where a user's wrapper leaves out a group that the method inside it makes."""
    for wrapper in walk_nested(method):
        if not isinstance(wrapper, Wrapper) or not _is_own(wrapper, slot):
            continue
        if any(_is_own(wrapper, reader) for reader in READERS[slot]) or (slot == "upload" and _merges(wrapper)):
            continue
        missing = sorted(name for name in _ask_inner(wrapper, slot, given) if not _has(made, name))
        if missing:
            inner = wrapper.inner.name
            what = f"leaves out what {inner}.{slot} gives ('{missing[0]}'); hand on self.inner.{slot}(…)"
            raise Fault(wrapper, slot, what)


def _is_own(wrapper: Wrapper, slot: str) -> bool:
    return not getattr(type(wrapper), slot).__module__.startswith("unskew.")


def _merges(wrapper: Wrapper) -> bool:
    """Whether it says itself what is merged."""
    return type(wrapper).reducers is not Wrapper.reducers


def _has(made: Groups, name: str) -> bool:
    """Whether the group is there, or under a longer name from which the wrapper takes it again."""
    return any(group == name or group.endswith(f"/{name}") for group in made)


def _ask_inner(wrapper: Wrapper, slot: str, given: tuple[Any, ...]) -> Groups:
    """What the method inside gives alone; nothing counts or draws twice."""
    context: Context = given[0]
    aside = context.read_only().with_fields(record={}) if isinstance(context, ServerContext) else beside(context)
    found: Groups = {}
    with seeds.preserve_global_generator(), contextlib.suppress(Exception):  # whose own fault it is
        found = getattr(wrapper.inner, slot)(aside, *given[1:])
    return {name: own for name, own in found.items() if own}
