"""Is any method far below FedAvg on real data? One sanity table of all of them (docs/field.md).

    python -m benchmarks.field --data FOLDER [--out runs/field] [--only global|personal] [--processes 2]

Global methods on a part of Fashion-MNIST, personal ones on USPS, clients' labels Dirichlet(0.1). Every method gets the
same budget: each learning rate of the grid once, with a seed of its own and judged on samples held out of the training
data; then the best rate with three fresh seeds, judged on the test data. Finished runs are read back, so that a cut
off measurement goes on with the same command.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks import measure
from unskew.base.errors import InputError
from unskew.data.dataset import Dataset, Samples
from unskew.data.files.finder import Finder
from unskew.methods.catalogue import by_family
from unskew.registries import sources
from unskew.runs import api
from unskew.runs.field import expand

RATES = (0.01, 0.03, 0.1, 0.3)
TUNING, SEEDS = 100, (0, 1, 2)
LAST = 5
"""A global model's figure is the mean over so many last rounds: single ones jump by several points."""
FAR = 5.0
"""Points below FedAvg from which on a method is marked."""


class SmallCnn(nn.Module):
    """Two 3x3 convolutions of stride 2 (16, 32), a hidden layer of 64: about a tenth of the FedAvg CNN's work."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        side = (shape[1] + 3) // 4
        self.body = nn.Sequential(
            nn.Conv2d(shape[0], 16, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(32 * side * side, 64), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(64, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores."""
        scores: torch.Tensor = self.head(self.body(x))
        return scores


@dataclass(frozen=True)
class Part:
    """One of the two tables."""

    data: str
    train: int
    test: int
    word: str
    tuning: Mapping[str, Any]
    """How a rate is judged: on held-out training samples."""
    final: Mapping[str, Any]
    """How the chosen rate is judged: on test samples."""
    options: Mapping[str, Any]

    def judge(self, rounds: list[dict[str, Any]], tuning: bool) -> float:
        """The figure of a run that counts, in per cent."""
        if self.word == "all-personal":
            return 100 * float(rounds[-1]["personal"]["pooled"])
        return 100 * statistics.mean(row["validation" if tuning else "accuracy"] for row in rounds[-LAST:])


COMMON = {"split": "dirichlet:0.1", "clients": 20, "sample": 0.5, "epochs": 3, "batch": 32, "executor": "serial"}
PARTS = {
    "global": Part(
        "fashion_mnist", 4000, 2000, "all-global", {"validation": 0.15, "local_test": "none"}, {"local_test": "none"},
        {**COMMON, "rounds": 20},
    ),
    "personal": Part(
        "usps", 7291, 2007, "all-personal", {"local_test": "holdout"}, {"local_test": "proportional"},
        {**COMMON, "rounds": 20, "eval_every": 20, "clients_every": 20},
    ),
}  # fmt: skip


@functools.lru_cache(maxsize=2)
def load(kind: str) -> Dataset:
    """The first samples of a part's data set."""
    part = PARTS[kind]
    whole = sources.build(part.data).load(Finder(None, offline=True))
    train = Samples(whole.train.x[: part.train], whole.train.y[: part.train])
    test = Samples(whole.test.x[: part.test], whole.test.y[: part.test])
    return Dataset(part.data, train, test, whole.classes, whole.mean, whole.std)


def play(job: tuple[str, str, float, int, str]) -> dict[str, Any]:
    """One run, or what an earlier one left."""
    kind, method, rate, seed, folder = job
    part, tuning = PARTS[kind], seed == TUNING
    done = Path(folder) / f"{kind}-{method}-{rate}-{seed}.json".replace("/", "-")
    if done.exists():
        return dict(json.loads(done.read_text()))
    torch.set_num_threads(1)
    data = load(kind)
    torch.manual_seed(0)
    how = {**part.options, **(part.tuning if tuning else part.final)}
    row: dict[str, Any] = {"kind": kind, "method": method, "rate": rate, "seed": seed}
    try:
        net = SmallCnn(tuple(data.train.x.shape[1:]), len(data.classes))
        result = api.run(method, data=data, model=net, head="head", lr=rate, seed=seed, **how)
        row |= {"figure": part.judge(result.rounds, tuning), "seconds": result.summary["seconds"]["clients"]}
    except InputError as error:
        row["refused"] = str(error)
    except Exception as error:
        row["failed"] = f"{type(error).__name__}: {error}"  # a diverged run, for instance: it is said in the table
    done.write_text(json.dumps(row))
    return row


def choose(rows: Iterable[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Of every method the row with the best figure on held-out data."""
    best: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        key = (row["kind"], row["method"])
        if "figure" in row and row["figure"] > best.get(key, {"figure": -1.0})["figure"]:
            best[key] = row
    return best


def table(kind: str, tuned: list[dict[str, Any]], rows: list[dict[str, Any]]) -> str:
    """The Markdown table of one part, best first."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["kind"] == kind and "figure" in row:
            found.setdefault(row["method"], []).append(row)
    means = {method: statistics.mean(row["figure"] for row in own) for method, own in found.items()}
    plain = {row["seed"]: row["figure"] for row in found.get("fedavg", [])}
    lines = ["| method | lr | accuracy % | minus FedAvg's, by seed | validation % by lr |", "|---|---|---|---|---|"]
    for method in sorted(means, key=lambda name: -means[name]):
        own = sorted(found[method], key=lambda row: row["seed"])
        spread = statistics.stdev(row["figure"] for row in own) if len(own) > 1 else 0.0
        gaps = ", ".join(f"{row['figure'] - plain[row['seed']]:+.1f}" for row in own if row["seed"] in plain)
        tried = {row["rate"]: row for row in tuned if row["kind"] == kind and row["method"] == method}
        grid = " / ".join(f"{tried[rate]['figure']:.1f}" if "figure" in tried.get(rate, {}) else "–" for rate in RATES)
        mark = " (!)" if plain and means[method] < statistics.mean(plain.values()) - FAR else ""
        lines.append(f"| `{method}`{mark} | {own[0]['rate']} | {means[method]:.1f} ± {spread:.1f} | {gaps} | {grid} |")
    for row in tuned:
        if row["kind"] == kind and "refused" in row and row["rate"] == RATES[0]:
            lines.append(f"| `{row['method']}` | | refused: {row['refused']} | | |")
    return "\n".join(lines)


def main() -> None:
    """Runs what is missing, prints the tables, writes them beside the runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the data sets; default: UNSKEW_DATA")
    parser.add_argument("--out", type=Path, default=measure.ROOT / "runs" / "field")
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--methods", nargs="+", help="only these")
    parser.add_argument("--processes", type=int, default=2)
    wanted = parser.parse_args()
    if wanted.data:
        os.environ["UNSKEW_DATA"] = str(wanted.data)
    wanted.out.mkdir(parents=True, exist_ok=True)
    kinds = [wanted.only] if wanted.only else list(PARTS)
    families = by_family()["condensing"]  # a visit of theirs takes as long as twenty of FedAvg's: docs/claims.md
    listed = {k: [str(each) for each in expand([PARTS[k].word]) if each.name not in families] for k in kinds}
    if wanted.methods:
        listed = {kind: [name for name in names if name in wanted.methods] for kind, names in listed.items()}
    out = str(wanted.out)
    first = [(kind, method, rate, TUNING, out) for kind in kinds for method in listed[kind] for rate in RATES]
    with multiprocessing.get_context("spawn").Pool(wanted.processes, maxtasksperchild=20) as pool:
        tuned = _work(pool, first)
        best = choose(tuned)
        then = [(*key, row["rate"], seed, out) for key, row in best.items() for seed in SEEDS]
        rows = _work(pool, then)
    text = "\n\n".join(f"{kind}\n\n{table(kind, tuned, rows)}" for kind in kinds)
    (wanted.out / "tables.md").write_text(text + "\n")
    print(text)


def _work(pool: Any, jobs: list[Any]) -> list[dict[str, Any]]:
    found = []
    for number, row in enumerate(pool.imap(play, jobs), 1):
        shown = f"{row['figure']:.2f} %" if "figure" in row else row.get("refused") or row["failed"]
        print(f"{number}/{len(jobs)} {row['method']} lr {row['rate']} seed {row['seed']}: {shown}", flush=True)
        found.append(row)
    return found


if __name__ == "__main__":
    main()
