"""How fast is a round, against the same arithmetic without any federated learning?

    python -m benchmarks.engine [--workloads W1 W2] [--methods fedavg fedprox scaffold]
                                [--executors serial pool stacked stacked+compile auto ray] [--bare bare]
                                [--rounds N] [--repeats N] [--out results.json]

The combinations are interleaved: repeat 1 of all, then repeat 2 of all, so that a change of the machine's speed meets
all of them. Each is measured in a process of its own. An executor that refuses is a row that says why.
"""

from __future__ import annotations

import argparse
import os
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks import bare, measure
from benchmarks.workloads import EXECUTORS, WORKLOADS

REFERENCE = "bare"


class Combination(NamedTuple):
    """What one row measures; a bare loop has no method."""

    workload: str
    method: str
    executor: str

    def __str__(self) -> str:
        return " ".join(part for part in self if part)


def combinations(wanted: argparse.Namespace) -> list[Combination]:
    """All rows, in the order of the table."""
    rows = []
    for workload in wanted.workloads:
        rows += [Combination(workload, "", variant) for variant in wanted.bare]
        rows += [Combination(workload, method, name) for name in wanted.executors for method in wanted.methods]
    return rows


def measure_all(wanted: argparse.Namespace) -> dict[Combination, list[measure.Facts]]:
    """The facts of every repeat; says what it is doing."""
    rows = combinations(wanted)
    facts: dict[Combination, list[measure.Facts]] = {row: [] for row in rows}
    for repeat in range(wanted.repeats):
        for number, row in enumerate(rows):
            place = f"repeat {repeat + 1}/{wanted.repeats}, {number + 1:>{len(str(len(rows)))}}/{len(rows)}"
            if facts[row] and not facts[row][-1].get("ends"):
                continue  # it will be refused again
            print(f"{place}: {row} ...", end=" ", flush=True)
            facts[row].append(_measure_one(row, wanted))
            print(_in_brief(facts[row][-1], row), flush=True)
    return facts


def _measure_one(row: Combination, wanted: argparse.Namespace) -> measure.Facts:
    workload = WORKLOADS[row.workload]
    rounds = workload.warmup + (wanted.rounds or workload.rounds)
    spec = {"workload": row.workload, "method": row.method, "executor": row.executor, "rounds": rounds}
    return measure.in_own_process(measure.python("benchmarks.child", **spec), wanted.timeout)


def _in_brief(facts: measure.Facts, row: Combination) -> str:
    if "ends" not in facts:
        return str(facts.get("refused") or facts["failed"])
    median = statistics.median(measure.round_times(facts, WORKLOADS[row.workload].warmup))
    return f"{median:.4g} s a round, {facts['peak_pss'] / 2**20:.0f} MiB"


def figures(row: Combination, facts: dict[Combination, list[measure.Facts]]) -> dict[str, Any]:
    """A row of the results: times over all repeats, ratios within each repeat."""
    about: dict[str, Any] = row._asdict()
    runs = [run for run in facts[row] if "ends" in run]
    if len(runs) < len(facts[row]):
        last = facts[row][-1]
        about["reason"] = last.get("refused") or last["failed"]
    if not runs:
        return about
    warmup = WORKLOADS[row.workload].warmup
    times = [measure.round_times(run, warmup) for run in runs]
    about |= measure.spread([time for run in times for time in run])
    about["medians"] = [statistics.median(run) for run in times]
    about["to_bare"] = _ratio(about["medians"], facts.get(Combination(row.workload, "", REFERENCE), []), warmup)
    fedavg = Combination(row.workload, "fedavg", row.executor) if row.method else row
    about["to_fedavg"] = _ratio(about["medians"], facts.get(fedavg, []), warmup) if row.method else None
    about["startup"] = statistics.median(measure.startup(run) for run in runs)
    about["imports"] = statistics.median(run["began"] - run["spawned"] for run in runs)
    about["first_round"] = statistics.median(run["ends"][1] - run["ends"][0] for run in runs)
    about["peak_pss"] = max(run["peak_pss"] for run in runs)
    about["execution"] = runs[-1].get("execution")
    return about


def _ratio(medians: list[float], reference: list[measure.Facts], warmup: int) -> float | None:
    """The median over repeats of the ratio within a repeat: both were measured minutes apart, not hours."""
    others = [statistics.median(measure.round_times(run, warmup)) for run in reference if "ends" in run]
    pairs = list(zip(medians, others, strict=False))
    return statistics.median(own / other for own, other in pairs) if pairs else None


def show(rows: list[dict[str, Any]], console: Console) -> None:
    """The table; one a workload."""
    for name in dict.fromkeys(row["workload"] for row in rows):
        table = Table(title=f"{name}: {WORKLOADS[name].about}", title_justify="left", box=box.SIMPLE_HEAD)
        table.add_column("executor", no_wrap=True)
        table.add_column("method", no_wrap=True)
        heads = ("s/round", "quartiles", "mean", "rounds/s", "× bare", "× fedavg", "start-up s", "first s", "PSS MiB")
        for head in heads:
            table.add_column(head, justify="right", no_wrap=True)
        table.add_column("", overflow="fold")
        for row in (row for row in rows if row["workload"] == name):
            table.add_row(*_cells(row, len(heads)))
        console.print(table)


def _cells(row: dict[str, Any], width: int) -> list[str]:
    reason = escape(row.get("reason", ""))  # brackets are not markup
    if "median" not in row:
        return [row["executor"], row["method"], *[""] * width, reason]
    chosen = (row["execution"] or {}).get("executor", row["executor"])
    picked = f"auto: {chosen}" if row["executor"] == "auto" and chosen != "auto" else row["executor"]
    low, high = row["quartiles"]
    return [
        picked, row["method"], _seconds(row["median"]), f"{_seconds(low)} to {_seconds(high)}", _seconds(row["mean"]),
        f"{1 / row['median']:.3g}", _times(row["to_bare"]), _times(row["to_fedavg"]), f"{row['startup']:.2f}",
        _seconds(row["first_round"]), f"{row['peak_pss'] / 2**20:.0f}", reason,
    ]  # fmt: skip


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value >= 1 else f"{value:.4f}"


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--methods", nargs="+", default=["fedavg", "fedprox", "scaffold"], help="any method's text")
    parser.add_argument(
        "--executors", nargs="*", choices=EXECUTORS, default=[name for name in EXECUTORS if name != "ray"]
    )
    parser.add_argument("--bare", nargs="*", choices=bare.VARIANTS, default=[REFERENCE], help="loops without FL")
    parser.add_argument("--rounds", type=int, default=0, help="timed rounds of each run; default: 3 of W1, 300 of W2")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=1800, help="seconds after which a run is given up")
    parser.add_argument("--out", type=Path, default=Path("results.json"))
    wanted = parser.parse_args()
    about = measure.machine()
    facts = measure_all(wanted)
    rows = [figures(row, facts) for row in facts]
    options = {key: value for key, value in vars(wanted).items() if key != "out"}
    about["load_after"] = os.getloadavg()[0]
    measure.write_json(wanted.out, {"machine": about, "options": options, "rows": rows})
    console = Console(width=None if os.isatty(1) else 180)
    show(rows, console)
    console.print(f"{about['cpu']}, {about['cores']} cores, {' '.join(about['flags'])}, torch {about['torch']}, "
                  f"1 thread a process; load {about['load_before']:.1f} before; all figures: {wanted.out}")  # fmt: skip


if __name__ == "__main__":
    main()
