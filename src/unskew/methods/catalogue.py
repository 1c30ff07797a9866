"""What is known of every method without running one: its family, what it sends and keeps, what it costs.

`facts.json` holds what was seen when each method was played on two tiny clients: `python -m benchmarks.facts` writes
it, tests/runs/test_trial.py keeps it fresh. `costs.json` holds what `python -m benchmarks.methods --out` measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic_core import PydanticUndefined

from unskew.base.registry import construct, default_of
from unskew.core.method import Method, methods
from unskew.core.wrapper import Wrapper
from unskew.methods.condensation import Condensing
from unskew.methods.fedavg import FedAvg

Family = Literal["global", "personal", "wrappers", "condensing"]
FAMILIES: dict[Family, str] = {
    "global": "one global model",
    "personal": "a model for each client",
    "wrappers": "around another method",
    "condensing": "condensed data instead of models",
}
FACTS, COSTS = (Path(__file__).with_name(name) for name in ("facts.json", "costs.json"))


def family_of(kind: type[Method]) -> Family:
    """Where a method belongs: by its class, and by the model that it gives."""
    if issubclass(kind, Wrapper):
        return "wrappers"
    if issubclass(kind, Condensing):
        return "condensing"
    return "global" if output_of(kind) == "global" else "personal"


def output_of(kind: type[Method]) -> str:
    """Which model a method gives with its defaults, a wrapper around FedAvg; `global` where that cannot be known."""
    if isinstance(kind.output, str):
        return kind.output
    try:
        return at_defaults(kind.name).output
    except Exception:  # a plugin that needs arguments
        return "global"


def by_family() -> dict[Family, list[str]]:
    """All registered methods, FedAvg first in its family."""
    found: dict[Family, list[str]] = {family: [] for family in FAMILIES}
    for name in sorted(methods, key=lambda name: (name != "fedavg", name)):
        found[family_of(methods.get(name))].append(name)
    return found


def at_defaults(name: str) -> Method:
    """The method with all its defaults; a wrapper that has none for what is inside it gets FedAvg."""
    kind = methods.get(name)
    bare = issubclass(kind, Wrapper) and default_of(kind, "inner") is PydanticUndefined
    return construct(kind, {"inner": FedAvg()} if bare else {})


def put_around(wrapper: str, inner: Method) -> Method:
    """The wrapper with its defaults around a method."""
    return construct(methods.get(wrapper), {"inner": inner})


# ------------------------------------------------------------------------------------------- small budgets

_COUNTS = ("epochs", "steps", "server_epochs", "server_steps", "iterations", "server_iterations")
"""Names of options that say how often something is repeated in one visit or round."""


def shorten(method: Method, *, above: int, to: int, condensing: Mapping[str, Any] | None = None) -> Method:
    """The method with `to` repetitions where its default, the paper's, has more than `above`; else the method itself.

    `condensing`: other values for methods that condense data, whose defaults take hours.
    """
    kind = type(method)
    values = {field: getattr(method, field) for field in kind.__pydantic_fields__}  # type: ignore[attr-defined]
    changed = {name: to for name in _COUNTS if isinstance(values.get(name), int) and values[name] > above}
    if isinstance(method, Condensing):
        changed |= condensing or {}
    return construct(kind, {**values, **changed}) if changed else method


# ---------------------------------------------------------------------------------------- the written files


@lru_cache(maxsize=1)
def read_facts() -> dict[str, dict[str, Any]]:
    """What each method of the package sends and keeps, and what goes around it; empty where the file is missing."""
    return _read(FACTS)


@lru_cache(maxsize=1)
def read_costs() -> dict[str, dict[str, Any]]:
    """The measured cost of each method at the client: `ratio` to FedAvg, `quartiles`, and `as` what it was measured."""
    return _read(COSTS)


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        found: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["methods"]
    except FileNotFoundError:
        return {}
    return found


def is_ours(name: str) -> bool:
    """Whether a method is the package's own, not a plugin's."""
    return methods.get(name).__module__.startswith("unskew.")


# ------------------------------------------------------------------------------------------------ in words


SMALL = 0.005
_MODEL = ("model", "delta")


def say_parts(parts: Mapping[str, float], least: float = 0.0) -> str:
    """`1 + control 1`: groups in multiples of the model's bytes; the model itself goes without its name.

    Parts below `least` are left out.
    """
    ordered = sorted(parts.items(), key=lambda part: part[0] not in _MODEL)
    return " + ".join(_say_part(group, share) for group, share in ordered if share >= least) or "0"


def _say_part(group: str, share: float) -> str:
    text = "<0.01" if 0 < share < SMALL else f"{share:.2f}".rstrip("0").rstrip(".")
    return text if group in _MODEL else f"{group} {text}"


def say_facts(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(what, how much) of all that a method sends and keeps, in words; nothing of what is not worth a word."""
    yield "↓", say_parts(facts["down"], SMALL)
    yield "↑", say_parts(facts["up"], SMALL)
    for key, word in (("once", "once"), ("client", "client keeps"), ("server", "server keeps")):
        if any(share >= SMALL for share in facts[key].values()):
            yield word, say_parts(facts[key], SMALL)


def say_inside(inside: Sequence[str]) -> str:
    """Which wrappers take a method, by those that do not where these are fewer."""
    every = [name for name in by_family()["wrappers"] if is_ours(name) or name in inside]
    missing = [name for name in every if name not in inside]
    if not inside:
        return "no wrapper"
    if len(missing) < len(inside):
        return "any wrapper" + (f" but {', '.join(missing)}" if missing else "")
    return ", ".join(inside)


def say_cost(name: str, brief: bool = False) -> str:
    """The measured ratio to FedAvg; `-` where there is none."""
    found = read_costs().get(name)
    if found is None:
        return "-"
    how = "" if "as" not in found else " with a small budget" if brief else f" as {found['as']}"
    return f"{found['ratio']:.2f}×{how}"
