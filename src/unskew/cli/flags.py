"""Flags of the command line, made from the fields of `Run`: one place says what an option means and defaults to."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from unskew.base.errors import InputError
from unskew.base.registry import Option, options
from unskew.base.text import Table
from unskew.runs.config import FLAGS, SECTIONS, Run, from_table, load_plugins, override, read_assignment, read_file

_FLAG_OF = {path: flag for flag, path in FLAGS.items()}
_KINDS: dict[str, type] = {"int": int, "float": float, "int | none": int, "bool": bool}


@functools.cache
def _described() -> dict[str, Option]:
    rows = {option.name: option for option in options(Run)}
    for key, section in SECTIONS.items():
        rows |= {f"{key}.{option.name}": option for option in options(section)}
    return rows


def with_run_flags(*left_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds the flags of a run to a command; their values reach it as the one argument `config`, a table."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        flags = [flag for flag in FLAGS if flag not in left_out]

        @functools.wraps(command)
        def wrapped(**given: Any) -> None:
            values = {FLAGS[flag]: given.pop(flag) for flag in flags}
            table = run_table(given.pop("file"), values, given.pop("assign"), given.pop("plugin"))
            command(config=table, **given)

        signature = inspect.signature(command, eval_str=True)
        own = [p.replace(kind=p.KEYWORD_ONLY) for name, p in signature.parameters.items() if name != "config"]
        parameters = [_FILE, *own, *(_flag(flag) for flag in flags), _ASSIGN, _PLUGIN]
        wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
        return wrapped

    return decorate


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


_FILE = _keyword("file", Annotated[Path | None, typer.Argument(help="a TOML run file; flags override it")], None)
_ASSIGN = _keyword(
    "assign",
    Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="set any option, such as method.mu=0.1")
    ],
    None,
)
_PLUGIN = _keyword(
    "plugin",
    Annotated[list[str] | None, typer.Option("--plugin", help="a Python file to import first: your own method, say")],
    None,
)


def _flag(flag: str) -> inspect.Parameter:
    option = _described()[FLAGS[flag]]
    kind = _KINDS.get(option.type, str)
    shown = "" if option.default == "none" else f" [default: {option.default}]"
    text = option.doc + (f" ({option.type})" if " | " in option.type and kind is str and flag != "model" else "")
    info = typer.Option(
        _spelled(flag), help=text.replace("[", "\\[") + shown.replace("[", "\\["), show_default=False,
        parser=_reader(flag, kind), metavar={int: "INTEGER", float: "FLOAT", str: "TEXT", bool: "true|false"}[kind],
    )  # fmt: skip
    read_as = str if kind is bool else kind  # else typer makes it a flag without a value
    return _keyword(flag, Annotated[typing.Optional[read_as], info], None)  # type: ignore[valid-type]  # noqa: UP045


def _spelled(flag: str) -> str:
    return f"--{flag.replace('_', '-')}"


def _reader(flag: str, kind: type) -> Callable[[str], Any]:
    """Reads a flag's text; what it cannot read it names."""

    def read(text: str) -> Any:
        if kind is bool:
            if text not in ("true", "false"):
                raise InputError(f"{_spelled(flag)} expects true or false, got '{text}'")
            return text == "true"
        try:
            return kind(text)
        except ValueError:
            wanted = "a whole number" if kind is int else "a number"
            raise InputError(f"{_spelled(flag)} expects {wanted}, got '{text}'") from None

    return read


def run_table(file: Path | None, values: Table, assignments: list[str] | None, plugins: list[str] | None) -> Table:
    """The tables of a run: the file, then flags, then --set, each overriding what came before."""
    table = read_file(file) if file is not None else {}
    if plugins:
        listed = table.get("plugins", [])
        table["plugins"] = [*listed, *plugins] if isinstance(listed, list) else listed
    load_plugins(table)  # before any name that they register is looked up
    for path, value in values.items():
        if value is not None:
            table = override(table, path, value)
    for text in assignments or []:
        table = override(table, *read_assignment(text))
    return table


def to_run(table: Table) -> Run:
    """The validated run; an option that has a flag is named by both."""
    try:
        return from_table(table)
    except InputError as error:
        option, colon, rest = str(error).partition(": ")
        flag = _FLAG_OF.get(option.removeprefix("run."))
        if flag is None:
            raise
        raise InputError(f"{option} ({_spelled(flag)}){colon}{rest}") from None
