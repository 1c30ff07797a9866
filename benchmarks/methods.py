"""What does a method cost at the client, against FedAvg (or its parent) on the same work?

    python -m benchmarks.methods [--data mnist] [--model fedavg_cnn] [--batch 64] [--epochs 5] [--repeats 9]
                                 [--only all|papers|fedprox,...] [--out F]

One process, one thread, its CPU time. For each method two rounds are played with two clients first, so that messages
and states are those of a running federation (a chosen layer, prototypes, control variates, a previous local model).
Then one visit of the same client is timed again and again, statistics before training included. In every turn each
method's visit stands between two of the method that it is compared with; the ratio is to their mean, and the median
over the turns is shown, with the quartiles.

`--only all` (the default) takes the papers' rows below and every registered method at its defaults against FedAvg;
`--out src/unskew/methods/costs.json` writes what `unskew methods` then shows, beside what is there of other methods.
Condensation, whose defaults take hours, is measured with the small budget of `unskew compare --methods all`, which the
file says.
"""

from __future__ import annotations

import argparse
import json
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
from unskew.base.errors import InputError
from unskew.base.process import prepare_process
from unskew.core.jobs import Job
from unskew.core.method import methods
from unskew.core.round_loop import rounds
from unskew.data.dataset import Dataset
from unskew.data.sources import load
from unskew.executors.serial import Serial
from unskew.methods.catalogue import at_defaults
from unskew.runs import building
from unskew.runs.client_store import StateStore
from unskew.runs.config import Run, from_table
from unskew.runs.field import budget

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
    name: str = ""
    """The registered method whose defaults these are."""


GOALS = {
    **dict.fromkeys(("scaffold", "feddyn", "fedavgm", "fedacg", "fedprox", "fedrs", "fedlc", "fednova"), 1.1),
    "feddecorr": 1.15, "fedntd": 1.15, "moon": 1.3, "fedsam": 2.1, "fedasam": 2.1,
}  # fmt: skip
"""What a registered method should cost at most, at its defaults."""
CASES = (
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
        method, s = self.task.method, self.task.server_context(3, (client,), server)
        message = method.download(s, server, client)
        self.survey = Job("survey", 3, client, message, store.get(client)) if method.survey_reducers else None
        if self.survey is not None:
            reply = self.task.work(self.survey)
            merged = {name: how(s) for name, how in method.survey_reducers.items()}  # type: ignore[operator]
            for name, reducer in merged.items():
                reducer.add(reply.groups[name], reply)
            surveyed = method.digest(s, server, {name: reducer.result() for name, reducer in merged.items()})
            message = {**message, **method.brief(s, surveyed, client)}
        self.job = Job("train", 3, client, message, store.get(client))

    def __call__(self) -> float:
        """Seconds of one visit, of this process alone: a neighbour on the machine then matters less."""
        began = time.process_time()
        if self.survey is not None:
            self.task.work(self.survey)
        self.task.work(self.job)
        return time.process_time() - began


def list_cases(only: str) -> list[Case]:
    """The rows: the papers', every registered method at its defaults, or these names."""
    names = list(methods) if only in ("all", "papers") else only.split(",")
    own = [
        Case(str(budget(at_defaults(name))), name=name, most=GOALS.get(name))
        for name in names
        if only != "papers" and name != "fedavg"
    ]
    return [*(CASES if only in ("all", "papers") else ()), *own]


def visits(wanted: argparse.Namespace, folder: Path) -> dict[tuple[str, str], Callable[[], float]]:
    """A repeatable visit for every method and augmentation that a row needs."""
    keys = {(name, case.augment) for case in list_cases(wanted.only) for name in (case.method, case.against)}
    base = {
        "data": wanted.data, "model": wanted.model, "split": "iid",
        "clients": wanted.clients, "sample": 2 / wanted.clients,
        "local": {"epochs": wanted.epochs, "batch": wanted.batch, "lr": 0.01, "momentum": 0.9},
        "execution": {"memory_format": wanted.memory_format},
    }  # fmt: skip
    ready: dict[tuple[str, str], Callable[[], float]] = {}
    for key in sorted(keys):
        try:
            ready[key] = Visit(from_table({**base, "method": key[0], "augment": key[1]}), folder)
        except InputError as error:
            print(f"{key[0]} is left out: {error}", flush=True)
    return ready


Ratios = dict[Case, list[tuple[float, float]]]
"""For each row and turn: the ratio, and the seconds of its visit."""


def timed(wanted: argparse.Namespace, folder: Path) -> Ratios:
    """Every row in every turn, the visit between two of the one it is compared with; the first turn only warms up."""
    ready = visits(wanted, folder)
    cases = [
        case
        for case in list_cases(wanted.only)
        if {(case.method, case.augment), (case.against, case.augment)} <= ready.keys()
    ]
    found: Ratios = {case: [] for case in cases}
    try:
        for turn in range(wanted.repeats + 1):
            taken: dict[Case, tuple[float, float]] = {}
            before: tuple[tuple[str, str], float] | None = None
            for case in cases:
                reference = (case.against, case.augment)
                first = before[1] if before and before[0] == reference else ready[reference]()
                mine = ready[case.method, case.augment]()
                before = reference, ready[reference]()
                taken[case] = 2 * mine / (first + before[1]), mine
            for case, figures in taken.items() if turn else ():
                found[case].append(figures)
            print(f"turn {turn}/{wanted.repeats}" + (" (warm-up)" if turn == 0 else ""), flush=True)
    except KeyboardInterrupt:
        if not next(iter(found.values())):
            raise
        print("interrupted; the table is of the finished turns", flush=True)
    return found


def show(found: Ratios) -> list[dict[str, object]]:
    """The table, and its rows."""
    table = Table("method", "augment", "against", "ratio", "quartiles", "should be", "its paper")
    rows: list[dict[str, object]] = []
    for case, figures in found.items():
        spread = measure.spread([ratio for ratio, _ in figures])
        low, high = spread["quartiles"]
        goal = "" if case.most is None else f"≤ {case.most:g}"
        missed = case.most is not None and spread["median"] > case.most
        ratio = f"{spread['median']:.3f}" + (" (missed)" if missed else "")
        table.add_row(case.method, case.augment, case.against, ratio, f"{low:.3f} to {high:.3f}", goal, case.printed)
        rows.append({**vars(case), "ratio": spread, "seconds": statistics.median(seconds for _, seconds in figures)})
    Console(width=150, markup=False).print(table)
    return rows


def list_costs(rows: list[dict[str, object]]) -> dict[str, dict[str, object]]:
    """What `unskew methods` shows: the ratio of each registered method; `as`: not with its defaults."""
    costs: dict[str, dict[str, object]] = {"fedavg": {"ratio": 1.0, "quartiles": [1.0, 1.0]}}
    for row in rows:
        name, spread = str(row["name"]), row["ratio"]
        assert isinstance(spread, dict)
        if name:
            costs[name] = {"ratio": round(spread["median"], 3), "quartiles": [round(q, 3) for q in spread["quartiles"]]}
            if row["method"] != str(at_defaults(name)):
                costs[name]["as"] = row["method"]
    return costs


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
    parser.add_argument("--only", default="all", help="all, papers (the rows with goals), or names of methods")
    parser.add_argument("--out", type=Path)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="unskew-bench-") as folder, prepare_process(1):
        torch.set_num_threads(1)
        rows = show(timed(wanted, Path(folder)))
    if wanted.out:
        work = {key: value for key, value in vars(wanted).items() if key != "out"}
        known = json.loads(wanted.out.read_text())["methods"] if wanted.out.exists() else {}  # of other methods
        facts = {"machine": measure.machine(), "work": work, "methods": {**known, **list_costs(rows)}, "rows": rows}
        measure.write_json(wanted.out, facts)


if __name__ == "__main__":
    main()
