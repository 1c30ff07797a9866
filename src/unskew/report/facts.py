"""All that a report says, as one value: gathered from run folders, ready to be written as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from unskew.base.errors import InputError
from unskew.base.text import count_of
from unskew.measures.statistics import Ranks, compare_ranks, paired_difference
from unskew.report import parts
from unskew.report.comparison import list_figures
from unskew.report.comparison import table as comparison_table
from unskew.report.headline import write_headline
from unskew.report.reading import FREE, Gathered, ReadRun, flatten
from unskew.report.tables import Cell, Table
from unskew.runs.comparison import CellResult, Metric
from unskew.runs.config import cohort_size
from unskew.runs.folder import Row
from unskew.runs.labels import Labels

BEST = 6
"""Of many methods, so many of the best have a colour, and the one that all are compared with."""
MANY = 8
MOST_SPLITS = 5
MOST_UNLIKE = 4

Triple = tuple[float, float | None, float | None, int]


@dataclass(frozen=True)
class MethodFacts:
    """A method in a setting."""

    name: str
    own: bool
    """Whether clients have models of their own."""
    colour: int
    """Its place among the colours; -1: grey among many."""
    seeds: list[int]


@dataclass(frozen=True)
class Setting:
    """Runs on the same data, split, model and number of rounds."""

    title: str
    headline: list[str]
    table: Table | None
    methods: list[MethodFacts]
    differences: dict[str, dict[str, dict[str, Triple]]]
    """Heading → reference → method → mean, low, high, pairs."""
    axes: dict[str, parts.Axis]
    quantities: list[parts.Quantity]
    splits: dict[str, Labels]
    """By seed."""
    boxes: dict[str, parts.Box]
    classes: list[str]
    class_maps: dict[str, parts.ClassMap]
    measured: list[parts.Measured]
    feedback: dict[str, parts.LayerMap]
    weights: dict[str, list[parts.Visit]]
    images: dict[str, list[parts.Image]]
    unseen_images: list[str]
    """Methods that condense images and did not record any."""
    seconds: dict[str, dict[str, float]]
    notices: list[parts.Notice]
    run_files: dict[str, str]
    runs: list[Row]


@dataclass(frozen=True)
class Facts:
    """A whole report."""

    title: str
    settings: list[Setting]
    ranks: dict[str, Ranks]
    """Heading → ranks over the settings, where there are several."""
    problems: list[str]
    unfinished: int


def make_facts(gathered: Gathered, table: Table | None = None) -> Facts:
    """The report's value; `table`: of a comparison that has made its own."""
    groups: dict[tuple[str, ...], list[ReadRun]] = {}
    for run in gathered.runs:
        groups.setdefault(run.setting, []).append(run)
    whole = len(groups) == 1
    made = [_make_setting(runs, gathered.tables, table if whole else None) for runs in groups.values()]
    settings = [setting for setting, _ in made]
    title = settings[0].title if whole else f"{count_of(len(gathered.runs), 'run')} in {len(settings)} settings"
    unfinished = sum(not run.finished for run in gathered.runs)
    return Facts(title, settings, _rank([figures for _, figures in made]), gathered.problems, unfinished)


Figures = Mapping[str, Mapping[str, Mapping[int, float]]]


def _make_setting(runs: Sequence[ReadRun], tables: Sequence[Row], table: Table | None) -> tuple[Setting, Figures]:
    names = list(dict.fromkeys(run.method for run in runs))
    methods = {name: sorted((run for run in runs if run.method == name), key=lambda run: run.seed) for name in names}
    title, own_tables = _title(runs), _find_tables(runs, tables)
    metric = _find_metric([table.metric] if table else [own["comparison"].get("metric") for own in own_tables])
    cells = [CellResult(run.method, run.seed, run.path.absolute(), run.summary, run.rounds, True, run.output)
             for run in runs if run.summary is not None]  # fmt: skip
    metric = metric if _has(metric, cells) else "last"
    figures = list_figures(cells, metric) if cells else {}
    if table is None and cells:
        table = _make_table(cells, title, metric, own_tables)
    axes = {name: parts.find_axis(own) for name, own in methods.items()}
    behind = [run for run in runs if not run.finished]
    if table is not None:
        table = replace(table, unfinished=tuple(dict.fromkeys(run.method for run in behind)))
    state = f", so far ({count_of(len(behind), 'run')} of {len(runs)} not finished)" if behind else ""
    gone = {cell.method for cell in cells if cell.summary["diverged"]}
    state = f" ({len(gone)} more diverged)" * bool(gone) + state
    firsts = {name: own[0] for name, own in methods.items()}
    heads = write_headline(figures, names[0], str(runs[0].about["data"]), state) or [_say_why_not(runs)]
    setting = Setting(
        title=title,
        headline=heads,
        table=table,
        methods=_describe(methods, figures),
        differences=_differ(figures),
        axes=axes,
        quantities=parts.list_quantities(methods, axes, names[0]),
        splits=_find_splits(runs),
        boxes=_keep({name: parts.box_clients(own) for name, own in methods.items()}),
        classes=next((run.classes for run in runs if run.classes), []),
        class_maps=_keep({name: parts.map_classes(own, _columns(len(names))) for name, own in methods.items()}),
        measured=parts.list_measured(methods),
        feedback=_keep({name: parts.map_feedback(run) for name, run in firsts.items()}),
        weights=_keep({name: parts.list_visits(run) for name, run in firsts.items()}),
        images=_keep({name: parts.list_images(run) for name, run in firsts.items()}),
        unseen_images=[name for name, run in firsts.items() if parts.condenses(run) and not parts.list_images(run)],
        seconds=_keep({name: parts.add_seconds(own) for name, own in methods.items()}),
        notices=[*_warn(methods, figures), *parts.list_notices(runs)],
        run_files={name: run.run_file for name, run in firsts.items()},
        runs=[_list_run(run) for run in runs],
    )
    return setting, figures


def _say_why_not(runs: Sequence[ReadRun]) -> str:
    """Why there is nothing to say about who won."""
    if any((run.summary or {}).get("diverged") for run in runs):
        return "The run diverged." if len(runs) == 1 else "Every run that was tested diverged."
    return "No round was tested yet."


def _columns(methods: int) -> int:
    """Rounds in the heat maps: fewer where there are many of them."""
    return parts.MOST_COLUMNS if methods > MANY else 2 * parts.MOST_COLUMNS


def _keep(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: own for name, own in found.items() if own}


def _title(runs: Sequence[ReadRun]) -> str:
    about, seeds = runs[0].about, len({run.seed for run in runs})
    clients, rounds = int(about["clients"]), int(about["rounds"])
    cohort = cohort_size(about["sample"], clients)
    each = "all" if cohort == clients else f"{cohort} of"
    return (
        f"{about['data']}, {about['split']}, {each} {count_of(clients, 'client')} a round, "
        f"{count_of(rounds, 'round')}, {about['model']}, {count_of(seeds, 'seed')}"
    )


def _list_run(run: ReadRun) -> Row:
    state = "not finished" if not run.finished else "diverged" if (run.summary or {}).get("diverged") else "finished"
    return {"folder": str(run.path), "method": run.method, "seed": run.seed, "rounds": run.done, "state": state}


# ---------------------------------------------------------------------------------------------- table


def _find_tables(runs: Sequence[ReadRun], tables: Sequence[Row]) -> list[Row]:
    """The comparisons that these runs are of."""
    names = {run.path.name for run in runs}
    return [table for table in tables if names.intersection(table["comparison"]["runs"])]


def _find_metric(said: Sequence[Any]) -> Metric:
    """What all comparisons name; the last round's accuracy where they differ."""
    known: tuple[Metric, ...] = get_args(Metric)
    return next((metric for metric in known if said and all(own == metric for own in said)), "last")


def _has(metric: Any, cells: Sequence[CellResult]) -> bool:
    try:
        return bool(cells) and bool(list_figures(cells, metric))
    except (InputError, StopIteration):
        return False


def _make_table(cells: Sequence[CellResult], title: str, metric: Metric, tables: Sequence[Row]) -> Table:
    """The comparison's table, with the columns that only the comparison itself knows, such as what was tuned."""
    made = comparison_table(cells, title, metric)
    if len(tables) != 1:
        return made
    written = {row.get("method"): row for row in tables[0]["rows"] if isinstance(row, dict)}
    known = {"method", "personal", "diverged", *made.columns}
    more = list(dict.fromkeys(key for row in written.values() for key in row if key not in known))
    if not more or not written.keys() >= {name for name, _ in made.rows}:
        return made
    rows = tuple((name, (*own, *(_read_cell(written[name].get(key)) for key in more))) for name, own in made.rows)
    said = {note.partition(":")[0] for note in made.notes}  # an earlier version may have said it in other words
    more_notes = [note for note in tables[0].get("notes", []) if isinstance(note, str)]
    notes = [note for note in more_notes if note.partition(":")[0] not in said]
    return replace(made, columns=(*made.columns, *more), rows=rows, notes=(*notes, *made.notes))


def _read_cell(value: Any) -> Cell:
    """A cell as table.json holds it."""
    if isinstance(value, dict) and isinstance(value.get("seeds"), list):
        mark = value.get("mark")
        return Cell(tuple(float(v) for v in value["seeds"]), mark if mark in ("best", "second") else "")
    return Cell((), words=value if isinstance(value, str) else "–")


# ----------------------------------------------------------------------------------------- statistics


def _differ(figures: Figures) -> dict[str, dict[str, dict[str, Triple]]]:
    """Every method against every other one, under the same seeds."""
    found: dict[str, dict[str, dict[str, Triple]]] = {}
    for heading, methods in figures.items():
        if len(methods) < 2:
            continue
        table: dict[str, dict[str, Triple]] = {}
        for reference, theirs in methods.items():
            pairs = {name: paired_difference(own, theirs) for name, own in methods.items() if name != reference}
            table[reference] = {
                name: (round(gap.mean, 3), gap.low and round(gap.low, 3), gap.high and round(gap.high, 3), gap.pairs)
                for name, gap in pairs.items() if gap is not None
            }  # fmt: skip
        found[heading] = table
    return found


def _rank(settings: Sequence[Figures]) -> dict[str, Ranks]:
    """Ranks of the methods that several settings share, for each kind of accuracy, over the settings that have it."""
    found = {}
    for heading in dict.fromkeys(heading for figures in settings for heading in figures):
        having = [figures[heading] for figures in settings if len(figures.get(heading, ())) > 1]
        shared = [name for name in having[0] if all(name in own for own in having)] if len(having) > 1 else []
        if len(shared) > 1:
            found[heading] = compare_ranks({name: [_mean(own[name]) for own in having] for name in shared})
    return found


def _mean(own: Mapping[int, float]) -> float:
    return sum(own.values()) / len(own)


def _describe(methods: parts.ByMethod, figures: Figures) -> list[MethodFacts]:
    """The methods in their order; of many, the first and the best of each kind have colours."""
    names = list(methods)
    coloured = names
    if len(names) > MANY:
        best = {name for own in figures.values() for name in sorted(own, key=lambda n: -_mean(own[n]))[:BEST]}
        coloured = [name for name in names if name in best or name == names[0]]
    return [
        MethodFacts(name, own[0].output != "global", coloured.index(name) if name in coloured else -1,
                    [run.seed for run in own])
        for name, own in methods.items()
    ]  # fmt: skip


def _warn(methods: parts.ByMethod, figures: Figures) -> list[parts.Notice]:
    """What limits the comparison as a whole."""
    found = []
    seeds = {name: {run.seed for run in own} for name, own in methods.items()}
    if len(methods) > 1 and len(set(map(frozenset, seeds.values()))) > 1:
        found.append(
            parts.Notice("", None, "not all methods have the same seeds: differences are over the shared ones")
        )
    if len(methods) > 1 and any(len(own) < 3 for kind in figures.values() for own in kind.values()):
        found.append(parts.Notice("", None, "fewer than three seeds: no interval can be given for differences"))
    if differing := _find_unlike([run for own in methods.values() for run in own]):
        told = "; ".join(f"{key} ({', '.join(values)})" for key, values in list(differing.items())[:MOST_UNLIKE])
        more = f" and {len(differing) - MOST_UNLIKE} more options" * (len(differing) > MOST_UNLIKE)
        serious = not all(key.startswith("local.") for key in differing)  # rates may have been tuned for each method
        found.append(parts.Notice("", None, f"runs differ in more than the method: {told}{more}", serious))
    splits: dict[int, set[str]] = {}
    for own in methods.values():
        for run in own:
            if run.summary and run.summary.get("split_hash"):
                splits.setdefault(run.seed, set()).add(run.summary["split_hash"])
    if unlike := sorted(seed for seed, hashes in splits.items() if len(hashes) > 1):
        found.append(
            parts.Notice("", unlike[0], "methods had different splits under this seed: they are not paired", True)
        )
    return found


def _find_unlike(runs: Sequence[ReadRun]) -> dict[str, list[str]]:
    """Options that are not the same in all runs, beside those that are meant to differ or that change no figure."""
    flat = [flatten(run.options) for run in runs]
    keys = dict.fromkeys(key for own in flat for key in own if not key.startswith(("method.", *FREE)))
    values = {key: list(dict.fromkeys(str(own.get(key, "-")) for own in flat)) for key in keys}
    return {key: own for key, own in values.items() if len(own) > 1}


def _find_splits(runs: Sequence[ReadRun]) -> dict[str, Labels]:
    found: dict[str, Labels] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        if run.labels is not None and str(run.seed) not in found and len(found) < MOST_SPLITS:
            found[str(run.seed)] = run.labels
    return found


def name_folder(paths: Sequence[Path]) -> str:
    """What the report is of, for the page's title."""
    return ", ".join(path.name or str(path) for path in paths[:3]) + "…" * (len(paths) > 3)
