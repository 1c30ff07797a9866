"""Static figures of runs, for papers and notebooks: accuracy or a recorded measure over rounds, bytes or seconds."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, get_args

from unskew.base.display import X
from unskew.base.errors import InputError
from unskew.report.curves import Curve, Curves, Look, collect_panels, draw_panels
from unskew.report.layout import Picture

Row = Mapping[str, Any]

WIDTHS = {"column": 8.4, "full": 17.4}
"""Of a paper's column and page, in centimetres."""
NARROWEST, WIDEST = 5.0, 60.0
ALWAYS = ("train_loss", "loss", "validation", "lr")
"""What rows hold beside measures and can be drawn, too."""


class Played(NamedTuple):
    """A run to draw."""

    method: str
    output: str
    """Which model is the method's product."""
    rows: Sequence[Row]


def read_width(text: str) -> float:
    """A width in centimetres: `column`, `full`, or a number such as `12` or `12cm`."""
    if text in WIDTHS:
        return WIDTHS[text]
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:cm)?", text.strip())
    if not found or not NARROWEST <= float(found[1]) <= WIDEST:
        raise InputError(
            f"--width expects column, full, or centimetres from {NARROWEST:g} to {WIDEST:g}, such as 12; got '{text}'"
        )
    return float(found[1])


def draw_runs(
    runs: Sequence[Played], *, measure: str | None = None, x: X = "rounds", width: str | float | None = None,
    title: str = "",
) -> Picture:  # fmt: skip
    """The runs in one figure; those of one method are seeds of one line.

    `measure` names a recorded measure to draw instead of accuracy, `x` what it is drawn over. With a `width` it is made
    for a paper: letters of 8 points, names alone in the legend.
    """
    if x not in get_args(X):
        raise InputError(f"--x is one of {', '.join(get_args(X))}, got '{x}'")
    panels = collect_panels(runs) if measure is None else {"": _collect_measure(runs, measure)}
    if not any(panels.values()):
        raise InputError("nothing to draw: no round was tested yet")
    places, label = _find_positions(runs, x)
    given = None if width is None else read_width(str(width))
    look = Look(x=label, positions=places)
    if given is not None:
        look = replace(look, width=given, values=False)
    if measure is not None:
        look = replace(look, y=measure.replace("_", " "), percent=False)
    return draw_panels(panels, title, look)


def list_measures(runs: Sequence[Played]) -> list[str]:
    """What can be drawn of these runs beside accuracy."""
    found = [name for run in runs for row in run.rows for name, _ in _flatten(row.get("measures", {}))]
    always = [name for name in ALWAYS if any(_is_number(row.get(name)) for run in runs for row in run.rows)]
    return list(dict.fromkeys([*found, *always]))


def _collect_measure(runs: Sequence[Played], name: str) -> Curves:
    curves: dict[str, list[Curve]] = {}
    for run in runs:
        values = [
            (row["round"], dict(_flatten(row.get("measures", {}))).get(name, row.get(name) if name in ALWAYS else None))
            for row in run.rows
        ]
        curve = [(number, float(value)) for number, value in values if value is not None and _is_number(value)]
        if curve:
            curves.setdefault(run.method, []).append(curve)
    if not curves:
        known = list_measures(runs)
        raise InputError(f"no run recorded '{name}'; " + (f"recorded: {', '.join(known)}" if known else "nothing else"))
    return curves


def _flatten(value: Any, name: str = "") -> Iterable[tuple[str, float]]:
    """The numbers of a measure by their names; those inside others with a dot: `per_layer.head`."""
    if isinstance(value, Mapping):
        for key, own in value.items():
            yield from _flatten(own, f"{name}.{key}" if name else str(key))
    elif _is_number(value):
        yield name, float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


UNITS = {
    "bytes": (("sent (GB)", 1e9), ("sent (MB)", 1e6), ("sent (kB)", 1e3), ("sent (bytes)", 1.0)),
    "seconds": (("training (hours)", 3600.0), ("training (minutes)", 60.0), ("training (seconds)", 1.0)),
}


def _find_positions(runs: Sequence[Played], x: X) -> tuple[dict[str, dict[int, float]] | None, str]:
    """Where each method's rounds stand, the mean over its seeds, and what the axis says."""
    if x == "rounds":
        return None, "round"
    sums: dict[str, dict[int, list[float]]] = {}
    for run in runs:
        total = 0.0
        for row in run.rows:
            total += _cost(row, x)
            sums.setdefault(run.method, {}).setdefault(row["round"], []).append(total)
    places = {method: {n: sum(all_) / len(all_) for n, all_ in own.items()} for method, own in sums.items()}
    most = max((place for own in places.values() for place in own.values()), default=0.0)
    label, unit = next((each for each in UNITS[x] if most >= 2 * each[1]), UNITS[x][-1])
    return {method: {n: place / unit for n, place in own.items()} for method, own in places.items()}, label


def _cost(row: Row, x: X) -> float:
    """What a round sent, down and up, or how long its training took: without tests and measures."""
    if x == "bytes":
        return float(row.get("bytes_down", 0) + row.get("bytes_up", 0))
    seconds = row.get("seconds", {})
    return float(seconds.get("local", 0.0) + seconds.get("aggregate", 0.0))
