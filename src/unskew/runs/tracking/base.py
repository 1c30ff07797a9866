"""A tracker shows runs' curves elsewhere: TensorBoard, MLflow, Weights & Biases, or one of your own.

It is told what a run is, the numbers of each finished round, and the figures at the end. It changes no result and is no
part of a run's hash; if it fails, a line says so and the run goes on.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unskew.base.errors import InputError
from unskew.base.registry import Component, Registry

Row = dict[str, Any]
Numbers = dict[str, float]
"""Name → number; parts of a name are separated by `/`, as in `personal/mean`."""
COUNTED = ("clients", "dropped", "excluded")
"""Lists of clients: what is shown is how many they are."""


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told of a run."""

    name: str
    method: str
    """As text, with its options: runs of one method are a group."""
    seed: int
    options: Mapping[str, Any]
    """All options by their paths, such as `local.lr`."""
    folder: Path | None
    id: str = ""
    """What the tracker called this run before; empty: it is new there."""


class Log:
    """One run in a tracker; `id` is remembered in the run's folder, to go on with it."""

    id: str = ""

    def round(self, number: int, numbers: Numbers) -> None:
        """A finished round; 0 is the initial model."""
        raise NotImplementedError

    def end(self, summary: Numbers | None) -> None:
        """The run is finished with these figures; None: it stopped before and may go on later."""
        raise NotImplementedError


class Tracker(Component):
    """Where runs are shown; its options say where that is."""

    def check(self) -> None:
        """Raises an InputError where it can never work, as without its package; asked before a run begins."""

    def begin(self, run: TrackedRun) -> Log:
        """Begins to show a run, or goes on with the one called `run.id`."""
        raise NotImplementedError


trackers: Registry[Tracker] = Registry("tracker", Tracker)


def need(package: str, extra: str) -> Any:
    """A tracker's own package."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise InputError(
            f"tracker '{extra}' needs the package {package}; install it with: pip install 'unskew[{extra}]'"
        ) from None


def flatten(row: Mapping[str, Any], ahead: str = "") -> Numbers:
    """All finite numbers of a row by their paths; lists of numbers by their positions, lists of clients as counts."""
    return {name: value for name, value in _walk(row, ahead) if math.isfinite(value)}


def _walk(value: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, own in value.items():
            within = f"{path}/{key}" if path else str(key)
            yield from _walk(len(own) if key in COUNTED and isinstance(own, list) else own, within)
    elif isinstance(value, (list, tuple)):
        yield from (found for place, own in enumerate(value) for found in _walk(own, f"{path}/{place}"))
    elif isinstance(value, (int, float)):  # a bool too: 0 or 1
        yield path, float(value)


def list_options(table: Mapping[str, Any], ahead: str = "") -> dict[str, Any]:
    """The options of a run's nested tables by their paths; lists as text."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        path = f"{ahead}.{key}" if ahead else key
        if isinstance(value, Mapping):
            found |= list_options(value, path)
        else:
            found[path] = str(value) if isinstance(value, (list, tuple)) else value
    return found
