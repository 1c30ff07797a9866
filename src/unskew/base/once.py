"""Warnings that are said once in a process, however many runs, cells or steps they are true of."""

from __future__ import annotations

import functools
import logging

ONCE = "said_once"
"""Marks such a record, for who hands records on from another process."""


@functools.lru_cache(maxsize=256)
def warn_once(log: logging.Logger, text: str) -> None:
    """Warns, if this was not said before."""
    log.warning(text, extra={ONCE: True})
