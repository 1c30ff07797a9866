"""What there is, and what came out: tables for people, JSON for programs."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table as RichTable

from unskew.base import storage
from unskew.base.errors import InputError
from unskew.base.registry import Component, Registry, options
from unskew.core.method import Method, methods
from unskew.core.profile import PARTS
from unskew.core.term import terms
from unskew.core.wrapper import Wrapper
from unskew.data.files.finder import Finder
from unskew.data.sources.base import sources
from unskew.measures.base import measures
from unskew.models.base import architectures
from unskew.models.sizes import describe_model
from unskew.runs.folder import Row, to_json

LARGEST = 100_000

# a pipe or file has no width of its own: wide enough for a table not to fold
console = Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else 160)


def print_json(value: Any) -> None:
    """One JSON object on standard output, and nothing else there."""
    sys.stdout.write(to_json(value) + "\n")


def table(*columns: str, title: str | None = None) -> RichTable:
    """An empty table in the house's style."""
    made = RichTable(
        title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for column in columns:
        made.add_column(column, header_style="bold", overflow="fold")
    return made


def show_result(summary: Row, folder: Path, as_json: bool) -> None:
    """A run's figures."""
    if as_json:
        print_json(summary)
        return
    rows = table("figure", "value", title=f"{summary['method']} on {summary['data']}, {summary['rounds']} rounds")
    for name, value in summary["accuracy"].items():
        rows.add_row(f"accuracy, {name.replace('_', ' ')}", f"{100 * value:.2f} %")
    if summary["personal"]:
        figures = summary["personal"]
        rows.add_row("clients: mean accuracy", f"{100 * figures['mean']:.2f} % over {figures['clients_tested']}")
        rows.add_row("clients: worst decile", f"{100 * figures['worst_decile']:.2f} %")
    if summary["loss"] is not None:
        rows.add_row("loss", f"{summary['loss']:.4f}")
    rows.add_row("sent down / up", f"{summary['bytes_down'] / 2**20:.1f} / {summary['bytes_up'] / 2**20:.1f} MiB")
    seconds = summary["seconds"]
    rows.add_row("seconds", ", ".join(f"{kind} {seconds[kind]:.1f}" for kind in seconds))
    if summary["diverged"]:
        rows.add_row("diverged", "yes: in some round no client sent finite numbers; lower lr")
    console.print(rows)
    console.print(f"results in {folder}", soft_wrap=True)


def show_profile(seconds: dict[str, float], folder: Path, as_json: bool) -> None:
    """Where a run's seconds went; also as profile.json in its folder."""
    total = sum(seconds.values())
    parts = {name: seconds[name] for name in PARTS if seconds.get(name)}
    storage.write_atomic(
        folder / "profile.json", (to_json({"seconds": parts, "total": total}, indent=1) + "\n").encode()
    )
    if as_json:
        return
    rows = table("part", "seconds", "share", "what", title="where the seconds of all processes went")
    for name, value in parts.items():
        rows.add_row(name, f"{value:.2f}", f"{100 * value / total:.1f} %", PARTS[name])
    console.print(rows)


def _output(method: type[Method]) -> str:
    """Which model a method gives; a wrapper's depends on what is inside it."""
    found = method.output
    return found if isinstance(found, str) else "as inside"


def show_methods(name: str | None, as_json: bool) -> None:
    """The methods, or one of them."""
    if name is None:
        rows = [
            {"name": key, "kind": "wrapper" if issubclass(methods.get(key), Wrapper) else "method",
             "output": _output(methods.get(key)), "summary": methods.get(key).summary}
            for key in methods
        ]  # fmt: skip
        _show_rows(rows, as_json, "explain one: unskew methods NAME; combine: fedavg(terms=[prox(mu=0.1)])")
        return
    registry: Registry[Any] = terms if name in terms and name not in methods else methods
    _show_component(registry, name, as_json)


def show_measures(name: str | None, as_json: bool) -> None:
    """The measures, or one of them."""
    if name is not None:
        _show_component(measures, name, as_json)
        return
    rows = [{"name": key, "summary": measures.get(key).summary} for key in measures]
    _show_rows(rows, as_json, 'explain one: unskew measures NAME; record some: unskew run --measure "drift,rank"')


def show_data(name: str | None, data_dir: Path | None, as_json: bool) -> None:
    """The data sets, or one of them with its files."""
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
        _show_rows(
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
    _show_component(sources, name, as_json, extra)


def show_models(name: str | None, shape: str, classes: int, as_json: bool) -> None:
    """The models, or one of them, with parameter counts for a shape."""
    sizes = tuple(int(part) for part in shape.split(",") if part.strip().isdecimal())
    if len(sizes) != len(shape.split(",")) or not all(1 <= size <= LARGEST for size in sizes):
        raise InputError(f"--shape expects numbers from 1 to {LARGEST} such as 3,32,32, got '{shape}'")
    if not 2 <= classes <= LARGEST:
        raise InputError(f"--classes expects a number from 2 to {LARGEST}, got {classes}")
    if name is not None:
        _show_component(architectures, name, as_json, {"input": list(sizes), **_counts(name, sizes, classes)})
        return
    rows = [
        {"name": key, **_counts(key, sizes, classes), "summary": architectures.get(key).summary}
        for key in architectures
        if key != "given"
    ]
    _show_rows(rows, as_json, f"counts for inputs {sizes} and {classes} classes; others: --shape 1,28,28 --classes 9")


def _counts(name: str, shape: tuple[int, ...], classes: int) -> dict[str, Any]:
    try:
        with torch.device("meta"):  # sizes without numbers: no memory, whatever the shape
            summary = describe_model(architectures.build(name).build(shape, classes), shape)
    except InputError as error:
        return {"parameters": "", "features": "", "problem": str(error)}
    return {"parameters": f"{summary.parameters:,}", "features": summary.features}


def _show_rows(rows: list[dict[str, Any]], as_json: bool, hint: str) -> None:
    if as_json:
        print_json(rows)
        return
    columns = [column for column in rows[0] if column != "problem"]
    shown = table(*columns)
    for row in rows:
        shown.add_row(*(str(row.get(column, "")) for column in columns))
    console.print(shown)
    console.print(f"\n{hint}", style="dim", soft_wrap=True)


def _show_component(registry: Registry[Any], name: str, as_json: bool, extra: dict[str, Any] | None = None) -> None:
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
            console.print(f"{key}: {_plain(value)}", soft_wrap=True)
    if listed:
        shown = table("option", "type", "default", "bounds", "meaning", "source of the default")
        for option in listed:
            shown.add_row(*(getattr(option, field.name) for field in dataclasses.fields(option)))
        console.print(shown)
    else:
        console.print("it has no options")


def _plain(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "".join("\n  " + "  ".join(str(item) for item in row.values() if item) for row in value)
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
