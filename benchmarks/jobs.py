"""What do runs side by side gain? `compare --jobs 2` against `--jobs 1` on `serial` and on `pool`, a tiny network.

    python -m benchmarks.jobs [--rounds 400] [--repeats 2] [--clients 100] [--sample 0.1] [--out jobs.json]

The same comparison (four methods, two seeds, MLP 64-64-10, digits dealt evenly) is made in three ways, one after the
other in each repeat, each time in a new folder and as a whole command, with imports, table and pictures. The tables
must be equal, times aside. By default ten of a hundred clients with 14 samples each work in a round, as in workload W2.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import resource
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


def time_way(flags: list[str], wanted: argparse.Namespace) -> tuple[float, float, list[list[str]]]:
    """Seconds of the command, those of the processor, and its table without the columns of times."""
    words = ["compare", "--methods", "fedavg,fedprox(mu=0.1),scaffold,fedavgm", "--seeds", "2", "--model", "mlp"]
    words += [
        "--local-test",
        "none",
        "--split",
        "iid",
        "--clients",
        str(wanted.clients),
        "--sample",
        str(wanted.sample),
    ]
    words += ["--rounds", str(wanted.rounds), "--format", "csv", "-q"]
    with tempfile.TemporaryDirectory(prefix="unskew-bench-") as folder:
        call = [sys.executable, "-m", "unskew", *words, *flags, "--out", str(Path(folder) / "c")]
        began, spent = time.perf_counter(), _processor_seconds()
        done = subprocess.run(call, cwd=measure.ROOT, check=True, capture_output=True, text=True)
        seconds, spent = time.perf_counter() - began, _processor_seconds() - spent
    rows = list(csv.reader(io.StringIO(done.stdout)))
    kept = [place for place, name in enumerate(rows[0]) if not name.startswith("time")]
    return seconds, spent, [[row[place] for place in kept] for row in rows]


def _processor_seconds() -> float:
    """Of all commands so far: on a busy machine they say what seconds do not."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measures, prints seconds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--sample", type=float, default=0.1)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path)
    wanted = parser.parse_args()
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    tables = []
    load = os.getloadavg()[0]
    for _ in range(wanted.repeats):
        for way, flags in WAYS.items():
            took, spent, table = time_way(flags, wanted)
            seconds[way].append(took)
            tables.append(table)
            print(f"{way}: {took:.1f} s, {spent:.1f} s of the processor", flush=True)
    assert all(table == tables[0] for table in tables), "the tables differ"
    best = seconds["--jobs 2"]
    ratios = {way: statistics.median(a / b for a, b in zip(best, own, strict=True)) for way, own in seconds.items()}
    for way, ratio in ratios.items():
        print(f"--jobs 2 takes {ratio:.2f} of the time of {way}; equal tables")
    if wanted.out:
        facts = {"seconds": seconds, "ratios": ratios, "load_before": load}
        facts |= {"rounds": wanted.rounds, "clients": wanted.clients, "sample": wanted.sample}
        wanted.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
