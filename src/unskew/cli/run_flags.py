"""Flags made from the fields of `Run`, so that one place says what an option means and defaults to.

Typer reads the flags of a command from its signature and knows no other way, so a signature is what is made here.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from unskew.base.errors import InputError
from unskew.base.registry import Option, options
from unskew.base.text import Table
from unskew.runs.arguments import spell_flag
from unskew.runs.config import FLAGS, SECTIONS, Run, load_plugins, override, read_assignment, read_file

_KINDS: dict[str, type] = {"int": int, "float": float, "int | none": int, "float | none": float, "bool": bool}
LISTS = ("measure", "wire", "track", "init_only", "freeze")
"""Flags that name several things: given twice, they name all of them."""
TEXTS = ("lr",)
"""Flags whose number may be written with more: a rate with its schedule."""
_METAVARS = {int: "INTEGER", float: "FLOAT", str: "TEXT", bool: "true|false"}


def add_run_flags(*flags: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command these flags of a run, a run file, --set and --plugin; they reach it as one table, `config`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own, shared = _find_parameters(command, "config"), _find_parameters(build_table, "values")

        @functools.wraps(command)
        def call(**given: Any) -> None:
            values = {FLAGS[flag]: _join(given.pop(flag)) for flag in flags}
            config = build_table(values, **{parameter.name: given.pop(parameter.name) for parameter in shared})
            command(config, **given)

        signature = inspect.Signature([*own, *(_make_parameter(flag) for flag in flags), *shared])
        call.__signature__ = signature  # type: ignore[attr-defined]
        return call

    return decorate


def build_table(
    values: Table,
    file: Annotated[Path | None, typer.Argument(help="a TOML run file; flags override it")] = None,
    assign: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="set any option, such as method.mu=0.1")
    ] = None,
    plugin: Annotated[
        list[str] | None, typer.Option(help="a Python file to import first: your own method, say")
    ] = None,
) -> Table:
    """The table of a run: the file, then flags by their paths, then --set, each overriding what came before."""
    table = read_file(file) if file is not None else {}
    if plugin:
        listed = table.get("plugins", [])
        table["plugins"] = [*listed, *plugin] if isinstance(listed, list) else listed
    load_plugins(table)  # before any name that they register is looked up
    for path, value in values.items():
        if value is not None:
            table = override(table, path, value)
    for text in assign or []:
        table = override(table, *read_assignment(text))
    return table


def _find_parameters(function: Callable[..., Any], without: str) -> list[inspect.Parameter]:
    found = inspect.signature(function, eval_str=True).parameters.values()
    return [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in found if parameter.name != without]


def _make_parameter(flag: str) -> inspect.Parameter:
    option = _find_options()[FLAGS[flag]]
    kind = str if flag in TEXTS else _KINDS.get(option.type, str)
    # nothing is what a flag left out means: there is no word for it
    words = option.type.removesuffix(" | none")
    choices = f" ({words})" if " | " in words and kind is str and flag not in ("model", "init") else ""
    default = "" if option.default == "none" else f" [default: {option.default}]"

    def read(text: str) -> Any:  # a function: older versions of typer want the parser's name
        return _read(flag, kind, text)

    info = typer.Option(
        spell_flag(flag), help=(option.doc + choices + default).replace("[", "\\["), show_default=False, parser=read,
        metavar="FLOAT|TEXT" if flag in TEXTS else _METAVARS[kind],
    )  # fmt: skip
    # the parser gives the type; named here, bool would become a flag without a value
    taken: Any = list[str] if flag in LISTS else str
    annotation = Annotated[taken | None, info]
    return inspect.Parameter(flag, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _join(value: Any) -> Any:
    """A flag that was given several times as one list."""
    return (",".join(value) or None) if isinstance(value, list) else value


@functools.cache
def _find_options() -> dict[str, Option]:
    """The options of a run and of its sections, by path."""
    found = {option.name: option for option in options(Run)}
    for key, section in SECTIONS.items():
        found |= {f"{key}.{option.name}": option for option in options(section)}
    return found


def _read(flag: str, kind: type, text: str) -> Any:
    """A flag's value; the error names the flag and what it expects."""
    if kind is bool and text in ("true", "false"):
        return text == "true"
    try:
        if kind is not bool:
            return kind(text)
    except ValueError:
        pass
    expected = {int: "a whole number", float: "a number", bool: "true or false"}[kind]
    path = FLAGS[flag] if "." in FLAGS[flag] else f"run.{FLAGS[flag]}"
    raise InputError(f"{path} ({spell_flag(flag)}): input should be {expected}, got '{text}'")
