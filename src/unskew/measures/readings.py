"""What measures give, as rows hold it: plain numbers; anything else is the measure's fault."""

from __future__ import annotations

from typing import Any

from unskew.core.checks.faults import Fault
from unskew.core.checks.plain import to_plain
from unskew.core.checks.returned import Wrong, describe
from unskew.measures.base import Figures, Measure


def read_figures(measure: Measure, hook: str, given: Any) -> Figures:
    """The figures with numpy's and torch's numbers as Python's."""
    if not isinstance(given, dict):
        raise Fault(measure, hook, f"must return a dict of figures (name → number), got {describe(given)}")
    try:
        return to_plain(given, "number, None, list or dict of such")
    except Wrong as wrong:
        raise Fault(measure, hook, f"gives figures {wrong}") from None
