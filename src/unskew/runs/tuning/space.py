"""What may be varied: axes such as `lr=0.01,0.1` of all methods, and `fedprox.mu=0.1,1`, one method's own option."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from unskew.base.errors import InputError
from unskew.base.text import split_list
from unskew.core.method import Method, methods
from unskew.runs.config import FLAGS, SECTIONS, Run, from_table, override, read_assignment, suggest

Setting = dict[str, Any]
"""Values by the axes' names."""
SAME = (
    "method", "data", "split", "split_seed", "pool_test", "clients", "rounds", "seed", "evaluation", "execution",
    "measure", "plugins", "code", "code_changes", "begun_in",
)  # fmt: skip
"""What all methods have in common: it says what is compared, not how a method trains."""
_RANGE = re.compile(r"(log|uniform|int)\(([^,()]+),([^,()]+)\)")


@dataclass(frozen=True)
class Axis:
    """One option and the values to try: a list, or a range from `low` to `high`."""

    name: str
    """As it was given: `lr`, `fedprox.mu`."""
    path: str
    """Where a run has it."""
    method: str = ""
    """Whose own it is; empty: of all methods."""
    values: tuple[Any, ...] = ()
    kind: str = ""
    """Of a range: log, uniform or int."""
    low: float = 0.0
    high: float = 0.0

    def draw(self, rng: random.Random) -> Any:
        """A value of the range, or one of the list."""
        if not self.kind:
            return rng.choice(self.values)
        if self.kind == "int":
            return rng.randint(int(self.low), int(self.high))
        if self.kind == "log":
            return float(f"{self.low * (self.high / self.low) ** rng.random():.4g}")
        return float(f"{rng.uniform(self.low, self.high):.4g}")

    def find_border(self, value: Any) -> str:
        """`smallest` or `largest` where a number is the first or last of its list; else nothing."""
        numbers = sorted(set(self.values)) if all(_is_number(each) for each in self.values) else []
        if len(numbers) < 2 or value not in (numbers[0], numbers[-1]):
            return ""
        return "smallest" if value == numbers[0] else "largest"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def read_grid(given: Any, wanted: Sequence[Method]) -> list[Axis]:
    """Axes from texts such as `lr=0.01,0.1`, or from a table of lists, as Python has it."""
    if isinstance(given, Mapping):
        pairs = [(str(key), _read_values(str(key), values)) for key, values in given.items()]
    else:
        listed = [given] if isinstance(given, str) else given
        if not isinstance(listed, (list, tuple)) or not all(isinstance(each, str) for each in listed):
            raise InputError(f'--grid expects texts such as "lr=0.01,0.1", or a table of lists, got {given!r}')
        pairs = [_split(text) for text in listed]
    if not pairs:
        raise InputError('--grid names nothing to tune; give some values, such as --grid "lr=0.01,0.03,0.1"')
    axes = [_make_axis(key, values, wanted) for key, values in pairs]
    for number, axis in enumerate(axes):
        if (axis.path, axis.method) in {(other.path, other.method) for other in axes[:number]}:
            raise InputError(f"--grid names {axis.name} twice; give all its values in one")
    return axes


def _split(text: str) -> tuple[str, list[Any]]:
    key, equals, values = text.partition("=")
    if not equals or not key.strip() or not split_list(values):
        raise InputError(f'--grid expects KEY=VALUE,VALUE such as "lr=0.01,0.1", got "{text}"')
    return key.strip(), [
        value if _RANGE.fullmatch(value.replace(" ", "")) else read_assignment(f"x={value}")[1]
        for value in split_list(values)
    ]


def _read_values(key: str, given: Any) -> list[Any]:
    if isinstance(given, str):
        return _split(f"{key}={given}")[1]
    if not isinstance(given, (list, tuple)) or not given:
        raise InputError(f'--grid {key}: expected a list of values, or a range such as "log(0.001, 1)", got {given!r}')
    if any(isinstance(value, (np.ndarray, Tensor)) and value.ndim for value in given):
        raise InputError(f"--grid {key}: expected a list of values, got a list of arrays; use .tolist()")
    return list(given)


def _make_axis(key: str, values: list[Any], wanted: Sequence[Method]) -> Axis:
    method, path = _find_place(key, wanted)
    if len(values) == 1 and isinstance(values[0], str) and (found := _RANGE.fullmatch(values[0].replace(" ", ""))):
        return _make_range(key, path, method, *found.groups())
    if any(values.count(value) > 1 for value in values):
        raise InputError(f"--grid {key}: a value is named twice; give each once")
    return Axis(key, path, method, tuple(values))


def _make_range(key: str, path: str, method: str, kind: str, low: str, high: str) -> Axis:
    try:
        made = Axis(key, path, method, kind=kind, low=float(low), high=float(high))
    except ValueError:
        made = Axis(key, path, method)
    if not made.low < made.high or (kind == "log" and made.low <= 0):
        raise InputError(f"--grid {key}: expected a range such as log(0.001, 1), got {kind}({low}, {high})")
    return made


def _find_place(key: str, wanted: Sequence[Method]) -> tuple[str, str]:
    """The method whose own option it is, if any, and the option's path in a run."""
    first, _, rest = key.partition(".")
    names = [method.name for method in wanted]
    path = FLAGS.get(key, key)
    own = path.partition(".")[0] in {field.name for field in dataclasses.fields(Run)}
    if rest and first in methods and not own:
        if names.count(first) != 1:
            how = "not among --methods" if first not in names else "named more than once in --methods"
            raise InputError(f"--grid {key}: {first} is {how}; it is for the option of one method")
        return first, f"method.{rest}"
    if path.partition(".")[0] in SAME:
        hint = "; for a method's own option write such as fedprox.mu=0.1,1" if path.startswith("method") else ""
        raise InputError(f"--grid {key}: '{path}' says what is compared and is the same for all methods{hint}")
    if not own:
        raise InputError(f"--grid {key}: there is no option '{key}'; {suggest(key, FLAGS)}")
    return "", path


def apply(run: Run, setting: Mapping[str, Any], axes: Sequence[Axis]) -> Run:
    """The run with these values; the error of one that does not fit names its axis."""
    for axis in axes:
        key = axis.path.partition(".")[0]
        inside = getattr(run, key)
        try:
            given = {} if inside is None else {key: dict(vars(inside)) if key in SECTIONS else inside}
            table = override(given, axis.path, setting[axis.name])
            known = {name: value for name, value in vars(run).items() if value is not None}  # None: left to a rule
            run = from_table({**known, **table}, fresh=False)
        except InputError as error:
            raise InputError(f"--grid {axis.name}={setting[axis.name]}: {error}") from None
    return run


def describe(setting: Mapping[str, Any]) -> str:
    """`lr=0.1, fedprox.mu=1`."""
    return ", ".join(f"{name}={value}" for name, value in setting.items()) or "as given"
