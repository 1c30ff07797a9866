"""`unskew methods`: the methods by family, what each sends, keeps, costs and combines with; what goes with what."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from unskew.cli.listing import Name, Plugins, expect_of_stacked, load_plugins, show_component
from unskew.cli.output import console, errors, make_table, print_json
from unskew.cli.shared_flags import Json

if TYPE_CHECKING:
    from rich.table import Table as RichTable

    from unskew.base.registry import Registry
    from unskew.runs.trial import Verdict

HINT = "explain one: unskew methods NAME; combine: flfa(fedprox(mu=0.1)), fedavg(terms=[prox(mu=0.1)]); what goes into "
HINT += "what: unskew methods --matrix"
LEGEND = (
    "↓ ↑: sent to and by each client in a round, in multiples of the model's bytes (an mlp of 19 kB; what does not "
    "grow with the model counts less in a larger one)",
    "cost: a client's work against fedavg's, measured (-: not yet); inside: the wrappers, at their defaults, that go "
    "around it",
)
FAILED = 1
"""Exit code of a matrix in which a combination is neither right nor refused."""


def list_methods(
    name: Name = None,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="try every wrapper around every method, and show what goes with what")
    ] = False,
    plugin: Plugins = None,
    as_json: Json = False,
) -> None:
    """Lists the methods and what combines with them, or explains one with all its options."""
    load_plugins(plugin)
    if matrix:
        _show_matrix(name, as_json)
    elif name is not None:
        _explain(name, as_json)
    elif as_json:
        print_json([*_method_rows(), *_other_rows()])
    else:
        _show_list()


# --------------------------------------------------------------------------------------------------- the list


def _method_rows() -> Iterator[dict[str, Any]]:
    from unskew.methods import methods
    from unskew.methods.catalogue import by_family

    for family, names in by_family().items():
        kind = "wrapper" if family == "wrappers" else "method"
        for name in names:
            yield {"name": name, "kind": kind, "family": family, **_find_facts(name),
                   "summary": methods.get(name).summary}  # fmt: skip


def _find_facts(name: str) -> dict[str, Any]:
    """What a method sends, keeps and combines with: of the package's own it is written down, a plugin's is tried."""
    from unskew.methods.catalogue import is_ours, read_costs, read_facts

    cost = read_costs().get(name) if is_ours(name) else None
    known = read_facts().get(name) if is_ours(name) else None
    return {**(known or _try(name)), "cost": cost}


def _try(name: str) -> dict[str, Any]:
    from unskew.base.errors import one_line
    from unskew.runs import trial

    try:
        return trial.describe(name)
    except Exception as error:  # whatever a plugin's method does, or asks for
        return {"problem": one_line(error)}


def _other_rows() -> Iterator[dict[str, Any]]:
    for kind, registry in _others().items():
        for name in registry:
            found = registry.get(name)
            more = {"needs": list(found.needs), "proximal": found.proximal} if kind == "term" else {}
            yield {"name": name, "kind": kind, **more, "summary": found.summary}


def _others() -> dict[str, Registry[Any]]:
    """What is no method and combines with some."""
    import unskew.terms  # noqa: F401 - registers the terms
    from unskew.core.division import divisions
    from unskew.core.term import terms
    from unskew.wire import processors

    return {"term": terms, "division": divisions, "wire processor": processors}


_HEADINGS = {
    "term": "terms: added to the loss, fedavg(terms=[prox(mu=0.1)])",
    "division": "divisions: which part of the model is personal, fedper(division=channels(share=0.5))",
    "wire processor": "wire processors: what happens to replies on their way, --wire quantise",
}


def _show_list() -> None:
    from unskew.methods.catalogue import FAMILIES

    shown, heading = _make_list(), ""
    for row in _method_rows():
        if heading != (heading := f"{row['family']}: {FAMILIES[row['family']]}"):
            _add_heading(shown, heading)
        text = Text(row["summary"])
        text.append(f"\n{_say(row)}", style="dim")
        shown.add_row(Text(f"  {row['name']}", style="bold"), text)
    console.print(shown)
    shown, heading = _make_list(), ""
    console.print()
    for row in _other_rows():
        if heading != (heading := _HEADINGS[row["kind"]]):
            _add_heading(shown, heading)
        needs = f" (needs {', '.join(row['needs'])})" if row.get("needs") else ""
        shown.add_row(f"  {row['name']}", row["summary"] + needs)
    console.print(shown)
    for line in ("", *LEGEND, HINT):
        console.print(line, style="dim")


def _make_list() -> RichTable:
    made = make_table("", "")
    made.show_header = False
    made.columns[0].no_wrap = True
    return made


def _add_heading(shown: RichTable, text: str) -> None:
    word, _, rest = text.partition(":")
    if shown.row_count:
        shown.add_row("", "")
    shown.add_row(Text(word, style="bold underline"), Text(rest.strip(), style="dim"))


def _say(row: dict[str, Any]) -> str:
    """The facts in one line."""
    from unskew.methods.catalogue import say_cost, say_facts, say_inside

    if "problem" in row:
        return f"not tried: {row['problem']}"
    parts = [f"{what} {amount}" for what, amount in say_facts(row)]
    gives = {"both": "gives both models", "tuned": "tuned at the clients"}.get(row["output"])
    return " · ".join(
        [" ".join(parts[:2]), *parts[2:], *([gives] if gives else []), f"cost {say_cost(row['name'], brief=True)}",
         f"inside {say_inside(row['inside'])}", *([] if row["terms"] else ["no terms"])]
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------- one of them


def _explain(name: str, as_json: bool) -> None:
    from unskew.methods import methods
    from unskew.methods.catalogue import FAMILIES, family_of

    others = [registry for registry in _others().values() if name in registry]
    if name not in methods and others:
        registry = others[0]
        promised = {} if registry.kind == "division" else {"stacked": expect_of_stacked(registry.get(name))}
        show_component(registry, name, as_json, promised)
        return
    kind, stacked = methods.get(name), {"stacked": expect_of_stacked(methods.get(name))}
    family, facts = family_of(kind), _find_facts(name)
    if as_json:
        show_component(methods, name, True, {"family": family, **facts, **stacked})
        return
    show_component(methods, name, False, {"family": f"{family}, {FAMILIES[family]}", **_spell(name, facts), **stacked})


def _spell(name: str, facts: dict[str, Any]) -> dict[str, str]:
    """The facts, a line each."""
    from unskew.methods.catalogue import say_cost, say_inside, say_parts

    if "problem" in facts:
        return {"not tried": facts["problem"]}
    cost = facts["cost"]
    spread = f", quartiles {cost['quartiles'][0]:.2f} to {cost['quartiles'][1]:.2f}" if cost else ""
    return {
        "gives": facts["output"],
        "sent to a client": f"{say_parts(facts['down'])} (multiples of the model's bytes, on {facts['model']})",
        "sent by a client": say_parts(facts["up"]),
        **({"sent once": say_parts(facts["once"])} if facts["once"] else {}),
        "kept by a client": say_parts(facts["client"]) if facts["client"] else "nothing",
        "kept by the server": say_parts({"model": 1.0, **facts["server"]}),
        "cost against fedavg": say_cost(name) + spread,
        "goes inside": say_inside(facts["inside"]),
        "takes": ", ".join([*(["terms"] if facts["terms"] else []), *facts["wire"]]) or "neither terms nor --wire",
    }


# -------------------------------------------------------------------------------------------------- the matrix


def _show_matrix(name: str | None, as_json: bool) -> None:
    from unskew.methods import methods
    from unskew.methods.catalogue import by_family
    from unskew.runs import trial

    names = [methods.get(name).name] if name is not None else [each for own in by_family().values() for each in own]
    found: dict[str, dict[str, Verdict]] = {}
    with _Progress(len(names)) as progress:
        for each in names:
            progress(each)
            found[each] = trial.try_everywhere(each)
    if as_json:
        print_json(_matrix_to_json(found))
    else:
        _print_matrix(found, trial.wrappers())
    if any(verdict.failed for row in found.values() for verdict in row.values()):
        raise typer.Exit(FAILED)


def _matrix_to_json(found: dict[str, dict[str, Verdict]]) -> dict[str, Any]:
    def plain(verdict: Verdict) -> dict[str, Any]:
        reasons = {"refused": verdict.refused, "failed": verdict.failed, "lost": list(verdict.lost)}
        return {"composes": verdict.composes, **{key: value for key, value in reasons.items() if value}}

    return {"rows": [{"method": name, "alone": plain(row[""]),
                      "inside": {wrapper: plain(verdict) for wrapper, verdict in row.items() if wrapper}}
                     for name, row in found.items()]}  # fmt: skip


def _print_matrix(found: dict[str, dict[str, Verdict]], wrappers: list[str]) -> None:
    explained = {column: _share_reasons({name: row[column] for name, row in found.items()}, column)
                 for column in ("", *wrappers)}  # fmt: skip
    letters: dict[str, str] = {}

    def sign(name: str, column: str) -> Text:
        verdict, reason = found[name][column], explained[column].get(name)
        if reason is None:
            return Text("✓", style="green")
        letter = letters.setdefault(reason, _letter(len(letters)))
        if verdict.refused:
            return Text(letter, style="yellow")
        return Text(f"✗ {letter}", style="bold red") if verdict.failed else Text(f"~ {letter}", style="magenta")

    shown = make_table("method", "alone", *wrappers)
    for name in found:
        shown.add_row(name, *(sign(name, column) for column in ("", *wrappers)))
    console.print(shown)
    inside = [verdict for row in found.values() for wrapper, verdict in row.items() if wrapper]
    failed = sum(bool(verdict.failed) for row in found.values() for verdict in row.values())
    lost = sum(bool(verdict.lost) for verdict in inside)
    console.print(
        f"\n✓ runs ({sum(verdict.composes for verdict in inside)} of {len(inside)}); a letter: refused, for this "
        f"reason; ~: runs, but leaves something of the method out ({lost}); ✗: failed ({failed})"
    )
    for reason, letter in letters.items():
        console.print(Text(f"{letter:2} {reason}", style="dim"))


def _share_reasons(column: dict[str, Verdict], wrapper: str) -> dict[str, str]:
    """Why each method does not go into a wrapper; those that are refused alike share a line, where they are `it`."""
    said = {name: _reason(verdict) for name, verdict in column.items() if not verdict.composes}
    same: dict[str, list[str]] = {}
    for name, reason in said.items():
        if name != wrapper:
            same.setdefault(
                re.sub(rf"(?<![\w./]){re.escape(name)}(\([^()]*\))?(?![\w./])", "it", reason, count=1), []
            ).append(name)
    shared = {name: text for text, names in same.items() if len(names) > 1 for name in names}
    return {**said, **shared}


def _reason(verdict: Verdict) -> str:
    return verdict.failed or verdict.refused or f"never asks the method inside for {', '.join(verdict.lost)}"


def _letter(place: int) -> str:
    """a, b, … z, aa, ab …"""
    first, last = divmod(place, 26)
    return (_letter(first - 1) if first else "") + chr(ord("a") + last)


class _Progress:
    """A bar on a terminal, nothing elsewhere: it is a matter of seconds."""

    def __init__(self, total: int) -> None:
        self._total = total

    def __enter__(self) -> Callable[[str], None]:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._bar = Progress(
            BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False), console=errors,
            transient=True, disable=not errors.is_terminal,
        )  # fmt: skip
        task = self._bar.add_task("", total=self._total)
        self._bar.start()
        done = iter(range(self._total))
        return lambda name: self._bar.update(task, description=name, completed=next(done))

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
