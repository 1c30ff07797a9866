"""The parts of a report, each from the runs of one setting; None or empty where there is nothing to show."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unskew.base.errors import let_pass
from unskew.base.text import count_of
from unskew.measures import measures as known_measures
from unskew.measures.figures import worst_share_mean
from unskew.report.reading import ReadRun
from unskew.runs.folder import Row

MOST_POINTS = 300
"""Of a curve with more, evenly spaced ones are drawn."""
MOST_COLUMNS = 40
"""Rounds in a heat map of many methods."""
MOST_CLASSES = 100
MOST_LISTED = 200

Values = list[float | None]
ByMethod = Mapping[str, Sequence[ReadRun]]


@dataclass(frozen=True)
class Axis:
    """Where the points of a method's curves stand: rounds, and bytes and seconds up to them, means over seeds."""

    rounds: list[int]
    bytes: Values
    seconds: Values


@dataclass(frozen=True)
class Quantity:
    """A figure over rounds: method → a list for each seed, along the method's axis."""

    key: str
    label: str
    percent: bool
    curves: dict[str, list[Values]]


@dataclass(frozen=True)
class Box:
    """The accuracies of a method's clients over all seeds, in per cent."""

    five: list[float]
    """Least, quartiles, greatest."""
    worst_tenth: float
    worst: list[float]
    """The clients in the worst tenth, one by one."""
    clients: int


@dataclass(frozen=True)
class ClassMap:
    """Accuracy by class (rows) and round (columns) in per mille, means over seeds; and what was forgotten."""

    rounds: list[int]
    accuracy: list[list[int | None]]
    forgotten: list[list[int | None]]


@dataclass(frozen=True)
class Measured:
    """A figure that was recorded: over rounds, by layer and round, or as a list."""

    name: str
    reading: str
    curves: dict[str, list[tuple[int, float]]]
    layers: dict[str, LayerMap]
    lists: dict[str, list[float]]


@dataclass(frozen=True)
class LayerMap:
    """A number for each layer (rows) and round (columns); `chosen`: (column, row) of layers that were chosen."""

    rounds: list[int]
    layers: list[str]
    values: list[Values]
    chosen: list[tuple[int, int]]


@dataclass(frozen=True)
class Visit:
    """A client's weight in the merged model of a round."""

    round: int
    client: int
    share: float
    samples: int | None
    trace: float | None
    straggler: bool


@dataclass(frozen=True)
class Image:
    """A condensed image, as grey or red, green, blue values of 0 to 255."""

    label: str
    width: int
    height: int
    channels: int
    pixels: list[int]


@dataclass(frozen=True)
class Notice:
    """Something that went on beside the figures."""

    method: str
    seed: int | None
    text: str
    serious: bool = False


def shorten(value: float | None, digits: int = 5) -> float | None:
    """A number with so many digits that matter; None where it is not finite."""
    return None if value is None or not np.isfinite(value) else float(f"{value:.{digits}g}")


def thin(values: Sequence[int], most: int) -> list[int]:
    """All values, or `most` of them evenly spaced, the last one included."""
    if len(values) <= most:
        return list(values)
    return [values[place] for place in np.unique(np.linspace(0, len(values) - 1, most).round().astype(int)).tolist()]


# ------------------------------------------------------------------------------------------ curves


def find_axis(runs: Sequence[ReadRun]) -> Axis:
    """The rounds of a method's curves; of very many those that were tested."""
    rounds = sorted({row["round"] for run in runs for row in run.rounds})
    if len(rounds) > MOST_POINTS:
        tested = {row["round"] for run in runs for row in run.rounds if "accuracy" in row or "personal" in row}
        rounds = thin(sorted(tested) or rounds, MOST_POINTS)
    sent = [_add_up(run.rounds, lambda row: row.get("bytes_up", 0) + row.get("bytes_down", 0)) for run in runs]
    worked = [_add_up(run.rounds, _work) for run in runs]
    return Axis(rounds, _mean_at(rounds, sent), _mean_at(rounds, worked))


def _work(row: Row) -> float:
    return _spent(row, "clients") + _spent(row, "aggregate")


def _spent(row: Row, kind: str) -> float:
    return float(row.get("seconds", {}).get(kind, 0.0))


def _add_up(rows: Iterable[Row], of: Any) -> dict[int, float]:
    total, found = 0.0, {}
    for row in rows:
        total += of(row)
        found[row["round"]] = total
    return found


def _mean_at(rounds: Sequence[int], seeds: Sequence[Mapping[int, float | None]]) -> Values:
    """The mean over the seeds that have a value there; None where none has."""
    found: Values = []
    for number in rounds:
        values = [value for own in seeds if (value := own.get(number)) is not None]
        found.append(shorten(float(np.mean(values))) if values else None)
    return found


def list_quantities(methods: ByMethod, axes: Mapping[str, Axis], first: str) -> list[Quantity]:
    """What can be drawn over rounds: accuracies of global and of clients' own models, losses."""
    mixed = any(runs[0].output != "global" for runs in methods.values())
    kinds: list[tuple[str, str, Any, Any]] = [
        ("accuracy", "global model" if mixed else "accuracy", lambda row: row.get("accuracy"),
         lambda name, run: run.output != "tuned"),
        ("personal", "models that clients use", lambda row: (row.get("personal") or {}).get("pooled"),
         lambda name, run: run.output != "global" or (mixed and name == first)),
        ("loss", "test loss", lambda row: row.get("loss"), lambda name, run: run.output != "tuned"),
        ("train_loss", "training loss", lambda row: row.get("train_loss"), lambda name, run: True),
    ]  # fmt: skip
    found = []
    for key, label, read, takes in kinds:
        percent, curves = key in ("accuracy", "personal"), {}
        for name, runs in methods.items():
            if takes(name, runs[0]):
                seeds = [_read_along(run.rounds, read, axes[name].rounds, percent) for run in runs]
                if any(value is not None for own in seeds for value in own):
                    curves[name] = seeds
        if curves:
            found.append(Quantity(key, label, percent, curves))
    return found


def _read_along(rows: Sequence[Row], read: Any, rounds: Sequence[int], percent: bool) -> Values:
    known = {row["round"]: read(row) for row in rows}
    values = [known.get(number) for number in rounds]
    return [None if v is None else round(100 * v, 2) if percent else shorten(v) for v in values]


# ------------------------------------------------------------------------------------ clients, classes


def box_clients(runs: Sequence[ReadRun]) -> Box | None:
    """The distribution over all clients and seeds; the worst tenth is each run's, as in the table."""
    each = [run.accuracies for run in runs if run.accuracies]
    if not each:
        return None
    values = 100 * np.concatenate(each)
    worst = [sorted(own)[: max(1, int(0.1 * len(own) + 1e-9))] for own in each]
    return Box(
        [round(float(v), 2) for v in np.percentile(values, [0, 25, 50, 75, 100])],
        round(100 * float(np.mean([worst_share_mean(own) for own in each])), 2),
        [round(100 * v, 1) for own in worst for v in own][:100], len(values),
    )  # fmt: skip


def map_classes(runs: Sequence[ReadRun], most: int = MOST_COLUMNS) -> ClassMap | None:
    """Accuracy by class and round, and the best so far minus that, each seed by itself, then the mean over seeds."""
    tables = []
    for run in runs:
        rows = {row["round"]: row["class_accuracy"] for row in run.rounds if row["round"] and row.get("class_accuracy")}
        if rows:
            tables.append(rows)
    sizes = {len(row) for rows in tables for row in rows.values()}
    if len(sizes) != 1 or max(sizes) > MOST_CLASSES:
        return None
    rounds = thin(sorted(set.intersection(*map(set, tables))), most)
    if len(rounds) < 2:
        return None
    now, lost = [], []
    for rows in tables:
        numbers = sorted(rows)
        table = np.array([rows[number] for number in numbers], dtype=np.float64)  # None becomes NaN
        gone = np.maximum.accumulate(np.nan_to_num(table), axis=0) - table
        places = [numbers.index(number) for number in rounds]
        now.append(table[places])
        lost.append(gone[places])
    return ClassMap(rounds, _per_mille(np.mean(now, axis=0)), _per_mille(np.mean(lost, axis=0)))


def _per_mille(table: Any) -> list[list[int | None]]:
    """Rows are classes."""
    return [[None if np.isnan(v) else round(1000 * float(v)) for v in column] for column in table.T]


# ------------------------------------------------------------------------------------------ measures


def list_measured(methods: ByMethod) -> list[Measured]:
    """Every figure that the runs' measures recorded."""
    names = dict.fromkeys(
        name for runs in methods.values() for run in runs for row in run.rounds for name in row.get("measures") or {}
    )
    found = []
    for name in names:
        if name == CONDENSED:
            continue
        curves, layers, lists = {}, {}, {}
        for method, runs in methods.items():
            rows = [
                [(row["round"], row["measures"].get(name)) for row in run.rounds if row.get("measures")] for run in runs
            ]
            seeds = [{number: float(v) for number, v in own if isinstance(v, (int, float))} for own in rows]
            if any(seeds):
                rounds = thin(sorted(set().union(*seeds)), MOST_POINTS)
                means = _mean_at(rounds, seeds)
                curves[method] = [(n, v) for n, v in zip(rounds, means, strict=True) if v is not None]
            tables = [(number, value) for number, value in rows[0] if isinstance(value, dict)]
            if tables:
                layers[method] = _map_layers(tables)
            listed = [value for _, value in rows[0] if isinstance(value, list)]
            if listed:
                lists[method] = [v for v in map(_number, listed[-1][:MOST_LISTED]) if v is not None]
        if curves or layers or lists:
            found.append(Measured(name, find_reading(name), curves, layers, lists))
    return found


def find_reading(figure: str) -> str:
    """How to read a figure, as its measure says; empty for one of the user's own."""
    plain = figure.removeprefix("projector_")
    for name in known_measures:
        reading = getattr(known_measures.get(name), "reading", {})
        for each in (plain, plain.rstrip("_0123456789")):  # hessian_1, hessian_2 …
            if each in reading:
                return str(reading[each])
    return ""


def _map_layers(
    tables: Sequence[tuple[int, Mapping[str, Any]]], chosen: Mapping[int, Sequence[str]] | None = None
) -> LayerMap:
    rounds = thin([number for number, _ in tables], MOST_POINTS // 3)
    known = dict(tables)
    layers = list(dict.fromkeys([*(layer for _, own in tables for layer in own),
                                 *(layer for own in (chosen or {}).values() for layer in own)]))  # fmt: skip
    values = [[_number(known[number].get(layer)) for number in rounds] for layer in layers]
    marks = [(rounds.index(number), layers.index(layer)) for number, own in (chosen or {}).items()
             if number in rounds for layer in own]  # fmt: skip
    return LayerMap(rounds, layers, values, marks)


def _number(value: Any) -> float | None:
    return shorten(float(value), 4) if isinstance(value, (int, float)) else None


# ------------------------------------------------------------------------------------- single methods


def map_feedback(run: ReadRun) -> LayerMap | None:
    """FLFA: the agreement of clients' updates by layer and round, and the layers that feedback was in."""
    noted = {row["round"]: row["method"] for row in run.rounds if _has_feedback(row.get("method") or {})}
    if not noted:
        return None
    tables = [(number, own.get("similarity") or {}) for number, own in noted.items()]
    return _map_layers(tables, {number: own["feedback_layers"] for number, own in noted.items()})


def _has_feedback(noted: Row) -> bool:
    """Whether this is what FLFA notes; a method of the user's may note something else under its names."""
    layers = noted.get("feedback_layers")
    named = isinstance(layers, list) and all(isinstance(layer, str) for layer in layers)
    return named and isinstance(noted.get("similarity") or {}, dict)


def list_visits(run: ReadRun) -> list[Visit]:
    """FedAS: the weight of every visit."""
    return [
        Visit(row["round"], row["client"], float(shorten(row["share"], 4) or 0), row.get("samples"),
              _number(row["fisher_alpha"]), bool(row.get("straggler")))
        for row in run.weighed if row.get("share") is not None
    ]  # fmt: skip


CONDENSED = "condensed"
"""The figure that holds condensed images."""


def list_images(run: ReadRun) -> list[Image]:
    """FedAF and FedDM: an image of each class, if the run recorded some."""
    recorded = [row["measures"][CONDENSED] for row in run.rounds if (row.get("measures") or {}).get(CONDENSED)]
    if not recorded:
        return []
    images = recorded[-1].items() if isinstance(recorded[-1], dict) else ()
    return [found for label, own in images if (found := _read_image(label, own, run.classes)) is not None]


def _read_image(label: str, own: Any, classes: Sequence[str]) -> Image | None:
    """An image as the measure writes it; a measure of the user's may have its name."""
    try:
        (channels, height, width), pixels = own["shape"], own["pixels"]
        name = classes[int(label)] if int(label) < len(classes) else label
        whole = min(height, width) > 0 and len(pixels) == channels * height * width
    except (TypeError, ValueError, KeyError) as error:
        let_pass(error)
        return None
    return Image(name, width, height, channels, pixels) if whole else None


def condenses(run: ReadRun) -> bool:
    """Whether clients of this method send images."""
    return run.method.startswith(("fedaf", "feddm"))


def add_seconds(runs: Sequence[ReadRun]) -> dict[str, float]:
    """Where the seconds went, means over seeds."""
    kinds = ("local", "aggregate", "evaluate", "measure")
    totals = {kind: [sum(_spent(row, kind) for row in run.rounds) for run in runs] for kind in kinds}
    return {kind: round(float(np.mean(own)), 3) for kind, own in totals.items() if any(own)}


def list_notices(runs: Sequence[ReadRun]) -> list[Notice]:
    """What went wrong or was left out: unfinished runs, divergence, drop-outs, exclusions, changed code."""
    return [notice for run in runs for notice in _tell(run)]


def _tell(run: ReadRun) -> Iterable[Notice]:
    def say(text: str, serious: bool = False) -> Notice:
        return Notice(run.method, run.seed, text, serious)

    if not run.finished:
        yield say(
            f"not finished: {run.done} of {run.about['rounds']} rounds; "
            f"'unskew resume {shlex.quote(str(run.path))}' continues it",
            True,
        )
    diverged = [row["round"] for row in run.rounds if row.get("diverged")]
    stopped = next((row["stopped"] for row in run.rounds if "stopped" in row), None)
    if diverged:
        end = f" and stopped there: {stopped}" if stopped else f", in {len(diverged)} rounds" * (len(diverged) > 1)
        yield say(f"diverged in round {diverged[0]}{end}; its figures are those of its last finite model", True)
    excluded = [(row["round"], row["excluded"], row.get("faults") or {}) for row in run.rounds if row.get("excluded")]
    if excluded:
        why = ", ".join(dict.fromkeys(str(text) for _, _, faults in excluded for text in faults.values()))
        total = count_of(sum(len(clients) for _, clients, _ in excluded), "reply", "replies")
        when = f"in {count_of(len(excluded), 'round')}, the first in round {excluded[0][0]}"
        yield say(f"{total} left out {when}" + f": {why}" * bool(why), True)
    dropped = [len(row["dropped"]) for row in run.rounds if row.get("dropped")]
    if dropped:
        sent = sum(len(row.get("clients", ())) for row in run.rounds)
        yield say(f"{sum(dropped)} of {sent} replies did not come (drop-outs), in {count_of(len(dropped), 'round')}")
    noted = [(row.get("method") or {}).get("feedback_no_op_rounds") for row in run.rounds]
    if idle := max((number for number in noted if isinstance(number, int)), default=0):
        when = count_of(idle, "round")
        yield say(f"in {when} the layers that FLFA chose had nothing trained below them: feedback changed nothing")
    for change in run.options.get("code_changes", []):
        yield say(f"went on with changed code after round {change['round']}", True)
    for each in run.options.get("extended", []):
        differs = "" if each["same"] else ", not as a run of that length from the start"
        yield say(f"extended from {each['rounds']} rounds, after round {each['after']}{differs}", not each["same"])
