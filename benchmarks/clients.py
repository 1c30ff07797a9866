"""Does the cost grow with the clients that exist, or with those sampled? Memory and time of 10² and 10⁵ clients.

    python -m benchmarks.clients [--clients 100 100000] [--rounds 30] [--methods fedavg scaffold]

Each size runs in a process of its own on the same 200,000 random 28x28 images, 10 clients a round, 20 steps of two
samples each, so that the work per client is equal. Prints one JSON object a line; times are medians
over rounds after the first three.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import statistics
import subprocess
import sys
import time

SAMPLES = 200_000


def measure(method: str, clients: int, rounds: int, executor: str) -> dict[str, float | str]:
    """Start-up, median round and peak memory of one run in this process."""
    import torch

    from unskew import engine
    from unskew.config import from_table
    from unskew.data.dataset import Dataset, Samples

    rng = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (SAMPLES, 1, 28, 28), generator=rng, dtype=torch.uint8)
    samples = Samples(x, torch.arange(SAMPLES) % 10)
    test = Samples(x[:1000], samples.y[:1000])
    data = Dataset("random", samples, test, tuple("0123456789"), (0.5,), (0.5,))
    run = from_table(
        {
            "method": method, "clients": clients, "split": "iid", "sample": 10 / clients, "rounds": rounds,
            "model": "fedavg_cnn", "local": {"steps": 20, "batch": 2, "lr": 0.01},
            "evaluation": {"local_test": "none"}, "execution": {"executor": executor},
        }
    )  # fmt: skip
    began = time.perf_counter()
    ends: list[float] = []
    engine.run(run, dataset=data, watch=lambda row: ends.append(time.perf_counter()))
    times = [after - before for before, after in itertools.pairwise(ends[3:])]
    return {
        "method": method,
        "clients": clients,
        "executor": executor,
        "startup_s": round(ends[0] - began, 2),
        "round_s": round(statistics.median(times), 4),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }


def main() -> None:
    """Runs each size in its own process and prints the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 100_000])
    parser.add_argument("--methods", nargs="+", default=["fedavg", "scaffold"])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--executor", default="serial")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.one:
        print(json.dumps(measure(wanted.methods[0], wanted.clients[0], wanted.rounds, wanted.executor)))
        return
    for method in wanted.methods:
        results = []
        for clients in wanted.clients:
            command = [
                sys.executable,
                "-m",
                "benchmarks.clients",
                "--one",
                "--methods",
                method,
                "--clients",
                str(clients),
            ]
            command += ["--rounds", str(wanted.rounds), "--executor", wanted.executor]
            results.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
            print(json.dumps(results[-1]))
        small, large = results[0], results[-1]
        print(f"{method}: round time × {large['round_s'] / small['round_s']:.3f}, "
              f"memory {large['peak_mb'] - small['peak_mb']:+.0f} MB")  # fmt: skip


if __name__ == "__main__":
    main()
