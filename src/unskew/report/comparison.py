"""A comparison's table: accuracy, clients' accuracy, time and bytes of each method over the seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from unskew.base.errors import InputError
from unskew.base.text import count_of, split_list
from unskew.measures.classification import LOWER_IS_BETTER, NAMES
from unskew.report.tables import Cell, Mark, Table, mark_best
from unskew.runs.comparison import CellResult, Metric
from unskew.runs.folder import Row
from unskew.runs.summary import GLOBAL

MANY = 12
"""With more methods than this, rows are sorted."""


def read_columns(text: str) -> list[str]:
    """The figures that a text names, such as `macro_f1,auc`, or `all`."""
    if not isinstance(text, str):
        raise InputError(f"columns: expected names of figures such as 'macro_f1,auc', or 'all', got {text!r}")
    names = list(NAMES) if text.strip() == "all" else split_list(text)
    if unknown := next((name for name in names if name not in NAMES), None):
        raise InputError(f"--columns: there is no figure '{unknown}'; known: {', '.join(NAMES)}, or all")
    return list(dict.fromkeys(names))


def table(
    cells: Sequence[CellResult], title: str, metric: Metric = "last", about: Sequence[str] = (),
    columns: str | Sequence[str] = (),
) -> Table:  # fmt: skip
    """The comparison's table: accuracy, clients' accuracy, and time and bytes relative to the first method.

    Where methods with a global model and with personal ones meet, both figures stand side by side, global methods
    first. Many rows are sorted by accuracy, few stay in the given order. `about`: notes on what was compared.
    `columns`: more figures of the last test, such as `macro_f1`.
    """
    if not cells:
        raise InputError("there are no runs to make a table of; give the cells that unskew.compare returns")
    given = list(dict.fromkeys(cell.method for cell in cells))
    first, key = given[0], _metric_key(metric, cells[0].summary)
    by_method = {name: [cell for cell in cells if cell.method == name] for name in given}
    own = [name for name in given if _has_own_models(by_method[name][0])]
    mixed = bool(own) and (len(own) < len(given) or any(_has_global(by_method[name][0].summary) for name in own))
    names = _order(by_method, own if mixed else [], key)

    def column(figure: Callable[[Row], float | None]) -> list[tuple[float, ...]]:
        found = [[figure(cell.summary) for cell in by_method[name]] for name in names]
        return [tuple(value for value in values if value is not None) for values in found]

    def relative(figure: Callable[[Row], float]) -> list[tuple[float, ...]]:
        return [_relative(figure, by_method[name], by_method[first]) for name in names]

    diverged = tuple(name for name in names if any(cell.summary["diverged"] for cell in by_method[name]))

    def rank(values: list[tuple[float, ...]], higher_is_better: bool = True) -> list[Mark]:
        # the figures of a run that diverged are those of the model that it happened to stop with
        ranked = [() if name in diverged else own for name, own in zip(names, values, strict=True)]
        return mark_best(ranked, higher_is_better)

    listed = isinstance(columns, (list, tuple)) and all(isinstance(name, str) for name in columns)
    more = read_columns(",".join(columns) if listed else columns)  # type: ignore[arg-type]

    ranked: list[tuple[str, list[tuple[float, ...]]]] = [
        *(
            [("global %", column(lambda s: _global_accuracy(s, key))), ("personal %", column(lambda s: _own(s, key)))]
            if mixed
            else [("accuracy %", column(lambda s: 100 * s["accuracy"][key] if key in s["accuracy"] else None))]
        ),
        ("clients %", column(lambda s: 100 * s["personal"]["mean"] if s["personal"] else None)),
        ("worst %", column(lambda s: 100 * s["personal"]["worst_decile"] if s["personal"] else None)),
    ]
    unranked: list[tuple[str, list[tuple[float, ...]]]] = [
        ("time ×", relative(lambda s: s["seconds"]["clients"])),
        ("bytes ×", relative(lambda s: float(s["bytes_up"] + s["bytes_down"]))),
        *_rounds_to([by_method[name] for name in names], by_method[first]),
    ]
    blank: list[Mark] = [""] * len(names)
    kinds: dict[str, Callable[[Row], Row]] = (
        {"global ": _global_figures, "personal ": _own_figures} if mixed else {"": lambda s: s.get("figures") or {}}
    )
    beyond = [
        (f"{kind}{NAMES[name]} %", column(partial(_beyond, name, pick)), name)
        for name in more
        for kind, pick in kinds.items()
    ]
    figures = [
        *((*each, rank(each[1])) for each in ranked),
        *((heading, values, rank(values, name not in LOWER_IS_BETTER)) for heading, values, name in beyond),
        *((*each, blank) for each in unranked),
    ]
    rows = tuple(
        (name, tuple(Cell(values[number], marks[number], "×" in column) for column, values, marks in figures))
        for number, name in enumerate(names)
    )
    notes = [
        *about,
        *_explain_accuracy(key, mixed, bool(own), len({cell.seed for cell in cells})),
        "clients and worst: mean over clients and over the worst tenth of them, each on its own test set, last round",
        *_explain_beyond(more, mixed, bool(own), any("figures" not in cell.summary for cell in cells)),
        f"time × and bytes ×: the clients' seconds of work and the traffic of a round, relative to {first}",
        *(f"wire: {', '.join(wire)}" for wire in [cells[0].summary.get("wire")] if wire),
        *_rounds_to_notes(cells, first),
        *(["methods that diverged are not ranked"] if diverged else []),
        *(
            f"{cell.method}, seed {cell.seed}: went on with changed code after round {change['round']}"
            for cell in cells
            for change in cell.summary.get("code_changes", [])
        ),
        *(_explain_divergence(cell) for cell in cells if cell.summary["diverged"]),
    ]
    return Table(
        title,
        columns=tuple(name for name, _, _ in figures),
        rows=rows,
        notes=tuple(notes),
        personal=tuple(name for name in own if not _has_global(by_method[name][0].summary)) if mixed else (),
        metric=metric,
        runs=tuple(cell.folder.name for cell in cells if cell.folder is not None),
        diverged=diverged,
        own=tuple(own) if mixed else (),
    )


def list_figures(cells: Sequence[CellResult], metric: Metric = "last") -> dict[str, dict[str, dict[int, float]]]:
    """What methods are judged by, under the table's headings: method → seed → per cent; none that diverged."""
    given = list(dict.fromkeys(cell.method for cell in cells))
    key = _metric_key(metric, cells[0].summary)
    own = [cell for cell in cells if _has_own_models(cell)]
    mixed = bool(own) and (len({cell.method for cell in own}) < len(given) or any(_has_global(c.summary) for c in own))
    diverged = {cell.method for cell in cells if cell.summary["diverged"]}
    kinds: dict[str, Callable[[Row], float | None]] = (
        {"global %": lambda s: _global_accuracy(s, key), "personal %": lambda s: _own(s, key)}
        if mixed
        else {"accuracy %": lambda s: 100 * s["accuracy"][key] if key in s["accuracy"] else None}
    )
    found: dict[str, dict[str, dict[int, float]]] = {}
    for heading, read in kinds.items():
        for cell in cells:
            value = read(cell.summary)
            if value is not None and cell.method not in diverged:
                found.setdefault(heading, {}).setdefault(cell.method, {})[cell.seed] = value
    return found


def _order(by_method: Mapping[str, list[CellResult]], own: Sequence[str], key: str) -> list[str]:
    """Methods with a global model alone, then the others; many by accuracy, few in the given order."""

    def place(name: str) -> tuple[bool, float]:
        if len(by_method) <= MANY:
            return name in own, 0.0
        find = _own if name in own else _global_accuracy
        found = [value for cell in by_method[name] if (value := find(cell.summary, key)) is not None]
        return name in own, -sum(found) / len(found) if found else 0.0

    return sorted(by_method, key=place)


def _explain_accuracy(key: str, mixed: bool, personal: bool, seeds: int) -> list[str]:
    how = f"{key.replace('_', ' ')}; mean ± sample standard deviation, {count_of(seeds, 'seed')}"
    if not mixed:
        where = "pooled over the clients' own test sets" if personal else "on the global test set"
        return [f"accuracy: {where}, {how}"]
    return [
        f"global: the global model on the global test set, {how}",
        "personal: the models that clients use, pooled over the clients' own test sets"
        + ("" if key == "last" else "; – for a global model, which clients test in the last round only"),
    ]


def _beyond(name: str, pick: Callable[[Row], Row], summary: Row) -> float | None:
    """A figure beyond accuracy; None where the run did not record it, or it is not defined."""
    value = pick(summary).get(name)
    return None if value is None else 100 * value


def _global_figures(summary: Row) -> Row:
    return (summary.get("figures") or {}) if _has_global(summary) else {}


def _own_figures(summary: Row) -> Row:
    return summary.get("personal_figures" if _has_global(summary) else "figures") or {}


def _explain_beyond(more: Sequence[str], mixed: bool, personal: bool, old: bool) -> list[str]:
    if not more:
        return []
    own = "of clients' own models, pooled over their test sets"
    whose = f"global: of the global model; personal: {own}" if mixed else own if personal else "of the global model"
    missing = "; – also for runs of a version that did not record them" if old else ""
    return [f"{', '.join(NAMES[name] for name in more)}: {whose}, last round{missing}"]


def _explain_divergence(cell: CellResult) -> str:
    summary = cell.summary
    where = f" in round {summary['diverged_in']}" if summary.get("diverged_in") else ""
    stopped = " and stopped there" if summary.get("stopped") else ""
    return f"{cell.method}, seed {cell.seed}: diverged{where}{stopped}; its figures are those of its last finite model"


def _has_global(summary: Row) -> bool:
    return str(summary.get("accuracy_of", GLOBAL)).startswith(GLOBAL)


def _has_own_models(cell: CellResult) -> bool:
    """Whether clients use other models than the global one."""
    if cell.output:
        return cell.output != "global"
    return not _has_global(cell.summary) or "personal_accuracy" in cell.summary


def _global_accuracy(summary: Row, key: str) -> float | None:
    figures = summary["accuracy"] if _has_global(summary) else {}
    return 100 * figures[key] if key in figures else None


def _own(summary: Row, key: str) -> float | None:
    """Of the models that clients use: a figure beside the global one, the method's only one, or its last test's."""
    figures = summary.get("personal_accuracy", {}) if _has_global(summary) else summary["accuracy"]
    if not figures and key == "last" and summary["personal"]:
        figures = {"last": summary["personal"]["pooled"]}
    return 100 * figures[key] if key in figures else None


def _rounds_to(
    methods: list[list[CellResult]], reference: list[CellResult]
) -> list[tuple[str, list[tuple[float, ...]]]]:
    """Columns of the measure `rounds_to`: rounds to each target, and the speed-up over the first method (by seed)."""

    def reached(cell: CellResult, target: str) -> float | None:
        found: float | None = cell.summary.get("measures", {}).get("rounds_to", {}).get(target)
        return found

    def by_seed(cells: list[CellResult], target: str) -> dict[int, float]:
        return {cell.seed: n for cell in cells if (n := reached(cell, target)) is not None}

    columns = []
    for target in reference[0].summary.get("measures", {}).get("rounds_to", {}):
        rounds, first = [by_seed(cells, target) for cells in methods], by_seed(reference, target)
        speed = [tuple(first[seed] / n for seed, n in own.items() if seed in first) for own in rounds]
        share = f"{100 * float(target):g} %"
        columns += [(f"rounds to {share}", [tuple(own.values()) for own in rounds]), (f"speed-up to {share}", speed)]
    return columns


def _rounds_to_notes(cells: Sequence[CellResult], first: str) -> list[str]:
    if not cells[0].summary.get("measures", {}).get("rounds_to"):
        return []
    last = count_of(cells[0].summary["rounds"], "round")
    return [f"rounds to: over the seeds that reach it within {last} (–: none does); speed-up: over {first}"]


def _metric_key(metric: Metric, summary: Row) -> str:
    if not isinstance(metric, str):
        raise InputError(f"metric: expected a text such as 'last', got {metric!r}")
    names = {"last_10_percent": "last_10_percent_mean"}
    key = names.get(metric, metric)
    if metric == "last_k":
        key = next(name for name in summary["accuracy"] if name.startswith("last_") and name.endswith("_mean"))
    if key not in summary["accuracy"]:
        raise InputError(f"there is no figure '{metric}'; best_on_validation needs --validation 0.1 or so")
    return key


def _relative(
    figure: Callable[[Row], float], cells: Sequence[CellResult], reference: Sequence[CellResult]
) -> tuple[float, ...]:
    """Each seed's figure of a round over the first method's under the same seed; one of them may be further."""

    def of_a_round(cell: CellResult) -> float:
        return figure(cell.summary) / (cell.summary.get("rounds") or 1)

    one = {cell.seed: of_a_round(cell) for cell in reference}
    return tuple(of_a_round(cell) / one[cell.seed] for cell in cells if one.get(cell.seed, 0) > 0)
