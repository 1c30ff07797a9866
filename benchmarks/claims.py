"""The curves behind docs/claims.md: kept as one file of figures, drawn as the page's pictures.

    python -m benchmarks.claims add fedsol_t2 FOLDER...    # takes in the runs in these folders, finished or not
    python -m benchmarks.claims draw                       # writes docs/images/claim_*.png

Runs take days and lie on machines that go; their curves stay in benchmarks/results/curves.csv, a row a tested round.
A run that is taken in again (further on by now) replaces its rows.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Sequence
from pathlib import Path

from unskew.report.curves import Curve, plot_curves
from unskew.runs.saved import SavedRun, find_runs

ROOT = Path(__file__).parents[1]
CURVES = ROOT / "benchmarks" / "results" / "curves.csv"
COLUMNS = ("claim", "method", "seed", "run", "round", "accuracy")
TITLES = {
    "fedas_t3": "FedAS's own cell: CIFAR-10, β = 0.1, P = 0.2 (each client's model)",
    "fedas_t4": "FedAS's parts: CIFAR-10, β = 0.1, P = 0.4 (clients' models)",
    "fedblade_t3": "FedBlade's parts: CIFAR-100 (8,000 samples), Dir(0.05), d = 512",
    "flfa_t1": "FLFA's own cell: BloodMNIST, MobileNetV2",
    "compose": "Do they compose? Fashion-MNIST (12,000 samples), Dir(0.1), three seeds",
    "fedsol_t2": "FedSOL's own cell: CIFAR-10, LDA 0.1, the first of 300 rounds",
    "fedsol_t2_005": "FedSOL's cell of the largest gap: CIFAR-10, LDA 0.05, the first of 300 rounds",
}
FIRST = {"fedas_t3": 8, "fedas_t4": 6}
"""Where lines lie within a point or two of each other, the steep first rounds are left out, so that they show apart."""
LAST = {"flfa_t1": 62}
"""Rounds that all of a claim's runs have, where one went on alone: the last figures would not compare."""

Row = dict[str, str]


def read_curves() -> list[Row]:
    """All rows that were kept so far."""
    with CURVES.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def add(claim: str, folders: Sequence[Path]) -> list[Row]:
    """The kept rows with those of these runs in the place of older ones."""
    runs = [run for folder in folders for run in find_runs(folder)]
    fresh = [row for run in runs for row in to_rows(claim, run)]
    renewed = {(row["claim"], row["run"]) for row in fresh}
    return [row for row in read_curves() if (row["claim"], row["run"]) not in renewed] + fresh


def to_rows(claim: str, run: SavedRun) -> list[Row]:
    """A row for each round of a run that was tested."""
    config = run.config
    about = {"claim": claim, "method": str(config.method), "seed": str(config.seed), "run": config.hash}
    return [{**about, "round": str(at), "accuracy": f"{value:.4f}"} for at, value in run.curve]


def draw(rows: Sequence[Row]) -> list[Path]:
    """Draws each claim's curves; where the pictures are."""
    made = []
    for claim, title in TITLES.items():
        curves: dict[str, dict[str, list[tuple[int, float]]]] = {}
        for row in rows:
            if row["claim"] == claim and FIRST.get(claim, 0) <= int(row["round"]) <= LAST.get(claim, 10**6):
                seeds = curves.setdefault(shorten(row["method"]) if claim == "compose" else row["method"], {})
                seeds.setdefault(row["seed"], []).append((int(row["round"]), float(row["accuracy"])))
        named: dict[str, list[Curve]] = {method: list(seeds.values()) for method, seeds in curves.items()}
        if named:
            made.append(ROOT / "docs" / "images" / f"claim_{claim}.png")
            plot_curves(named, made[-1], f"{title}, from round {FIRST[claim]} on" if claim in FIRST else title)
    return made


def shorten(method: str) -> str:
    """A nested method by its names alone: legends cut long ones where they differ."""
    names = re.findall(r"(?:^|inner=)(\w+)", method)
    return "(".join(names) + ")" * (len(names) - 1)


def main() -> None:
    """Takes runs in, or draws."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    adding = commands.add_parser("add")
    adding.add_argument("claim", choices=TITLES)
    adding.add_argument("folders", nargs="+", type=Path)
    commands.add_parser("draw")
    options = parser.parse_args()
    if options.command == "add":
        rows = add(options.claim, options.folders)
        with CURVES.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
        print(f"{CURVES.name} holds {len(rows)} rows")
        return
    for path in draw(read_curves()):
        print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
