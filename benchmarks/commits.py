"""Is a round as fast as at another commit?

    python -m benchmarks.commits OLD [NEW] [--workloads W2] [--methods fedavg fedprox scaffold]
                                 [--executors serial pool stacked] [--turns 20] [--turn ROUNDS]
                                 [--pairs 1] [--out F]

Both commits play the same run at the same time, but in turns: while one plays some rounds the other waits. A machine
that becomes slower or faster, or has a neighbour, then meets both alike; processes measured one after the other differ
by half on some machines. Shown is the median over the turns of new / old, with the quartiles. With `--pairs` above 1
it is done again with so many fresh pairs of processes, since where a process's memory happens to lie makes several per
cent; a pair's ratio is that of each side's fastest twentieth of rounds, which a neighbour disturbs least, and shown are
the median and quartiles over the pairs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import measure
from benchmarks.engine import Combination
from benchmarks.workloads import EXECUTORS, WORKLOADS
from unskew import registries

NOW = "."
"""The working tree instead of a commit."""


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """The sources of a commit, in a folder for a while."""
    if commit == NOW:
        yield measure.ROOT / "src"
        return
    with tempfile.TemporaryDirectory(prefix="unskew-commit-") as folder:
        packed = subprocess.run(["git", "archive", commit, "src"], cwd=measure.ROOT, check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
        yield Path(folder) / "src"


class Side:
    """A run of one commit that plays when it is told to."""

    def __init__(self, row: Combination, source: Path, rounds: int, turn: int, warmup: int) -> None:
        personal = registries.methods.build(row.method).output == "personal"
        changes = {"local_test": "proportional"} if personal else {}
        spec = {**row._asdict(), "rounds": rounds, "turn": turn, "warmup": warmup, "changes": changes}
        self._process = subprocess.Popen(
            measure.python("benchmarks.child", **spec), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=measure.ROOT, env={**os.environ, "PYTHONPATH": str(source)},
        )  # fmt: skip
        self.row, self.source = row, source

    def wait(self) -> list[float]:
        """Seconds of each round of the turn that ends now."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.row} with {self.source} ended with code {self._process.wait()}")
        found = json.loads(line)
        if isinstance(found, dict):
            raise SystemExit(f"{self.row} with {self.source}: {found}")
        return [float(seconds) for seconds in found]

    def go(self) -> None:
        """Lets it play on."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """Stops it, wherever it is."""
        self._process.kill()
        self._process.wait()


Turn = tuple[list[float], list[float]]
"""Seconds of the rounds of (old, new)."""


def measure_turns(row: Combination, sources: tuple[Path, Path], turns: int, turn: int) -> list[Turn]:
    """For each turn the round times of (old, new); who begins changes from turn to turn."""
    workload = WORKLOADS[row.workload]
    rounds = workload.warmup + (turns + 1) * turn
    sides: list[Side] = []
    try:
        for source in sources:  # one after the other: the warm-up is not to be disturbed either
            sides.append(Side(row, source, rounds, turn, workload.warmup))
            sides[-1].wait()
        found = []
        for number in range(turns):
            times: dict[int, list[float]] = {}
            for place in (0, 1) if number % 2 == 0 else (1, 0):
                sides[place].go()
                times[place] = sides[place].wait()
            found.append((times[0], times[1]))
    finally:
        for side in sides:
            side.end()
    return found


def measure_pairs(row: Combination, sources: tuple[Path, Path], turns: int, turn: int, pairs: int) -> list[list[Turn]]:
    """The turns of each pair; which commit is started first changes from pair to pair."""
    found = []
    for number in range(pairs):
        if number % 2 == 0:
            found.append(measure_turns(row, sources, turns, turn))
        else:
            swapped = measure_turns(row, (sources[1], sources[0]), turns, turn)
            found.append([(old, new) for new, old in swapped])
    return found


def _undisturbed(times: list[float]) -> float:
    return sorted(times)[len(times) // 20]


def figures(row: Combination, pairs: list[list[Turn]]) -> dict[str, object]:
    """What is said of one row."""
    every = [[[time for turn in turns for time in turn[side]] for side in (0, 1)] for turns in pairs]
    if len(pairs) == 1:
        ratios = [statistics.median(new) / statistics.median(old) for old, new in pairs[0]]
    else:
        ratios = [_undisturbed(new) / _undisturbed(old) for old, new in every]
    seconds = [statistics.median(time for pair in every for time in pair[side]) for side in (0, 1)]
    return {**row._asdict(), "ratio": measure.spread(ratios), "seconds": seconds}


def show(rows: list[dict[str, object]], console: Console) -> None:
    """The table."""
    table = Table("workload", "executor", "method", "old ms", "new ms", "new / old", "quartiles")
    for row in rows:
        ratio, seconds = row["ratio"], row["seconds"]
        assert isinstance(ratio, dict) and isinstance(seconds, list)
        low, high = ratio["quartiles"]
        table.add_row(
            str(row["workload"]), str(row["executor"]), str(row["method"]), *(f"{1000 * s:.4g}" for s in seconds),
            f"{ratio['median']:.3f}", f"{low:.3f} to {high:.3f}",
        )  # fmt: skip
    console.print(table)


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new", nargs="?", default=NOW, help="default: the working tree")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=["W2"])
    parser.add_argument("--methods", nargs="+", default=["fedavg", "fedprox", "scaffold"])
    parser.add_argument("--executors", nargs="+", choices=EXECUTORS, default=["serial", "pool", "stacked"])
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--turn", type=int, default=0, help="rounds of a turn; default: 1 of W1, 20 of W2")
    parser.add_argument("--pairs", type=int, default=1, help="fresh pairs of processes; default: %(default)s")
    parser.add_argument("--out", type=Path)
    wanted = parser.parse_args()
    rows = [Combination(w, m, e) for w in wanted.workloads for e in wanted.executors for m in wanted.methods]
    about = measure.machine()
    found = []
    with checked_out(wanted.old) as old, checked_out(wanted.new) as new:
        for row in rows:
            turn = wanted.turn or max(1, WORKLOADS[row.workload].rounds // 15)
            found.append(figures(row, measure_pairs(row, (old, new), wanted.turns, turn, wanted.pairs)))
            print(f"{row}: {found[-1]['ratio']}", flush=True)
    if wanted.out:
        measure.write_json(wanted.out, {"machine": about, "old": wanted.old, "new": wanted.new, "rows": found})
    show(found, Console(width=120))


if __name__ == "__main__":
    main()
