"""The errors a user meets: bad input, and work that failed while a run was under way."""

from __future__ import annotations

import inspect
import signal
import traceback
from types import CodeType, FrameType
from typing import Any


class Portable(Exception):
    """An error that travels between processes, with all that it says of itself."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Made again without `__init__`, whose arguments are not those of the message."""
        return make_again, (type(self), self.args, dict(vars(self)))


def make_again(kind: type[Exception], arguments: tuple[Any, ...], about: dict[str, Any]) -> Exception:
    """The error of another process, from what it said of itself."""
    made = kind.__new__(kind, *arguments)
    made.args = arguments
    vars(made).update(about)
    return made


class InputError(Portable):
    """Bad input: one line that says what was expected, what came and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class DamagedRun(InputError):
    """What a run's folder holds is not what the run wrote there."""


class DeclarationError(InputError, TypeError):
    """A class that a plugin defines cannot be what it is meant to be."""


class SlotError(Portable):
    """Something failed in a run: which method (or term, measure …) in which slot, of which client, in which round."""

    def __init__(
        self, message: str, *, method: str = "", slot: str = "", client: int | None = None, round: int = 0,
        details: str = "", spoilt: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(" ".join(message.split()))
        self.method, self.slot, self.client, self.round = method, slot, client, round
        self.details = details
        """The traceback's text."""
        self.spoilt = spoilt
        """Whether values that the run continues from may have been changed in place."""
        self.folder = ""
        """The run's folder, which can be resumed."""


class ClientError(SlotError):
    """A client's work failed: says which client in which round, and keeps the traceback's text.

    Client -1 is nobody: the test of the global model.
    """

    def __init__(self, client: int, round_: int, what: str, details: str = "", **about: Any) -> None:
        line = f"{name_worker(client)} failed {when(round_)}: {what}"
        super().__init__(line, client=client, round=round_, details=details, **about)


def when(round_: int) -> str:
    """The round in words."""
    return f"in round {round_}" if round_ else "before the first round"


def name_worker(client: int) -> str:
    """Whose work it was."""
    return f"client {client}" if client >= 0 else "the test of the global model"


def one_line(error: BaseException) -> str:
    """The error's text on one line; its type where it has no text."""
    try:
        text = str(error)
    except Exception:  # a class that cannot say what it is
        text = ""
    return " ".join(text.split()) or type(error).__name__


def let_pass(error: Exception) -> None:
    """Raises what a signal's handler raised once more: its TimeoutError is an OSError, too, but not the system's.

    The system's have a number.
    """
    if is_from_signal(error) or (isinstance(error, OSError) and error.errno is None):
        raise error


def is_from_signal(error: BaseException) -> bool:
    """Whether a signal's handler raised it: it is meant for the program, wherever the code was interrupted.

    A handler is given the frame that it interrupts, which is the one before it in the traceback.
    """
    handlers = {code for number in signal.valid_signals() if (code := _code_of(signal.getsignal(number))) is not None}
    before: FrameType | None = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code in handlers or (before is not None and _is_given(frame, before)):
            return True
        before = frame
    return False


def _code_of(handler: Any) -> CodeType | None:
    handler = getattr(handler, "func", handler)  # a partial
    own = handler if hasattr(handler, "__code__") or not callable(handler) else type(handler).__call__
    code = getattr(own, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _is_given(frame: FrameType, other: FrameType) -> bool:
    about = inspect.getargvalues(frame)
    values = [about.locals.get(name) for name in about.args]
    more = about.locals.get(about.varargs, ()) if about.varargs else ()
    return any(value is other for value in (*values, *(more if isinstance(more, tuple) else ())))
