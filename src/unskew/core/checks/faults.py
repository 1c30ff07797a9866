"""From an exception in somebody's code to one line: which method (or term, measure …), which slot, which file and line.

Who was at work is read from the traceback when something has failed; a run without faults pays nothing for it.
"""

from __future__ import annotations

import contextlib
import os
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from unskew.base.errors import ClientError, InputError, Portable, SlotError, is_from_signal, one_line, when
from unskew.base.registry import Component, Registry
from unskew.core.observer import Callback, Observer
from unskew.core.reducers import Reducer

CAUGHT = (Exception, SystemExit)
"""What a slot may raise: a plugin that calls sys.exit is a fault like any other."""
_PACKAGE = str(Path(__file__).parents[2]) + os.sep
_INSTALLED = (sysconfig.get_path("stdlib") + os.sep, sysconfig.get_path("purelib") + os.sep)


class Fault(Portable):
    """Somebody's function broke its contract: what was expected and what came. No `part`: the slot that was at work.

    `final`: it need not show itself again where clients work one by one.
    """

    def __init__(self, part: Any, slot: str, what: str, final: bool = False) -> None:
        super().__init__(what if part is None else f"{title(part, slot)} {what}")
        self.part, self.slot, self.what, self.final = part, slot, what, final


class Raised(Exception):
    """What somebody's function raised that is no `Exception`: GeneratorExit, or a class of its own."""

    @classmethod
    def instead_of(cls, error: BaseException) -> Raised:
        """The same as an exception; Ctrl-C stays what it is."""
        if isinstance(error, KeyboardInterrupt):
            raise error
        return cls(f"{type(error).__name__}: {one_line(error)}").with_traceback(error.__traceback__)


class Found(NamedTuple):
    """What is known about an error; plain values, which travel between processes."""

    what: str
    method: str
    slot: str
    details: str
    spoilt: bool
    foreign: bool = False
    """Whether a class from outside the package was at work."""


def explain(error: BaseException) -> Found:
    """The error as one line, and who was at work."""
    details = "".join(traceback.format_exception(error))
    spoilt = is_spoilt(error)
    frames = list(traceback.walk_tb(error.__traceback__))
    part, slot = _find_part(frames)
    if isinstance(error, Fault):
        nobody = error.part is None and part is None
        text = one_line(error) if error.part is not None or nobody else f"{title(part, slot)} {one_line(error)}"
        part, slot = (part, slot) if error.part is None else (error.part, error.slot)
        name, foreign = ("", False) if nobody else (name_of(part), _is_outside(part))
        return Found(f"{text}{_definition(part, slot)}", name, slot, details, spoilt, foreign)
    where = f", in {title(part, slot)}" if part is not None else ""
    text = one_line(error) if isinstance(error, Raised) else f"{type(error).__name__}: {one_line(error)}"
    what = f"{text}{where}{_find_line(frames)}"
    foreign = part is not None and _is_outside(part)
    return Found(what, name_of(part) if part is not None else "", slot, details, spoilt, foreign)


def is_raised_outside(error: BaseException) -> bool:
    """Whether the line that raised it is not the package's, nor that of a signal's handler."""
    frames = list(traceback.walk_tb(error.__traceback__))
    ours = not frames or frames[-1][0].f_code.co_filename.startswith(_PACKAGE)
    return not (ours or is_from_signal(error))


def is_meant_for_program(error: BaseException) -> bool:
    """Whether the program is to get it as it is: what its signal handler raised, sys.exit in its `watch`."""
    if is_from_signal(error):
        return True
    part, _ = _find_part(list(traceback.walk_tb(error.__traceback__)))
    return isinstance(error, SystemExit) and isinstance(part, Callback)


def mark_spoilt(error: BaseException, fault: Fault) -> None:
    """Notes that values which the run continues from were changed in place before this error, and by whom."""
    if find_spoiler(error) is None:  # the innermost knows best
        with contextlib.suppress(AttributeError, TypeError):
            error.unskew_spoilt = error if isinstance(error, Fault) else fault  # type: ignore[attr-defined]


def is_spoilt(error: BaseException) -> bool:
    """Whether that was noted."""
    return find_spoiler(error) is not None or (isinstance(error, SlotError) and error.spoilt)


def find_spoiler(error: BaseException) -> Fault | None:
    """Who changed them."""
    found = getattr(error, "unskew_spoilt", None)
    return found if isinstance(found, Fault) else None


def client_error(error: BaseException, client: int, round_: int) -> ClientError:
    """The error of a client's work."""
    found = explain(error)
    about = {"method": found.method, "slot": found.slot, "spoilt": found.spoilt}
    return ClientError(client, round_, found.what, found.details, **about)


def server_error(error: BaseException, round_: int, client: int | None = None, who: str = "the server") -> SlotError:
    """The error of what the server, an observer or a measure did; `client`: for whom."""
    found = explain(error)
    whom = "" if client is None else f" for client {client}"
    return SlotError(
        f"{who} failed {when(round_)}{whom}: {found.what}", method=found.method, slot=found.slot, client=client,
        round=round_, details=found.details, spoilt=found.spoilt,
    )  # fmt: skip


@contextlib.contextmanager
def naming(round_: int, who: str = "the server", foreign: bool = False) -> Iterator[None]:
    """Makes one line of what fails in a method, reducer, measure, observer or wire processor; other errors stay.

    `foreign`: only where its class is from outside the package.
    """
    try:
        yield
    except (InputError, SlotError, BrokenPipeError):
        raise
    except BaseException as raised:
        error = raised if isinstance(raised, CAUGHT) else Raised.instead_of(raised)
        found = explain(error)
        if not found.method or (foreign and not found.foreign) or is_meant_for_program(error):
            raise
        raise server_error(error, round_, who=who) from error


def blame_own_code(error: BaseException) -> SlotError | None:
    """One line for what code from outside raised when the package called it; None: it is the package's own, or meant
    for the program. The last net: what is asked in rounds is named where it is asked."""
    if isinstance(error, (InputError, SlotError, BrokenPipeError)) or not isinstance(error, CAUGHT):
        return None
    frames = list(traceback.walk_tb(error.__traceback__))
    files = [frame.f_code.co_filename for frame, _ in frames]
    ours = next((place for place, file in enumerate(files) if file.startswith(_PACKAGE)), len(files))
    called = any(not file.startswith((*_INSTALLED, _PACKAGE, "<")) for file in files[ours:])
    if not called or is_meant_for_program(error):
        return None
    found = explain(error)
    return SlotError(
        f"your own code failed: {found.what}", method=found.method, slot=found.slot, details=found.details,
        spoilt=found.spoilt,
    )  # fmt: skip


@contextlib.contextmanager
def naming_own_code() -> Iterator[None]:
    """Makes one line of what code from outside raises when the package calls it."""
    try:
        yield
    except BaseException as error:
        if (found := blame_own_code(error)) is not None:
            raise found from error
        raise


# ----------------------------------------------------------------------------------------- whose code it is


def name_of(part: Any) -> str:
    """A component's name, or its class's."""
    return getattr(part, "name", "") or type(part).__name__


def title(part: Any, slot: str) -> str:
    """`mine.upload`, `term mine`, `measure mine.figures`, `observer Mine.finished`."""
    kind = next((registry.kind for registry in Registry.every if isinstance(part, registry.base)), "")
    if not kind:
        kind = "reducer" if isinstance(part, Reducer) else "observer" if isinstance(part, Observer) else ""
    whole = name_of(part) if slot == "__call__" else f"{name_of(part)}.{slot}"
    return whole if kind in ("", "method") else f"{kind} {whole}"


def _is_outside(part: Any) -> bool:
    return not type(part).__module__.startswith("unskew.")


def _find_part(frames: list[tuple[FrameType, int]]) -> tuple[Any, str]:
    """The innermost slot or hook that was at work, and whose it is."""
    for frame, _ in reversed(frames):
        part, name = frame.f_locals.get("self"), frame.f_code.co_name
        if isinstance(part, (Component, Observer, Reducer)) and _is_hook(part, name):
            return part, name
    return None, ""


def _is_hook(part: Any, name: str) -> bool:
    """Whether the package calls it: a function that some class of the package has under this name, too."""
    if name.startswith("_") and name not in ("__call__", "__init__"):
        return False
    bases = [kind for kind in type(part).__mro__ if kind.__module__.startswith("unskew.")]
    return any(name in vars(kind) for kind in bases)


def _find_line(frames: list[tuple[FrameType, int]]) -> str:
    """The innermost line of a user's file; where there is none, the innermost of the package."""
    for ours in (False, True):
        for frame, line in reversed(frames):
            file = frame.f_code.co_filename
            if not file.startswith((*_INSTALLED, "<")) and file.startswith(_PACKAGE) is ours:
                return f" ({_short_path(file)}, line {line})"
    return ""


def _definition(part: Any, slot: str) -> str:
    """Where a slot is defined."""
    code = getattr(getattr(type(part), slot, None), "__code__", None)
    if code is None or code.co_filename.startswith(_PACKAGE):
        return ""
    return f" ({_short_path(code.co_filename)}, line {code.co_firstlineno})"


def _short_path(file: str) -> str:
    """From the current folder, if it is below it."""
    short = os.path.relpath(file)
    return file if short.startswith("..") else short
