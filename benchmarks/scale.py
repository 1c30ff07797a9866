"""What does size cost? Time and memory against clients, cohort and model, and memory over many rounds.

    python -m benchmarks.scale [--axes clients cohort model growth] [--methods fedavg scaffold] [--executor serial]
                               [--split "virtual(samples=18)"] [--largest N] [--rounds N] [--out scale.json]

    clients   10^2 to 10^6 clients exist, 10 take part in a round: cost must not grow with those that exist
    cohort    10 to 1000 of 10^4 clients take part
    model     10^4 to 10^7 parameters (an MLP with two hidden layers), 10 of 100 clients take part
    growth    the sizes of W2 for 200 rounds: memory must not grow with the rounds

All other sizes are W2's. Each point is measured in a process of its own; the picture is written beside the JSON.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks import measure
from benchmarks.scale_plot import plot
from benchmarks.workloads import EXECUTORS, W2

AXES = {
    "clients": ("clients that exist (10 in a round)", (10**2, 10**3, 10**4, 10**5, 10**6)),
    "cohort": ("clients in a round (of 10,000)", (10, 30, 100, 300, 1000)),
    "model": ("parameters of the model (10 of 100 clients)", (10**4, 10**5, 10**6, 10**7)),
    "growth": ("rounds", (200,)),
}
"""What each axis is called, and its sizes."""
WARMUP = 3
GROWTH_EVERY = 5
"""Rounds between looks at the memory on the axis `growth`."""


def changes(axis: str, size: int, split: str) -> dict[str, Any]:
    """How a point differs from W2."""
    if axis == "clients":
        return {"clients": size, **_dealt(split, size)}
    if axis == "cohort":
        return {"clients": 10_000, "cohort": size, **_dealt(split, 10_000)}
    if axis == "model":
        return {"model": f"mlp(hidden=[{_width(size)}, {_width(size)}])"}
    return {}


def _dealt(split: str, clients: int) -> dict[str, Any]:
    """A virtual split needs no more samples for more clients; any other one deals each client its own."""
    return {"split": split, "total": 100 * W2.samples if split.startswith("virtual") else clients * W2.samples}


def _width(parameters: int) -> int:
    """The hidden width h with h*h + 76h + 10 parameters in all: 64 inputs, two hidden layers, 10 classes."""
    return max(1, round(math.sqrt(38**2 + parameters - 10) - 38))


def points(wanted: argparse.Namespace) -> Iterator[tuple[str, int, str]]:
    """Axis, size and method of each point."""
    for axis in wanted.axes:
        for method in wanted.methods:
            yield from ((axis, size, method) for size in AXES[axis][1] if size <= wanted.largest)


def measure_point(axis: str, size: int, method: str, wanted: argparse.Namespace) -> dict[str, Any]:
    """One row: start-up, median round, peak memory."""
    rounds = size if axis == "growth" else WARMUP + wanted.rounds
    spec = {
        "workload": "W2", "method": method, "executor": wanted.executor, "rounds": rounds,
        "changes": changes(axis, size, wanted.split), "memory_every": GROWTH_EVERY if axis == "growth" else 0,
    }  # fmt: skip
    facts = measure.in_own_process(measure.python("benchmarks.child", **spec), wanted.timeout)
    row: dict[str, Any] = {"axis": axis, "size": size, "method": method}
    if "ends" not in facts:
        return row | {"reason": facts.get("refused") or facts["failed"]}
    row |= measure.spread(measure.round_times(facts, WARMUP))
    row |= {"startup": measure.startup(facts), "peak_pss": facts["peak_pss"], "parameters": facts["parameters"]}
    return row | ({"memory": facts["memory"], "growth": _growth(facts["memory"])} if facts["memory"] else {})


def _growth(memory: list[int]) -> float:
    """Memory over the last fifth of the rounds against the second fifth, as a share; the first fifth warms up."""
    fifth = len(memory) // 5
    return statistics.median(memory[-fifth:]) / statistics.median(memory[fifth : 2 * fifth]) - 1


def show(rows: list[dict[str, Any]], console: Console) -> None:
    """A table an axis; `×` and `+` are against the smallest size of the same method."""
    for axis in dict.fromkeys(row["axis"] for row in rows):
        table = Table(title=AXES[axis][0], title_justify="left", box=box.SIMPLE_HEAD)
        for head in ("size", "method", "s/round", "quartiles", "× first", "start-up s", "PSS MiB", "+ MiB"):
            table.add_column(head, justify="left" if head == "method" else "right", no_wrap=True)
        table.add_column("", overflow="fold")
        first: dict[str, dict[str, Any]] = {}
        for row in (row for row in rows if row["axis"] == axis):
            if "median" not in row:
                table.add_row(f"{row['size']:,}", row["method"], *[""] * 6, escape(row["reason"]))
                continue
            base = first.setdefault(row["method"], row)
            low, high = row["quartiles"]
            table.add_row(
                f"{row['size']:,}", row["method"], f"{row['median']:.4f}", f"{low:.4f} to {high:.4f}",
                f"{row['median'] / base['median']:.2f}", f"{row['startup']:.2f}", f"{row['peak_pss'] / 2**20:.0f}",
                f"{(row['peak_pss'] - base['peak_pss']) / 2**20:+.0f}",
                f"memory {row['growth']:+.1%} over the rounds" if "growth" in row else "",
            )  # fmt: skip
        console.print(table)


def main() -> None:
    """Measures, prints, writes, draws."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--axes", nargs="+", choices=AXES, default=list(AXES))
    parser.add_argument("--methods", nargs="+", default=["fedavg", "scaffold"])
    parser.add_argument("--executor", choices=EXECUTORS, default="serial")
    parser.add_argument("--split", default="virtual(samples=18)")
    parser.add_argument("--largest", type=int, default=10**7, help="leaves out sizes above this one")
    parser.add_argument("--rounds", type=int, default=20, help="timed rounds of each point")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds after which a point is given up")
    parser.add_argument("--out", type=Path, default=Path("scale.json"), help="the picture has the suffix .png")
    wanted = parser.parse_args()
    about = measure.machine()
    todo, rows = list(points(wanted)), []
    for number, (axis, size, method) in enumerate(todo):
        print(f"{number + 1}/{len(todo)}: {axis} {size:,} {method} ...", end=" ", flush=True)
        rows.append(row := measure_point(axis, size, method, wanted))
        print(row.get("reason") or f"{row['median']:.4g} s a round, {row['peak_pss'] / 2**20:.0f} MiB", flush=True)
    about["load_after"] = os.getloadavg()[0]
    measure.write_json(wanted.out, {"machine": about, "executor": wanted.executor, "rows": rows})
    console = Console(width=None if os.isatty(1) else 150)
    show(rows, console)
    picture = wanted.out.with_suffix(".png")
    plot(rows, {axis: AXES[axis][0] for axis in ("clients", "cohort", "model")}, picture, _title(about, wanted))
    console.print(f"all figures: {wanted.out}, picture: {picture}")


def _title(about: measure.Facts, wanted: argparse.Namespace) -> str:
    return f"executor {wanted.executor} · {about['cpu']}, {about['cores']} cores · torch {about['torch']}"


if __name__ == "__main__":
    main()
