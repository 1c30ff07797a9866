"""Ctrl-C, SIGTERM and SIGHUP on the command line: what was finished is saved, one line says how to go on.

Imports nothing heavy: the handlers are there before anything takes time. Until a command is at work there is nothing to
save, and a signal ends the process at once; from then on it is a KeyboardInterrupt, whatever signal it was.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

_NAMES = {"SIGINT": "interrupted", "SIGTERM": "terminated (SIGTERM)", "SIGHUP": "hung up (SIGHUP)"}
SAME_EVENT = 0.3
"""Seconds: schedulers and `timeout` send a signal twice, to the process and to its group."""


class _State:
    """What has come so far, and how to go on."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.received_at = 0.0
        self.times = 0
        self.at_work = False
        self.hint: Callable[[], str] = lambda: "nothing was begun"


_state = _State()


def begin_work() -> None:
    """From now on a signal is a KeyboardInterrupt, so that what was done is saved."""
    _state.at_work = True


def end_work() -> None:
    """From now on a signal ends the process at once again: all is written."""
    _state.at_work, _state.hint = False, lambda: "all was done"


def explain_run(folder: Path) -> None:
    """After a signal, names the run's folder."""
    place = folder.absolute()  # a slot may change the current folder

    def hint() -> str:
        if (place / "summary.json").is_file():
            return f"the run was finished, its results are in {folder}"
        if (place / "run.toml").is_file():
            return f"resume the run with 'unskew resume {shlex.quote(str(folder))}'"
        return "no round was begun"

    explain(hint)


def explain(hint: Callable[[], str]) -> None:
    """Says how to go on after a signal: `hint` is called when one has come."""
    _state.hint = hint


def was_received() -> bool:
    """Whether a signal has come, whatever error it led to."""
    return _state.received is not None


def take_interrupt() -> bool:
    """Takes a Ctrl-C as the way to leave a viewer, which is no error; False: another signal came."""
    if _state.received not in (None, signal.SIGINT):
        return False
    _state.received = None
    return True


def exit_code() -> int:
    """128 and the number of the signal, as a shell has it; Ctrl-C where there was none."""
    return 128 + (_state.received or signal.SIGINT)


def describe() -> str:
    """What happened, and how to go on."""
    name = signal.Signals(_state.received or signal.SIGINT).name
    return f"{_NAMES.get(name, name)}; {_state.hint()}"


@contextmanager
def handled(for_good: bool) -> Iterator[None]:
    """Handles the signals, for good or for a while; not those that are ignored (nohup), and not in other threads."""
    global _state
    _state = _State()
    before: dict[int, Any] = {}
    hook = sys.unraisablehook
    if threading.current_thread() is threading.main_thread():
        numbers = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
        before = {number: signal.getsignal(number) for number in numbers}
        before = {number: known for number, known in before.items() if known not in (signal.SIG_IGN, None)}
        sys.unraisablehook = _raise_again
        for number in before:
            signal.signal(number, _handle)
    try:
        yield
    finally:
        end_work()
        if for_good and was_received():
            for number in before:  # the interpreter ends with the default handlers, which would change the exit code
                signal.signal(number, signal.SIG_IGN)
        if not for_good:
            sys.unraisablehook = hook
            for number, known in before.items():
                signal.signal(number, known)


def _handle(number: int, _: FrameType | None) -> None:
    if not _state.at_work:
        if _state.received is not None:  # the line was printed
            os._exit(exit_code())
        _state.received = number
        _end_at_once()
    now = time.monotonic()
    if _state.received is not None and now - _state.received_at < SAME_EVENT:
        return
    _state.times += 1
    if _state.received is None:
        _state.received, _state.received_at = number, now
    if _state.times > 2:
        _end_at_once()
    raise KeyboardInterrupt  # the second one also ends the saving; files appear whole or not at all


def _end_at_once() -> None:
    with suppress(OSError):
        os.write(2, f"error: {describe()}\n".encode())
    os._exit(exit_code())


def _raise_again(unraisable: Any) -> None:
    """A signal in the middle of a destructor or a callback: Python would only print it there, so it is sent again."""
    if _state.received is None or not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
        return
    number, _state.received, _state.times = _state.received, None, _state.times - 1
    os.kill(os.getpid(), number)
