"""`unskew data`, `models`, `measures`, `wire`: what there is; each imports only what it lists."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unskew.base.errors import InputError
from unskew.cli.output import console, make_table, print_json
from unskew.cli.shared_flags import DataDir, Json

if TYPE_CHECKING:
    from unskew.base.registry import Component, Registry

LARGEST = 100_000

Name = Annotated[str | None, typer.Argument(help="one of them, to be explained")]
Plugins = Annotated[list[str] | None, typer.Option(help="a Python file to import first")]


def list_data(name: Name = None, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Lists the data sets, or explains one: its files, and where they were looked for."""
    from unskew.data.files.finder import Finder
    from unskew.data.sources.base import sources

    finder = Finder(data_dir, offline=True)
    if name is None:
        rows = [
            {
                "name": key,
                "samples": source.about.counts,
                "classes": source.about.classes or "",
                "summary": source.summary,
            }
            for key, source in ((key, sources.get(key)) for key in sources if key != "given")
        ]
        show_rows(
            rows, as_json, "explain one: unskew data NAME; your own: npz:PATH, folder:PATH, python:file.py:function"
        )
        return
    source = sources.get(name)
    files = [{"file": needed.name, "url": needed.url} for needed in source.files]
    try:
        found: Any = (
            [str(path) for path in finder(source.name, source.files, source.folders, source.instead)]
            if files
            else "embedded or your own"
        )
    except InputError as error:
        fetched = all(needed.url for needed in source.files)
        found = "not on this machine; the first run downloads it" if fetched else f"not on this machine: {error}"
    extra = {**dataclasses.asdict(source.about), "files": files, "found": found}
    show_component(sources, name, as_json, extra)


def list_models(
    name: Name = None,
    shape: Annotated[str, typer.Option(help="input shape for the parameter counts: channels,height,width")] = "3,32,32",
    classes: Annotated[int, typer.Option(help="number of classes for the parameter counts")] = 10,
    as_json: Json = False,
) -> None:
    """Lists the models with their parameter counts, or explains one."""
    from unskew.models import architectures

    sizes = tuple(int(part) for part in shape.split(",") if part.strip().isdecimal())
    if len(sizes) != len(shape.split(",")) or not all(1 <= size <= LARGEST for size in sizes):
        raise InputError(f"--shape expects numbers from 1 to {LARGEST} such as 3,32,32, got '{shape}'")
    if not 2 <= classes <= LARGEST:
        raise InputError(f"--classes expects a number from 2 to {LARGEST}, got {classes}")
    if name is not None:
        show_component(architectures, name, as_json, {"input": list(sizes), **_count(name, sizes, classes)})
        return
    rows = [
        {"name": key, **_count(key, sizes, classes), "summary": architectures.get(key).summary}
        for key in architectures
        if key != "given"
    ]
    show_rows(rows, as_json, f"counts for inputs {sizes} and {classes} classes; others: --shape 1,28,28 --classes 9")


def list_measures(name: Name = None, plugin: Plugins = None, as_json: Json = False) -> None:
    """Lists what a run can also record (--measure), or explains one of them."""
    from unskew.measures import measures

    load_plugins(plugin)
    if name is not None:
        show_component(measures, name, as_json)
        return
    rows = [{"name": key, "summary": measures.get(key).summary} for key in measures]
    show_rows(rows, as_json, 'explain one: unskew measures NAME; record some: unskew run --measure "drift,rank"')


def list_processors(name: Name = None, plugin: Plugins = None, as_json: Json = False) -> None:
    """Lists what can happen to replies on their way to the server (--wire), or explains one of them."""
    from unskew.wire import processors

    load_plugins(plugin)
    if name is not None:
        show_component(processors, name, as_json, {"stacked": expect_of_stacked(processors.get(name))})
        return
    rows = [{"name": key, "summary": processors.get(key).summary} for key in processors]
    show_rows(rows, as_json, 'explain one: unskew wire NAME; use some: unskew run --wire "clip(norm=1.0),quantise"')


def load_plugins(paths: list[str] | None) -> None:
    """Imports the files that a command names."""
    if paths:
        from unskew.runs import config  # brings all of unskew with it, as a plugin may need

        config.load_plugins({"plugins": paths})


def expect_of_stacked(kind: type[Any]) -> str:
    """What the executor `stacked` promises for a method, a term or a wire processor with its defaults."""
    from unskew.core.method import Method
    from unskew.core.tolerance import describe, find_tolerance
    from unskew.core.wrapper import Wrapper

    try:
        made = kind()
        found = describe(find_tolerance(made) if isinstance(made, Method) else made.stacked_tolerance)
    except Exception:  # it needs arguments, such as a method inside
        return "as the method inside"
    return f"as the method inside, at best {found}" if issubclass(kind, Wrapper) else found


def _count(name: str, shape: tuple[int, ...], classes: int) -> dict[str, Any]:
    """A model's parameters and features, by its layers: without a forward pass, which takes seconds on shapes."""
    from unskew.models.base import architectures
    from unskew.models.etf import head_inputs
    from unskew.models.sizes import build_shapes, count_parameters

    try:
        model = build_shapes(architectures.build(name), shape, classes)
        return {"parameters": f"{count_parameters(model):,}", "features": head_inputs(model.head)}
    except InputError as error:
        return {"parameters": "", "features": "", "problem": str(error)}


def show_rows(rows: list[dict[str, Any]], as_json: bool, hint: str) -> None:
    """Prints a list, and below it how to go on."""
    if as_json:
        print_json(rows)
        return
    columns = [column for column in rows[0] if column != "problem"]
    shown = make_table(*columns)
    for row in rows:
        shown.add_row(*(str(row.get(column, "")) for column in columns))
    console.print(shown)
    console.print(f"\n{hint}", style="dim", soft_wrap=True)


def show_component(registry: Registry[Any], name: str, as_json: bool, extra: dict[str, Any] | None = None) -> None:
    """Explains one component: its text, what else is known of it, and its options."""
    from unskew.base.registry import options

    cls: type[Component] = registry.get(name)
    listed = options(cls)
    if as_json:
        print_json({"name": name, "kind": registry.kind, "summary": cls.summary, **(extra or {}),
                    "options": [dataclasses.asdict(option) for option in listed]})  # fmt: skip
        return
    console.print(f"{name} ({registry.kind})", style="bold")
    module = inspect.getdoc(sys.modules[cls.__module__]) or ""
    text = module if registry.kind == "method" else inspect.getdoc(cls) or ""
    console.print(text + "\n")
    for key, value in (extra or {}).items():
        if value not in ("", None, []):
            console.print(f"{key}: {_to_text(value)}", soft_wrap=True)
    if listed:
        shown = make_table("option", "type", "default", "bounds", "meaning", "source of the default")
        for option in listed:
            shown.add_row(*(getattr(option, field.name) for field in dataclasses.fields(option)))
        console.print(shown)
    else:
        console.print("it has no options")


def _to_text(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "".join("\n  " + "  ".join(str(item) for item in row.values() if item) for row in value)
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
