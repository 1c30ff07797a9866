"""A forked process by hand: `multiprocessing` allows none inside its own workers, where users run many runs, and waits
at the end of the program for those it has ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator

ENDING = {getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)}
"""Signals that are the parent's to handle, also where they are sent to the whole group."""


class Forked:
    """The parent's view of a process that calls a function and ends."""

    def __init__(self, work: Callable[[], None]) -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()  # or what waits there would be printed twice
        with _hold_back_signals(), warnings.catch_warnings():
            # forking beside threads is unsafe for locks; a process with one thread enters no parallel region
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
            if not self.pid:
                _be_a_worker(work)
        self.exitcode: int | None = None
        """None: it is alive, or nobody has looked; below 0: the signal that ended it."""

    def join(self, seconds: float | None = None) -> None:
        """Waits for its end, so long at most."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while self.exitcode is None:
            try:
                found, status = os.waitpid(self.pid, 0 if deadline is None else os.WNOHANG)
            except ChildProcessError:  # somebody else has waited for it
                self.exitcode = 1
                return
            if found:
                self.exitcode = os.waitstatus_to_exitcode(status)
            elif deadline is not None and time.monotonic() >= deadline:
                return
            else:
                time.sleep(0.005)

    def kill(self) -> None:
        """Ends it at once."""
        self.send(signal.SIGKILL)

    def send(self, number: int) -> None:
        """Sends it a signal."""
        if self.exitcode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    @property
    def death(self) -> str:
        """How it ended, in words."""
        signals = {-one.value: f"signal {one.name}" for one in signal.Signals}
        how = signals.get(self.exitcode or 0, f"exit code {self.exitcode}")
        return how + (" (out of memory?)" if self.exitcode == -signal.SIGKILL else "")


def die_with(parent: int) -> None:
    """For a forked process: on Linux the kernel ends it when its parent was killed, even in the middle of long work."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)  # it was killed before the kernel was asked


@contextlib.contextmanager
def _hold_back_signals() -> Iterator[None]:
    """A signal between fork and the child's first line would be handled there as the parent does."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _be_a_worker(work: Callable[[], None]) -> None:
    try:
        _ignore_signals()
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _ignore_signals() -> None:
    """Nothing of the parent's handlers runs here, and what a scheduler sends to all does not end a worker."""
    signal.set_wakeup_fd(-1)
    handled = {number for number in signal.valid_signals() if callable(signal.getsignal(number))}
    for number in (handled | ENDING) - {getattr(signal, "SIGCHLD", None)}:
        signal.signal(number, signal.SIG_IGN)
    if callable(signal.getsignal(signal.SIGCHLD)):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
