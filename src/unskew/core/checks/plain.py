"""Values as the rows of a run hold them: plain numbers, lists and dictionaries; numpy's numbers become Python's."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from unskew.core.checks.returned import Wrong, describe


def to_plain(given: dict[Any, Any], expected: str, text: bool = False, above: str = "") -> dict[str, Any]:
    """The dictionary in plain values; raises `Wrong` where it holds something else than `expected`."""
    for name in given:
        if not isinstance(name, str):
            raise Wrong(f"whose names must be strings, got the name {name!r}")
    return {name: _read(value, expected, text, f"{above}{name}") for name, value in given.items()}


def _read(value: Any, expected: str, text: bool, name: str) -> Any:
    if isinstance(value, dict):
        return to_plain(value, expected, text, f"{name}.")
    if isinstance(value, (list, tuple)):
        return [_read(item, expected, text, name) for item in value]
    alone = isinstance(value, Tensor) and not value.dim() and not value.is_meta
    plain = value.item() if isinstance(value, np.generic) or alone else value
    if plain is None or isinstance(plain, (int, float)) or (text and isinstance(plain, str)):
        return plain
    raise Wrong(f"in which '{name}' must be a {expected}, got {describe(value)}")
