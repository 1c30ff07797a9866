"""How far long work inside a round has come: whoever does it says so, whoever shows it listens."""

from __future__ import annotations

import time
from collections.abc import Callable

Listener = Callable[[str, int, int], None]
"""Is told what is being done, how many steps of it are done, and how many there are."""

EVERY = 0.5
"""Seconds between two tellings: saying it must cost nothing."""

_listener: Listener | None = None
_told = 0.0


def listen(listener: Listener | None) -> None:
    """From now on this one is told; None: nobody."""
    global _listener
    _listener = listener


def say(what: str, done: int, total: int) -> None:
    """Tells whoever listens, not more often than twice a second."""
    global _told
    if _listener is None:
        return
    now = time.monotonic()
    if now - _told >= EVERY:
        _told = now
        _listener(what, done, total)
