"""What do runs side by side gain? `compare --jobs 2` against `--jobs 1` on `serial` and on `pool`, a tiny network.

    python -m benchmarks.jobs [--rounds 150] [--repeats 2] [--out jobs.json]

The same comparison (four methods, MLP 64-64-10, ten clients) is made in three ways, one after the other in each repeat,
each time in a new folder and as a whole command, with imports, table and pictures. The tables must be equal, times
aside.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import measure

WAYS = {
    "--jobs 2": ["--jobs", "2"],
    "--jobs 1, serial": ["--jobs", "1"],
    "--jobs 1, pool": ["--jobs", "1", "--executor", "pool"],
}


def time_way(flags: list[str], rounds: int) -> tuple[float, list[list[str]]]:
    """Seconds of the command, and its table without the columns of times."""
    words = ["compare", "--methods", "fedavg,fedprox(mu=0.1),scaffold,fedper", "--seeds", "1", "--model", "mlp"]
    words += ["--clients", "10", "--rounds", str(rounds), "--format", "csv", "-q"]
    with tempfile.TemporaryDirectory(prefix="unskew-bench-") as folder:
        call = [sys.executable, "-m", "unskew", *words, *flags, "--out", str(Path(folder) / "c")]
        began = time.perf_counter()
        done = subprocess.run(call, cwd=measure.ROOT, check=True, capture_output=True, text=True)
        seconds = time.perf_counter() - began
    rows = list(csv.reader(io.StringIO(done.stdout)))
    kept = [place for place, name in enumerate(rows[0]) if not name.startswith("time")]
    return seconds, [[row[place] for place in kept] for row in rows]


def main() -> None:
    """Measures, prints seconds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path)
    wanted = parser.parse_args()
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    tables = []
    load = os.getloadavg()[0]
    for _ in range(wanted.repeats):
        for way, flags in WAYS.items():
            took, table = time_way(flags, wanted.rounds)
            seconds[way].append(took)
            tables.append(table)
            print(f"{way}: {took:.1f} s", flush=True)
    assert all(table == tables[0] for table in tables), "the tables differ"
    best = seconds["--jobs 2"]
    ratios = {way: statistics.median(a / b for a, b in zip(best, own, strict=True)) for way, own in seconds.items()}
    for way, ratio in ratios.items():
        print(f"--jobs 2 takes {ratio:.2f} of the time of {way}; equal tables")
    if wanted.out:
        facts = {"seconds": seconds, "ratios": ratios, "load_before": load, "rounds": wanted.rounds}
        wanted.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
