"""Names for everything a user can choose: methods, terms, models, data sources, splits.

A *component* is a frozen, validated dataclass whose fields are its options. The same component can be written
as text (`flfa(fedsol(prox=kl(tau=3), rho=2.0))`), with a colon (`dirichlet:0.1`), or as a table of a TOML file.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import pydantic
from pydantic_core import PydanticUndefined
from typing_extensions import dataclass_transform

from unskew.base.errors import InputError
from unskew.base.text import Table, parse

T = TypeVar("T", bound="Component")
C = TypeVar("C")


def param(
    *,
    default: Any = ...,
    doc: str,
    source: str = "",
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
) -> Any:
    """One option of a component: its default, bounds, meaning, and where the default comes from."""
    return pydantic.Field(default, description=doc, json_schema_extra={"source": source}, ge=ge, gt=gt, le=le, lt=lt)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(param,))
@dataclasses.dataclass(frozen=True)
class Component:
    """Something with a name, options and a text form; registered classes derive from it."""

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""

    def __str__(self) -> str:
        """The shortest text that builds this component again."""
        given = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != default_of(type(self), field.name):
                given.append(f"{field.name}={_text(value)}")
        return f"{self.name}({', '.join(given)})" if given else self.name


def validated(cls: type[C]) -> type[C]:
    """A frozen dataclass that checks its fields: unknown ones, NaN and infinite numbers are errors."""
    config = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)
    made: Any = pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=config)(cls)
    return made  # type: ignore[no-any-return]


class Registry(Generic[T]):
    """The components of one kind, by name."""

    every: ClassVar[list[Registry[Any]]] = []

    def __init__(self, kind: str, base: type[T]) -> None:
        self.kind, self.base = kind, base
        self._classes: dict[str, type[T]] = {}
        Registry.every.append(self)

    def register(self, name: str) -> Callable[[type[C]], type[C]]:
        """Class decorator: makes the class a frozen, validated dataclass and gives it this name."""

        def decorate(cls: type[C]) -> type[C]:
            if name in self._classes:
                raise ValueError(f"{self.kind} '{name}' is registered twice")
            doc = inspect.getdoc(cls) or ""
            made: Any = validated(cls)
            made.name, made.summary = name, doc.split("\n\n")[0].replace("\n", " ")
            self._classes[name] = made
            return made  # type: ignore[no-any-return]

        return decorate

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._classes))

    def get(self, name: str) -> type[T]:
        """The class of that name; an unknown name is an error that lists the nearest ones."""
        if name in self._classes:
            return self._classes[name]
        raise InputError(f"unknown {self.kind} '{name}'; {nearest(name, list(self))}")

    def build(self, spec: str | Mapping[str, Any] | T) -> T:
        """A component from text, a table, or itself."""
        if isinstance(spec, self.base):
            return spec
        if not isinstance(spec, (str, Mapping)):
            raise InputError(f"expected a {self.kind} such as {next(iter(self), '…')}, got {_short(spec)}")
        table = parse(spec) if isinstance(spec, str) else dict(spec)
        if not isinstance(table.get("name"), str):
            raise InputError(f'a {self.kind} needs a name, such as name = "{next(iter(self), "…")}"; got {table}')
        cls = self.get(table.pop("name").lower())
        return construct(cls, self._name_arguments(cls, table))

    def _name_arguments(self, cls: type[T], table: Table) -> Table:
        """Positional arguments get the names of the fields; nested components are built."""
        kinds = component_fields(cls)
        names = [field.name for field in dataclasses.fields(cls)]
        positional: Sequence[Any] = table.pop("args", ())
        # a wrapper's first positional argument is what it wraps; inherited options come last
        order = sorted(names, key=lambda n: (n != "inner", n not in vars(cls).get("__annotations__", {})))
        if len(positional) > len(order):
            raise InputError(
                f"{cls.name} takes at most {len(order)} arguments ({', '.join(order)}), got {len(positional)}"
            )
        for key, value in zip(order, positional, strict=False):
            if key in table:
                raise InputError(f"{cls.name}: argument '{key}' is given twice")
            table[key] = value
        for key in table:
            if key not in names:
                raise InputError(f"{cls.name} has no argument '{key}'; {nearest(key, names)}")
        return {key: _build_nested(kinds.get(key), value) for key, value in table.items()}


def component_fields(cls: type) -> dict[str, Registry[Any]]:
    """Which fields of a component hold other components, and of which kind."""
    found: dict[str, Registry[Any]] = {}
    for key, hint in _hints(cls).items():
        for candidate in (hint, *typing.get_args(hint)):
            for registry in Registry.every:
                if (
                    isinstance(candidate, type)
                    and issubclass(candidate, Component)
                    and issubclass(candidate, registry.base)
                ):
                    found[key] = registry
    return found


def _hints(cls: type) -> dict[str, Any]:
    return {name: info.annotation for name, info in cls.__pydantic_fields__.items()}  # type: ignore[attr-defined]


def _build_nested(registry: Registry[Any] | None, value: Any) -> Any:
    if registry is None or value is None:
        return _plain(value)
    if isinstance(value, (list, tuple)):
        return tuple(registry.build(item) for item in value)
    return registry.build(value)


def _plain(value: Any) -> Any:
    if isinstance(value, dict) and "name" in value and len(value) == 1:
        return value["name"]  # a bare word where no component is expected is a string
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def construct(cls: type[C], values: Table) -> C:
    """The object, or the first validation error as one line."""
    what = getattr(cls, "name", "") or cls.__name__.lower()
    for key, hint in _hints(cls).items():
        if key in values and values[key] is None and "none" in typing.get_args(hint):
            values = {**values, key: "none"}  # text reads the word as nothing; here it is a choice
        # pydantic would read true as 1, and "yes" as true
        if isinstance(values.get(key), bool) and hint in (int, float, int | None, float | None):
            raise InputError(f"{what}.{key}: input should be a number, got {str(values[key]).lower()}")
        if hint is bool and not isinstance(values.get(key, False), bool):
            raise InputError(f"{what}.{key}: input should be true or false, got {_short(values[key])}")
    try:
        return cls(**values)
    except pydantic.ValidationError as error:
        raise InputError(validation_line(what, error)) from None


def validation_line(what: str, error: pydantic.ValidationError) -> str:
    """The first problem pydantic found, as `what.field: message, got value`."""
    first = error.errors()[0]
    where = ".".join([what, *(str(part) for part in first["loc"])])
    message = first["msg"][:1].lower() + first["msg"][1:]
    message = message.removeprefix("value error, ")
    given = first.get("input", PydanticUndefined)
    if first["type"] in ("missing", "missing_argument"):
        return f"{where} is missing; give it a value"
    return f"{where}: {message}" + ("" if isinstance(given, dict) else f", got {_short(given)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def nearest(name: str, known: Sequence[str]) -> str:
    """'did you mean a or b?' for a near miss, else the list of what there is."""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"known: {', '.join(sorted(known))}" if known else "it takes no arguments"


def default_of(cls: type, name: str) -> Any:
    """The default of one field; pydantic's `PydanticUndefined` where it has none."""
    info = cls.__pydantic_fields__[name]  # type: ignore[attr-defined]
    return info.get_default(call_default_factory=True)


def to_table(component: Component) -> Table:
    """Every option of a component, nested ones too, as plain values for TOML or JSON; None is left out."""

    def plain(value: Any) -> Any:
        if isinstance(value, Component):
            return to_table(value)
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value

    values = {field.name: plain(getattr(component, field.name)) for field in dataclasses.fields(component)}
    return {"name": component.name, **{key: value for key, value in values.items() if value is not None}}


@dataclasses.dataclass(frozen=True)
class Option:
    """One option as the command line lists it."""

    name: str
    type: str
    default: str
    bounds: str
    doc: str
    source: str


def options(cls: type) -> list[Option]:
    """Every option of a component: type, default, bounds, meaning and the source of the default."""
    hints = _hints(cls)
    rows = []
    for name, info in cls.__pydantic_fields__.items():  # type: ignore[attr-defined]
        default = info.get_default(call_default_factory=True)
        bounds = [
            f"{sign} {getattr(limit, key):g}"
            for limit in info.metadata
            for key, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
            if getattr(limit, key, None) is not None
        ]
        source = (info.json_schema_extra or {}).get("source", "")
        shown = "required" if default is PydanticUndefined else _text(default)
        rows.append(Option(name, _type_text(hints[name]), shown, ", ".join(bounds), info.description or "", source))
    return rows


def _type_text(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return " | ".join(str(value) for value in typing.get_args(hint))
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return " | ".join("none" if arg is type(None) else _type_text(arg) for arg in typing.get_args(hint))
    if typing.get_origin(hint) in (tuple, list):
        return f"list of {_type_text(typing.get_args(hint)[0])}"
    return getattr(hint, "__name__", str(hint)).lower()


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_text(item) for item in value) + "]"
    return (
        value
        if isinstance(value, str) and value.isidentifier()
        else (repr(value) if isinstance(value, str) else str(value))
    )
