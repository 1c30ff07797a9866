"""Keeps the values of the user's modules around calls of unskew's, so that what a run changes is no setting."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from unskew.base.process import renew_in_forked
from unskew.base.user_code.files import list_modules, read
from unskew.base.user_code.values import Source, list_values, read_source

_values: dict[str, _Values] = {}
"""By module: what it holds that its file does not say."""
_calls: set[object] = set()
_turn = 0
"""Counts the times that a call began while no other was under way."""
_counting = threading.RLock()


def _begin_forked() -> None:
    """No call of its parent's goes on in a forked process."""
    global _calls, _counting
    _calls, _counting = set(), threading.RLock()


renew_in_forked(_begin_forked)


@contextlib.contextmanager
def keep_values() -> Iterator[None]:
    """A call of unskew's: what it changes in the user's modules is no setting of theirs.

    Modules that were part of a run before are looked at around every call, any other once, when it is first seen: in a
    process with hundreds of modules, looking at all of them took longer than small runs.
    """
    global _turn
    own = object()
    with _counting:
        if not _calls:
            _turn += 1
            _visit_used(_Values.begin)
            for module in list_modules():  # before any code of theirs runs
                if not _is_known(module):
                    _meet(module, begin=True)
        _calls.add(own)
    try:
        yield
    finally:
        with _counting:
            _calls.discard(own)
            if not _calls:
                for module in list_modules():
                    if not _is_known(module):  # code of theirs loaded it
                        _meet(module).used = True
                _visit_used(lambda known, module: setattr(known, "after", known.look(module)))


def list_settings(module: ModuleType, begin: bool = False) -> dict[str, Any]:
    """A module's values as they were before the call of unskew's that is under way.

    Those of a module that code of the user's loaded only then are what its file makes of them: nobody has set any.
    """
    with _counting:
        known = _values[module.__name__] if _is_known(module) else _meet(module, begin)
        if not known.used:
            known.used = True
            if known.met != _turn:
                known.before = known.look(module)  # it may have been set since it was met
        return known.before


def _is_known(module: ModuleType) -> bool:
    return module.__name__ in _values and _values[module.__name__].spec is module.__spec__


def _meet(module: ModuleType, begin: bool = False) -> _Values:
    path = Path(str(module.__file__)).resolve()
    source = read_source(read(path) or b"" if path.suffix == ".py" else b"")
    known = _values[module.__name__] = _Values(module.__spec__, source, _turn)
    known.before = known.look(module) if begin else {}
    return known


@dataclasses.dataclass
class _Values:
    """What a module holds beyond what its file said when it was first looked at."""

    spec: Any
    source: Source
    met: int
    """The turn in which it was first looked at."""
    used: bool = False
    """Whether a run asked for it, or loaded it."""
    before: dict[str, Any] = dataclasses.field(default_factory=dict)
    """When a call of unskew's began; what calls before it changed themselves is undone here."""
    after: dict[str, Any] = dataclasses.field(default_factory=dict)
    """When the last call ended."""

    def look(self, module: ModuleType) -> dict[str, Any]:
        return list_values(module, self.source)

    def begin(self, module: ModuleType) -> None:
        now, gone = self.look(module), object()
        as_left = {name for name in {*now, *self.before} if now.get(name, gone) == self.after.get(name, gone)}
        undone = {name: said for name, said in self.before.items() if name in as_left}
        self.before = undone | {name: said for name, said in now.items() if name not in as_left}


def _visit_used(ask: Callable[[_Values, ModuleType], None]) -> None:
    for name, known in list(_values.items()):
        module = sys.modules.get(name)
        if not isinstance(module, ModuleType) or known.spec is not module.__spec__:
            del _values[name]
        elif known.used:
            ask(known, module)
