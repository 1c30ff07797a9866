"""What rows and summaries look like, so that a file which somebody edited is told from one that a run wrote."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

LAST = 1 << 31
"""Above the number of any round."""
SUMMARY = {"method", "data", "rounds", "accuracy", "personal", "loss", "bytes_up", "bytes_down", "seconds", "diverged"}
"""What every summary.json holds, at least."""


def parse(text: bytes | str) -> Any:
    """JSON, or None where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def is_row(found: Any, *keys: str) -> bool:
    """Whether this is a row about a round, or with `client` among the keys about a client's visit to one."""
    return (
        isinstance(found, dict)
        and all(_is_count(found.get(key)) for key in keys)
        and all(fits(found[key]) for key, fits in (_OF_CLIENT if "client" in keys else _KINDS).items() if key in found)
    )


def is_summary(found: Any) -> bool:
    """Whether these are the figures of a finished run."""
    return (
        isinstance(found, dict) and found.keys() >= SUMMARY and isinstance(found["accuracy"], dict)
        and all(map(_is_number, found["accuracy"].values())) and _are_numbers(found["seconds"])
        and "clients" in found["seconds"] and _is_personal(found["personal"])
        and all(_is_count(found[key]) for key in ("rounds", "bytes_up", "bytes_down"))
    )  # fmt: skip


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    """A finite number, or null, as what is not finite is written."""
    return value is None or (
        isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300 and math.isfinite(value)
    )


def _are_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(v is not None and _is_number(v) for v in value.values())


def _is_personal(value: Any) -> bool:
    known = ("clients_tested", "pooled", "mean", "std", "worst_decile", "worst")
    return value is None or (isinstance(value, dict) and all(_is_number(value.get(key)) for key in known))


def _is_table(value: Any) -> bool:
    return value is None or isinstance(value, dict)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _are_shares(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(map(_is_number, value)))


_OF_CLIENT: dict[str, Callable[[Any], bool]] = {
    "round": lambda value: _is_count(value) and value < LAST,
    **dict.fromkeys(("accuracy", "loss", "share", "samples", "fisher_alpha", "seconds"), _is_number),
}  # fmt: skip
_KINDS: dict[str, Callable[[Any], bool]] = {
    "round": lambda value: _is_count(value) and value < LAST,
    **dict.fromkeys(("accuracy", "loss", "train_loss", "validation", "lr"), _is_number),
    "seconds": _are_numbers, "personal": _is_personal, "class_accuracy": _are_shares,
    **dict.fromkeys(("bytes_up", "bytes_down"), _is_count),
    **dict.fromkeys(("clients", "dropped", "excluded"), _is_list),
    **dict.fromkeys(("faults", "measures", "method"), _is_table), "diverged": lambda value: isinstance(value, bool),
}  # fmt: skip
