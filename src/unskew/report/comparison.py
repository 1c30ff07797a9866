"""A comparison's table: accuracy, clients' accuracy, time and bytes of each method over the seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from unskew.base.errors import InputError
from unskew.report.tables import Cell, Mark, Table, mark_best
from unskew.runs.comparison import CellResult, Metric
from unskew.runs.folder import Row


def table(cells: Sequence[CellResult], title: str, metric: Metric = "last") -> Table:
    """The comparison's table: accuracy, clients' accuracy, and time and bytes relative to the first method."""
    names = list(dict.fromkeys(cell.method for cell in cells))
    by_method = {name: [cell for cell in cells if cell.method == name] for name in names}

    def column(figure: Callable[[Row], float | None]) -> list[tuple[float, ...]]:
        found = [[figure(cell.summary) for cell in by_method[name]] for name in names]
        return [tuple(value for value in values if value is not None) for values in found]

    key = _metric_key(metric, cells[0].summary)
    accuracy = column(lambda s: 100 * s["accuracy"][key] if key in s["accuracy"] else None)
    clients = column(lambda s: 100 * s["personal"]["mean"] if s["personal"] else None)
    worst = column(lambda s: 100 * s["personal"]["worst_decile"] if s["personal"] else None)
    time = _relative(column(lambda s: s["seconds"]["clients"]))
    traffic = _relative(column(lambda s: float(s["bytes_up"] + s["bytes_down"])))
    unmarked: list[Mark] = [""] * len(names)
    personal = tuple(name for name in names if _is_personal(by_method[name][0].summary))
    mixed = bool(personal) and len(personal) < len(names)
    # other models on other test sets: not ranked among the global ones
    ranked = [() if mixed and name in personal else own for name, own in zip(names, accuracy, strict=True)]
    figures: list[tuple[str, list[tuple[float, ...]], list[Mark]]] = [
        ("accuracy %", accuracy, mark_best(ranked)),
        ("clients %", clients, mark_best(clients)),
        ("worst %", worst, mark_best(worst)),
        ("time ×", time, unmarked),
        ("bytes ×", traffic, unmarked),
        *((name, values, unmarked) for name, values in _rounds_to([by_method[name] for name in names])),
    ]
    rows = tuple(
        (name, tuple(Cell(values[number], marks[number], "×" in column) for column, values, marks in figures))
        for number, name in enumerate(names)
    )
    seeds = len({cell.seed for cell in cells})
    where = "pooled over the clients' own test sets" if personal and not mixed else "on the global test set"
    notes = [
        f"accuracy: {where}, {key.replace('_', ' ')}; mean ± sample standard deviation, {seeds} seed(s)",
        *["personal: accuracy of the clients' own models, pooled over their own test sets; not ranked with the others"]
        * mixed,
        "clients and worst: mean over clients and over the worst tenth of them, each on its own test set, last round",
        f"time × and bytes ×: the clients' seconds of work and the traffic, relative to {names[0]}",
        *(f"wire: {', '.join(wire)}" for wire in [cells[0].summary.get("wire")] if wire),
        *_rounds_to_notes(cells, names[0]),
        "bold: best; underlined: second best",
        *(f"{cell.method}, seed {cell.seed}: diverged" for cell in cells if cell.summary["diverged"]),
    ]
    return Table(title, tuple(name for name, _, _ in figures), rows, tuple(notes), personal if mixed else ())


def _is_personal(summary: Row) -> bool:
    return str(summary.get("accuracy_of", "global model")) != "global model"


def _rounds_to(methods: list[list[CellResult]]) -> list[tuple[str, list[tuple[float, ...]]]]:
    """Columns of the measure `rounds_to`: rounds to each target, and the speed-up over the first method (by seed)."""

    def reached(cell: CellResult, target: str) -> float | None:
        found: float | None = cell.summary.get("measures", {}).get("rounds_to", {}).get(target)
        return found

    columns = []
    for target in methods[0][0].summary.get("measures", {}).get("rounds_to", {}):
        rounds = [{cell.seed: n for cell in cells if (n := reached(cell, target)) is not None} for cells in methods]
        speed = [tuple(rounds[0][seed] / n for seed, n in own.items() if seed in rounds[0]) for own in rounds]
        share = f"{100 * float(target):g} %"
        columns += [(f"rounds to {share}", [tuple(own.values()) for own in rounds]), (f"speed-up to {share}", speed)]
    return columns


def _rounds_to_notes(cells: Sequence[CellResult], first: str) -> list[str]:
    if not cells[0].summary.get("measures", {}).get("rounds_to"):
        return []
    last = cells[0].summary["rounds"]
    return [f"rounds to: over the seeds that reach it within {last} rounds (–: none does); speed-up: over {first}"]


def _metric_key(metric: Metric, summary: Row) -> str:
    names = {"last_10_percent": "last_10_percent_mean"}
    key = names.get(metric, metric)
    if metric == "last_k":
        key = next(name for name in summary["accuracy"] if name.startswith("last_") and name.endswith("_mean"))
    if key not in summary["accuracy"]:
        raise InputError(f"there is no figure '{metric}'; best_on_validation needs --validation 0.1 or so")
    return key


def _relative(values: list[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """Each seed's figure over the first method's under the same seed."""
    return [tuple(v / first for v, first in zip(row, values[0], strict=True) if first > 0) for row in values]
