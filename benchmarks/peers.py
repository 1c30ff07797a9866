"""Other simulators on the same arrays from the same initial weights; on request only, as it installs them.

    python -m benchmarks.peers --venvs DIR [--peers pfl flwr fedlab fedjax] [--workloads W1 W2]
                               [--executors pool stacked+compile] [--rounds N] [--repeats N] [--out peers.json]

Each peer is installed by pip into a virtual environment of its own under DIR (kept, and used again the next time) and
runs its own API through `benchmarks/peer_scripts/<peer>.py`. A peer that cannot be installed or fails is a row that
says why. Rows are interleaved as in `benchmarks.engine`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks import measure
from benchmarks.workloads import EXECUTORS, W2, WORKLOADS, Workload
from unskew.runs import building

TORCH = "torch>=2.6,<2.14"
PEERS = {
    "pfl": ("pfl[pytorch]", TORCH),
    "flwr": ("flwr[simulation]", TORCH),
    "fedlab": ("fedlab", TORCH),
    "fedjax": ("fedjax", "jax<0.6", "jaxlib<0.6"),  # it calls jax.tree_map, which later ones do not have
}
"""What pip is asked for."""
LAUNCHERS = {"pfl": ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(os.cpu_count() or 1))}
"""Peers that are several processes from the start."""
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "JAX_PLATFORMS": "cpu"}


class Row(NamedTuple):
    """A peer, or an executor of unskew, on a workload."""

    workload: str
    who: str


def install(peer: str, folder: Path) -> str:
    """Makes the environment if there is none; gives the reason if that fails."""
    place = folder / peer
    if (place / "ready").exists():
        return ""
    python = place / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PEERS[peer]]
    for command in ([sys.executable, "-m", "venv", str(place)], pip):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
            errors = [line for line in lines if line.startswith("ERROR")]
            return f"not installed: {(errors or lines or ['no output'])[0][:300]}"
    (place / "ready").touch()
    return ""


def save(workload: Workload, rounds: int, path: Path) -> None:
    """The arrays, client after client as unskew deals them, the initial weights and the settings."""
    data = workload.dataset()
    config = workload.run(data)
    partition = building.cut(config, data)
    owned = [np.asarray(partition[client]) for client in range(workload.clients)]
    order = np.concatenate(owned)
    weights = [value.detach().numpy() for value in building.build_model(config, data).parameters()]
    settings = {"momentum": 0.0, **workload.local, "cohort": workload.cohort, "rounds": rounds}
    arrays: dict[str, Any] = {f"weight_{number}": weight for number, weight in enumerate(weights)}
    np.savez(
        path, x=data.train.x.numpy()[order], y=data.train.y.numpy()[order], sizes=[len(own) for own in owned],
        test_x=data.test.x.numpy(), test_y=data.test.y.numpy(), settings=json.dumps(settings), weights=len(weights),
        **arrays,
    )  # fmt: skip


def measure_one(
    row: Row, rounds: int, arrays: Path, wanted: argparse.Namespace, changes: dict[str, Any] | None = None
) -> measure.Facts:
    """One row of one repeat; `changes` are those that the arrays were saved with."""
    if row.who in EXECUTORS:
        spec = {"workload": row.workload, "method": "fedavg", "executor": row.who, "rounds": rounds,
                "changes": changes or {}}  # fmt: skip
        return measure.in_own_process(measure.python("benchmarks.child", **spec), wanted.timeout)
    python = wanted.venvs.absolute() / row.who / "bin" / "python"
    script = ("-m", f"benchmarks.peer_scripts.{row.who}", str(arrays))
    environment = {**QUIET, "PYTHONPATH": str(measure.ROOT)}
    command = [str(python), *LAUNCHERS.get(row.who, ()), *script]
    return measure.in_own_process(command, wanted.timeout, environment)


def install_all(wanted: argparse.Namespace) -> dict[str, str]:
    """For each peer why it is missing, or nothing."""
    missing = {}
    for peer in wanted.peers:
        print(f"environment of {peer} ...", end=" ", flush=True)
        missing[peer] = install(peer, wanted.venvs)
        print(missing[peer] or "ready", flush=True)
    return missing


def check(wanted: argparse.Namespace, rounds: int = 3) -> None:
    """All clients of W2 take part with one batch each, so nothing is random: the test losses must agree."""
    missing = install_all(wanted)
    changes = {"cohort": W2.clients, "local": {**W2.local, "batch": W2.samples}}
    with tempfile.TemporaryDirectory(prefix="unskew-bench-") as folder:
        arrays = Path(folder) / "check.npz"
        save(dataclasses.replace(W2, **changes), rounds, arrays)  # type: ignore[arg-type]
        ours = measure_one(Row("W2", "serial"), rounds, arrays, wanted, changes)["losses"]
        print(f"unskew: test losses {ours}")
        for peer in (peer for peer in wanted.peers if not missing[peer]):
            facts = measure_one(Row("W2", peer), rounds, arrays, wanted)
            losses = facts.get("losses", [])
            # pfl does not test after its first round
            away = [abs(one - other) for one, other in zip(ours, losses, strict=False) if not math.isnan(other)]
            print(f"{peer}: largest difference {max(away):.1e}" if away else f"{peer}: {facts['failed']}", flush=True)


def measure_all(wanted: argparse.Namespace) -> dict[Row, list[measure.Facts]]:
    """Installs, saves the arrays, measures."""
    missing = install_all(wanted)
    rows = [Row(workload, who) for workload in wanted.workloads for who in (*wanted.executors, *wanted.peers)]
    facts: dict[Row, list[measure.Facts]] = {row: [] for row in rows}
    with tempfile.TemporaryDirectory(prefix="unskew-bench-") as folder:
        for name in wanted.workloads:
            save(WORKLOADS[name], _rounds(name, wanted), Path(folder) / f"{name}.npz")
        for repeat in range(wanted.repeats):
            for row in rows:
                if facts[row] and "ends" not in facts[row][-1]:
                    continue
                print(f"repeat {repeat + 1}/{wanted.repeats}: {row.workload} {row.who} ...", end=" ", flush=True)
                reason = missing.get(row.who)
                arrays, rounds = Path(folder) / f"{row.workload}.npz", _rounds(row.workload, wanted)
                facts[row].append({"failed": reason} if reason else measure_one(row, rounds, arrays, wanted))
                print(_in_brief(facts[row][-1], row.workload, wanted), flush=True)
    return facts


def _rounds(name: str, wanted: argparse.Namespace) -> int:
    return _warmup(name, wanted) + int(wanted.rounds or WORKLOADS[name].rounds)


def _warmup(name: str, wanted: argparse.Namespace) -> int:
    return int(WORKLOADS[name].warmup if wanted.warmup is None else wanted.warmup)


def _in_brief(facts: measure.Facts, name: str, wanted: argparse.Namespace) -> str:
    if "ends" not in facts:
        return str(facts.get("refused") or facts["failed"])
    median = statistics.median(measure.round_times(facts, _warmup(name, wanted)))
    return f"{median:.4g} s a round, {facts['peak_pss'] / 2**20:.0f} MiB, test loss {facts['losses'][-1]:.4f}"


def figures(row: Row, runs: list[measure.Facts], wanted: argparse.Namespace) -> dict[str, Any]:
    """A row of the results."""
    about: dict[str, Any] = row._asdict()
    good = [run for run in runs if "ends" in run]
    if not good:
        return about | {"reason": runs[-1].get("refused") or runs[-1]["failed"]}
    about |= measure.spread([t for run in good for t in measure.round_times(run, _warmup(row.workload, wanted))])
    about["ready"] = statistics.median(run["ends"][0] - run["spawned"] for run in good)
    about["peak_pss"] = max(run["peak_pss"] for run in good)
    return about | {"losses": [good[0]["losses"][k] for k in (0, -1)], "version": good[0].get("version", "")}


def show(rows: list[dict[str, Any]], console: Console) -> None:
    """A table a workload; `× best` is against the fastest row of unskew."""
    for name in dict.fromkeys(row["workload"] for row in rows):
        table = Table(title=f"{name}: {WORKLOADS[name].about}", title_justify="left", box=box.SIMPLE_HEAD)
        table.add_column("", no_wrap=True)
        for head in ("s/round", "quartiles", "rounds/s", "× best", "ready s", "PSS MiB", "loss first", "loss last"):
            table.add_column(head, justify="right", no_wrap=True)
        table.add_column("", overflow="fold")
        own = [row for row in rows if row["workload"] == name]
        best = min((row["median"] for row in own if row["who"] in EXECUTORS and "median" in row), default=None)
        for row in own:
            who = f"unskew {row['who']}" if row["who"] in EXECUTORS else f"{row['who']} {row.get('version', '')}"
            table.add_row(who, *(_cells(row, best) if "median" in row else [*[""] * 8, escape(row["reason"])]))
        console.print(table)


def _cells(row: dict[str, Any], best: float | None) -> list[str]:
    low, high = row["quartiles"]
    return [
        f"{row['median']:.4f}", f"{low:.4f} to {high:.4f}", f"{1 / row['median']:.3g}",
        f"{row['median'] / best:.2f}" if best else "", f"{row['ready']:.1f}", f"{row['peak_pss'] / 2**20:.0f}",
        *(f"{loss:.4f}" for loss in row["losses"]),
    ]  # fmt: skip


def main() -> None:
    """Installs, measures, prints, writes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--venvs", type=Path, required=True, help="folder for the peers' virtual environments")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--executors", nargs="*", choices=EXECUTORS, default=["pool", "stacked", "stacked+compile"])
    parser.add_argument("--rounds", type=int, default=0, help="timed rounds of each run; default: 3 of W1, 300 of W2")
    parser.add_argument("--warmup", type=int, default=None, help="rounds before those; default: 1 of W1, 30 of W2")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=1800, help="seconds after which a run is given up")
    parser.add_argument("--out", type=Path, default=Path("peers.json"))
    parser.add_argument("--check", action="store_true", help="only compare what they compute")
    wanted = parser.parse_args()
    wanted.venvs.mkdir(parents=True, exist_ok=True)
    if wanted.check:
        check(wanted)
        return
    about = measure.machine()
    facts = measure_all(wanted)
    rows = [figures(row, runs, wanted) for row, runs in facts.items()]
    measure.write_json(wanted.out, {"machine": about, "rows": rows})
    console = Console(width=None if os.isatty(1) else 160)
    show(rows, console)
    console.print(f"all figures: {wanted.out}")


if __name__ == "__main__":
    main()
