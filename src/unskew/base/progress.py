"""How far long work inside a round has come: whoever does it says so, whoever shows it listens."""

from __future__ import annotations

import time
from collections.abc import Callable

Listener = Callable[[str, int, int], None]
"""Called with what is being done, how many steps of it are done, and how many there are."""

EVERY = 0.5
"""Seconds between two calls of the listener: saying it must cost nothing."""

_listener: Listener | None = None
_last_call = 0.0


def listen(listener: Listener | None) -> None:
    """Calls this listener from now on; None: nobody."""
    global _listener
    _listener = listener


def say(what: str, done: int, total: int) -> None:
    """Calls the listener, not more often than twice a second."""
    global _last_call
    if _listener is None:
        return
    now = time.monotonic()
    if now - _last_call >= EVERY:
        _last_call = now
        _listener(what, done, total)
