"""JSON as every reader takes it."""

from __future__ import annotations

import json
import math
from typing import Any


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON that every reader takes: NaN and infinities, which it has no word for, become null."""
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
