"""What does a method cost at the client, against FedAvg (or its parent) on the same work?

    python -m benchmarks.methods [--data mnist] [--model fedavg_cnn] [--batch 64] [--epochs 5] [--repeats 9] [--out F]

One process, one thread, its CPU time. For each method two rounds are played with two clients first, so that messages
and states are those of a running federation (a chosen layer, prototypes, control variates, a previous local model).
Then one visit of the same client is timed again and again, methods in turn: each ratio is taken within one turn, and
the median over the turns is shown, with the quartiles.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import measure
from unskew.base.process import prepare_process
from unskew.core.jobs import Job
from unskew.core.round_loop import rounds
from unskew.data.dataset import Dataset
from unskew.data.sources import load
from unskew.executors.serial import Serial
from unskew.runs import building
from unskew.runs.client_store import StateStore
from unskew.runs.config import Run, from_table

PLAIN, AUGMENTED = "none", "fedsol_cifar"


@dataclass(frozen=True)
class Case:
    """One row: a method against another on the same work."""

    method: str
    against: str = "fedavg"
    most: float | None = None
    """The ratio it should not exceed."""
    printed: str = ""
    """What its paper prints."""
    augment: str = PLAIN


CASES = (
    Case("fedprox(mu=0.01)"),
    Case("flfa(fedavg)", most=1.03, printed="1.00 to 1.02"),
    Case('flfa(fedavg, select="fixed:head")', most=1.03, printed="1.00 to 1.02"),
    Case('flfa(fedavg, select="fixed:body.8")', most=1.03, printed="1.00 to 1.02"),
    Case('flfa(fedavg, select="fixed:body.4")', most=1.03, printed="1.00 to 1.02"),
    Case("fedsol", most=1.15, printed="1.33 + δ in FLOPs; 3.1 in FLFA's Table 1"),
    Case("fedsol", most=1.45, augment=AUGMENTED),
    Case("fedsol(where=all)", most=2.6),
    Case("fedetf"),
    Case("fedblade", against="fedetf", most=1.3),
    Case("fedper"),
    Case("fedas", against="fedper", most=1.5),
)


@lru_cache(maxsize=1)
def _loaded(data: str) -> Dataset:
    return load(data)


class Visit:
    """A client's visit in the middle of a run, ready to be repeated."""

    def __init__(self, config: Run, folder: Path) -> None:
        self.task = building.prepare(config, dataset=_loaded(str(config.data))).task
        store = StateStore(folder / str(abs(hash((str(config.method), str(config.augment))))))
        server = self.task.method.init(self.task.server_context(0))
        client = self.task.sample_cohort(2)[0]  # it has been here before when it is timed; the same for all methods
        for done in rounds(self.task, Serial(self.task), store, server, 1, 2):
            server = done.server
        s = self.task.server_context(3, (client,), server)
        self.job = Job("train", 3, client, self.task.method.download(s, server, client), store.get(client))

    def __call__(self) -> float:
        """Seconds of one visit, of this process alone: a neighbour on the machine then matters less."""
        began = time.process_time()
        self.task.work(self.job)
        return time.process_time() - began


def visits(wanted: argparse.Namespace, folder: Path) -> dict[tuple[str, str], Callable[[], float]]:
    """A repeatable visit for every method and augmentation that a row needs."""
    keys = {(name, case.augment) for case in CASES for name in (case.method, case.against)}
    base = {
        "data": wanted.data, "model": wanted.model, "split": "iid",
        "clients": wanted.clients, "sample": 2 / wanted.clients,
        "local": {"epochs": wanted.epochs, "batch": wanted.batch, "lr": 0.01, "momentum": 0.9},
        "execution": {"memory_format": wanted.memory_format},
    }  # fmt: skip
    return {key: Visit(from_table({**base, "method": key[0], "augment": key[1]}), folder) for key in sorted(keys)}


def timed(wanted: argparse.Namespace, folder: Path) -> dict[tuple[str, str], list[float]]:
    """Seconds of each visit in every turn; the first turn only warms up."""
    ready = visits(wanted, folder)
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in ready}
    try:
        for turn in range(wanted.repeats + 1):
            taken = {key: visit() for key, visit in ready.items()}
            for key, value in taken.items() if turn else ():
                seconds[key].append(value)
            print(f"turn {turn}/{wanted.repeats}" + (" (warm-up)" if turn == 0 else ""), flush=True)
    except KeyboardInterrupt:
        if not next(iter(seconds.values())):
            raise
        print("interrupted; the table is of the finished turns", flush=True)
    return seconds


def show(seconds: dict[tuple[str, str], list[float]]) -> list[dict[str, object]]:
    """The table, and its rows."""
    table = Table("method", "augment", "against", "ratio", "quartiles", "should be", "its paper")
    rows: list[dict[str, object]] = []
    for case in CASES:
        mine, theirs = seconds[case.method, case.augment], seconds[case.against, case.augment]
        ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
        spread = measure.spread(ratios)
        low, high = spread["quartiles"]
        goal = "" if case.most is None else f"≤ {case.most:g}"
        missed = case.most is not None and spread["median"] > case.most
        ratio = f"{spread['median']:.3f}" + (" (missed)" if missed else "")
        table.add_row(case.method, case.augment, case.against, ratio, f"{low:.3f} to {high:.3f}", goal, case.printed)
        rows.append({**vars(case), "ratio": spread, "seconds": statistics.median(mine)})
    Console(width=150, markup=False).print(table)
    return rows


def main() -> None:
    """Measures and shows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--model", default="fedavg_cnn")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--memory-format", default="channels_last", choices=("channels_last", "contiguous"))
    parser.add_argument("--out", type=Path)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="unskew-bench-") as folder, prepare_process(1):
        torch.set_num_threads(1)
        rows = show(timed(wanted, Path(folder)))
    if wanted.out:
        measure.write_json(wanted.out, {"machine": measure.machine(), "rows": rows})


if __name__ == "__main__":
    main()
