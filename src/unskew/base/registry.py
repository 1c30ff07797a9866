"""Names for everything a user can choose: methods, terms, models, data sources, splits.

A *component* is a frozen, validated dataclass whose fields are its options. The same component can be written
as text (`flfa(fedsol(prox=kl(tau=3), rho=2.0))`), with a colon (`dirichlet:0.1`), or as a table of a TOML file.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import pydantic
import pydantic_core
from pydantic_core import PydanticUndefined
from typing_extensions import dataclass_transform

from unskew.base.errors import DeclarationError, InputError, one_line
from unskew.base.naming import check_hooks, is_class_var
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

    def __init_subclass__(cls) -> None:
        """Refuses names that are nearly those of hooks."""
        check_hooks(cls)
        check_options(cls)

    def __str__(self) -> str:
        """The shortest text that builds this component again."""
        given = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != default_of(type(self), field.name):
                given.append(f"{field.name}={_text(value)}")
        return f"{self.name}({', '.join(given)})" if given else self.name

    def code_used(self) -> tuple[Any, ...]:
        """Modules, classes and functions whose code it uses and which are not its own class: the user's, say."""
        return ()


def validated(cls: type[C]) -> type[C]:
    """A frozen dataclass that checks its fields: unknown ones, NaN and infinite numbers are errors in one line."""
    theirs = not cls.__module__.startswith("unskew.")  # defaults of the package's own are known to be right
    if theirs and "__dataclass_fields__" in vars(cls):
        raise InputError(f"{cls.__qualname__} is a dataclass already; leave @dataclass out: registering makes it one")
    config = pydantic.ConfigDict(
        extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False, validate_default=theirs
    )
    made: Any = pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=config)(cls)
    if theirs:
        _check_names(made)
        _check_defaults(made)
    make = _watched(made.__init__) if theirs and hasattr(cls, "__post_init__") else made.__init__
    made.__init__ = _in_one_line(make)
    return made  # type: ignore[no-any-return]


def _check_names(cls: Any) -> None:
    """Refuses annotations with names that the file does not have: of these pydantic can make no option."""
    try:
        pydantic.dataclasses.rebuild_dataclass(cls)  # does nothing where all is known
    except pydantic.errors.PydanticUndefinedAnnotation as error:
        texts = {name: text for base in cls.__mro__ for name, text in vars(base).get("__annotations__", {}).items()}
        field = next((name for name, text in texts.items() if re.search(rf"\b{error.name}\b", str(text))), "")
        raise DeclarationError(
            f"{cls.__name__}.{field}: its annotation ({texts.get(field)}) has the unknown name '{error.name}'; "
            "import it"
        ) from None


def _watched(make: Callable[..., None]) -> Callable[..., None]:
    """An `__init__` whose `__post_init__` may neither draw nor give options that would be changed once more: they alone
    say what a component is, and a run file holds them as they are in the end."""

    @functools.wraps(make)
    def __init__(self: Any, *args: Any, **values: Any) -> None:
        from unskew.base import seeds  # torch, which lists of components do without

        with seeds.find_draws() as drawn:
            make(self, *args, **values)
        if drawn:
            raise InputError(
                f"{name_of(type(self))}.__post_init__ draws from the global generator of {drawn[0]}, so that no run "
                "could be repeated; let an option say what is drawn"
            )
        options = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        make(again := object.__new__(type(self)), **options)
        for name, value in options.items():
            if (other := getattr(again, name)) != value:
                raise InputError(
                    f"{name_of(type(self))}.__post_init__ changes {name} each time, to {value!r} and then to "
                    f"{other!r}, so that its run file would be another run; let it leave options as they are"
                )

    return __init__


def _in_one_line(make: Callable[..., None]) -> Callable[..., None]:
    """An `__init__` that refuses in the words of `InputError`, however the object is made."""

    @functools.wraps(make)
    def __init__(self: Any, *args: Any, **values: Any) -> None:
        cls = type(self)
        for key, value in values.items():
            known = cls.__pydantic_fields__.get(key)
            if known is not None and (problem := _find_loose(known.annotation, value)) is not None:
                raise InputError(f"{name_of(cls)}.{key}: input should be {problem}")
        try:
            make(self, *args, **values)
        except pydantic.ValidationError as error:
            what, names = name_of(cls), list(cls.__pydantic_fields__)
            line = validation_line(what, error)
            if args:
                line = f"{what} takes its options by name ({', '.join(names) or 'it has none'}), got {args[0]!r}"
            elif unknown := next((key for key in values if key not in names), None):
                line = f"{what} has no argument '{unknown}'; {nearest(unknown, names)}"
            raise InputError(line) from None
        except InputError:
            raise
        except (Exception, SystemExit) as error:  # of a user's __post_init__
            raise InputError(f"{name_of(cls)}: {type(error).__name__}: {one_line(error)}") from error

    return __init__


def name_of(cls: type) -> str:
    """What a component or section is called in messages."""
    return getattr(cls, "name", "") or cls.__name__.lower()


def check_options(cls: type) -> None:
    """Refuses options that have no place in a table, and an initialiser, which options would replace."""
    for name in ("name", "summary", "args"):
        if name in vars(cls).get("__annotations__", {}) and not is_class_var(cls, name):
            raise DeclarationError(f"{cls.__name__}.{name}: an option cannot be called '{name}'; rename it")
    if "__init__" in vars(cls):
        raise DeclarationError(
            f"{cls.__name__}.__init__ would be ignored: options are annotated (mu: float = 0.1) and set by themselves; "
            "checks of them go into __post_init__(self)"
        )


def _check_defaults(cls: Any) -> None:
    """Refuses defaults that could not be given, or not be written into a run's file and read again."""
    defaults = {name: info.get_default(call_default_factory=True) for name, info in cls.__pydantic_fields__.items()}
    defaults = {name: value for name, value in defaults.items() if value is not PydanticUndefined}
    for name, value in defaults.items():
        if (wrong := _find_unplain(value)) is not None:
            raise DeclarationError(
                f"{cls.__name__}.{name}: its default must be made of plain values (numbers, text, lists, tables, "
                f"components), got {_short(wrong)}; a constant of your own: _{name}, or annotate it as ClassVar"
            )
        if (problem := _find_loose(_hints(cls)[name], value)) is not None:
            raise DeclarationError(f"{cls.__name__}.{name}: its default should be {problem}")
    try:
        cls.__pydantic_validator__.validate_python(pydantic_core.ArgsKwargs((), defaults))
    except pydantic.ValidationError as error:
        for each in error.errors():
            if each["loc"] and each["loc"][0] in defaults and not each["type"].startswith("missing"):
                message = each["msg"][:1].lower() + each["msg"][1:]
                got = _short(each.get("input"))
                where = f"{cls.__name__}.{each['loc'][0]}"
                raise DeclarationError(
                    f"{where}: its default is not right: {message}, got {got}; change it, or its annotation"
                ) from None
    except Exception:
        return  # of its __post_init__, which says it when the class is used


def _find_unplain(value: Any) -> Any:
    """The first part of a value that no table can hold; None: all is well."""
    if isinstance(value, dict):
        return next((part for key, item in value.items() for part in (_find_unplain(key), _find_unplain(item))
                     if part is not None), None)  # fmt: skip
    if isinstance(value, (list, tuple)):
        return next((part for part in map(_find_unplain, value) if part is not None), None)
    return None if value is None or isinstance(value, (bool, int, float, str, Component)) else value


def _find_loose(hint: Any, value: Any) -> str | None:
    """What pydantic would read as something else: true as 1, and "yes" as true."""
    if isinstance(value, bool) and hint in (int, float, int | None, float | None):
        return f"a number, got {str(value).lower()}"
    return f"true or false, got {_short(value)}" if hint is bool and not isinstance(value, bool) else None


class Registry(Generic[T]):
    """The components of one kind, by name."""

    every: ClassVar[list[Registry[Any]]] = []

    def __init__(self, kind: str, base: type[T]) -> None:
        self.kind, self.base = kind, base
        self._classes: dict[str, type[T]] = {}
        self._specs: dict[str, Any] = {}
        Registry.every.append(self)

    def register(self, name: str) -> Callable[[type[C]], type[C]]:
        """Class decorator: makes the class a frozen, validated dataclass and gives it this name."""
        self._check_name(name)

        def decorate(cls: type[C]) -> type[C]:
            if not isinstance(cls, type) or not issubclass(cls, self.base):
                got = f"the class {cls.__name__}" if isinstance(cls, type) else _name_kind(cls)
                raise DeclarationError(
                    f"{self.kind} '{name}' must be a class that derives from {self.base.__name__}, got {got}"
                )
            self._check_free(name, cls)
            doc = inspect.getdoc(cls) or ""
            made: Any = validated(cls)
            if missing := sorted(getattr(made, "__abstractmethods__", ())):
                raise DeclarationError(
                    f"{cls.__name__} leaves {missing[0]} abstract, so that no {self.kind} could be made of it; define "
                    "it, or register the class that does"
                )
            made.name, made.summary = name, doc.split("\n\n")[0].replace("\n", " ")
            self._classes[name], self._specs[name] = made, _spec(cls)
            return made  # type: ignore[no-any-return]

        return decorate

    def _check_name(self, name: Any) -> None:
        """Refuses a name that nobody could write on a command line."""
        if isinstance(name, str) and _NAME.fullmatch(name):
            return
        what = f'register expects a name such as "mine" (a-z, 0-9, _), got {_short(name)}'
        if isinstance(name, type):
            decorator = f'@registries.{{}}.register("{name.__name__.lower()}")'
            place = {"method": "methods", "term": "terms"}.get(self.kind, "…")
            what = f"register expects a name, got the class {name.__name__}; write {decorator.format(place)}"
        raise DeclarationError(what)

    def _check_free(self, name: str, cls: type) -> None:
        """Refuses a name that another class has; a module or notebook cell that is run again replaces its own."""
        earlier = self._classes.get(name)
        if earlier is None:
            return
        same = (earlier.__module__, earlier.__qualname__) == (cls.__module__, cls.__qualname__)
        again = same and (_spec(cls) is None or _spec(cls) is not self._specs.get(name))
        file = _file(earlier)
        if file is not None and earlier.__qualname__ == cls.__qualname__ and earlier.__module__ != cls.__module__:
            again = again or _is_same_file(file, _file(cls))  # a plugin that another one imports by its name
        if not again and (file is None or Path(file).exists()):
            raise InputError(
                f"{self.kind} '{name}' is registered twice: by {earlier.__qualname__} in {_origin(earlier)} and by "
                f"{cls.__qualname__} in {_origin(cls)}; rename one of them"
            )

    @staticmethod
    @contextmanager
    def replacing(modules: Collection[str]) -> Iterator[None]:
        """Forgets what these modules registered, for their new version to register; an error leaves all as it was."""
        before = [(registry, dict(registry._classes)) for registry in Registry.every]
        for registry, classes in before:
            registry._classes = {name: cls for name, cls in classes.items() if cls.__module__ not in modules}
        try:
            yield
        except BaseException:
            for registry, classes in before:
                registry._classes = classes
            raise

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


_NAME = re.compile(r"[a-z_][a-z0-9_]*")


def _name_kind(value: Any) -> str:
    return f"{type(value).__name__} {getattr(value, '__name__', '')}".strip()


def _spec(cls: type) -> Any:
    """What a module was loaded by: another object after each load; None in a script or notebook."""
    return None if cls.__module__ == "__main__" else getattr(sys.modules.get(cls.__module__), "__spec__", None)


def _file(cls: type) -> str | None:
    file: str | None = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return file


def _is_same_file(one: str, other: str | None) -> bool:
    return other is not None and Path(one).resolve() == Path(other).resolve()


def _origin(cls: type) -> str:
    return "unskew itself" if cls.__module__.startswith("unskew.") else _file(cls) or cls.__module__


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
    """The object; what text reads as nothing is the word where `none` is a choice."""
    for key, hint in _hints(cls).items():
        if key in values and values[key] is None and "none" in typing.get_args(hint):
            values = {**values, key: "none"}
    return cls(**values)


_WHOLE, _NUMBER = "input should be a whole number", "input should be a number"
_KINDS = {
    "int_type": _WHOLE, "int_parsing": _WHOLE, "int_from_float": _WHOLE, "int_parsing_size": _WHOLE,
    "float_type": _NUMBER, "float_parsing": _NUMBER,
}  # fmt: skip
"""Pydantic's kinds of errors in the words of the command line."""


_KIND_OF_UNION = re.compile(r"constrained-\w+$|literal\[")
"""What pydantic adds to a field's place where the field may be of several kinds."""


def validation_line(what: str, error: pydantic.ValidationError) -> str:
    """The first problem pydantic found, as `what.field: message, got value`."""
    first = error.errors()[0]
    where = ".".join([what, *(str(part) for part in first["loc"] if not _KIND_OF_UNION.match(str(part)))])
    message = first["msg"][:1].lower() + first["msg"][1:]
    message = message.removeprefix("value error, ")
    message = _KINDS.get(first["type"], message)
    if first["loc"] and _KIND_OF_UNION.match(str(first["loc"][-1])) and len(error.errors()) > 1:
        message += f", or {error.errors()[1]['msg'].removeprefix('Input should be ')}"
    for limit in first.get("ctx", {}).values():  # 3.4e38, not forty digits
        if isinstance(limit, float) and limit >= 1e15:
            message = f"{message.rpartition(' ')[0]} {limit:g}"
    given = first.get("input", PydanticUndefined)
    if not first["loc"]:  # of the component's own check: all options are at fault
        return f"{where}: {message}"
    if first["type"] in ("missing", "missing_argument"):
        return f"{where} is missing; give it a value"
    if first["type"] in ("tuple_type", "list_type") and isinstance(given, Component):
        return f"{where}: expected a list, got {given}; write it in brackets, {first['loc'][-1]}=[{given}]"
    return f"{where}: {message}" + ("" if isinstance(given, dict) else f", got {_short(given)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def nearest(name: str, known: Sequence[str], between: str = ", ") -> str:
    """'did you mean a or b?' for a near miss, else the list of what there is."""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"known: {between.join(sorted(known))}" if known else "it takes no arguments"


def default_of(cls: type, name: str) -> Any:
    """The default of one field; pydantic's `PydanticUndefined` where it has none."""
    info = cls.__pydantic_fields__[name]  # type: ignore[attr-defined]
    return info.get_default(call_default_factory=True)


def to_table(component: Component) -> Table:
    """Every option of a component, nested ones too, as plain values for TOML or JSON; None is left out."""

    def plain(value: Any) -> Any:
        if isinstance(value, Component):
            return to_table(value)
        if (wrong := _find_unplain(value)) is not None:
            raise InputError(
                f"{component.name}: options must be plain values (numbers, text, lists, tables, components), got "
                f"{_short(wrong)}; a run could not be written down with it"
            )
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
    if typing.get_origin(hint) is typing.Annotated:
        return _type_text(typing.get_args(hint)[0])
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
