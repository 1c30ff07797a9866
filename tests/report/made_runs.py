"""Run folders with made figures, to report on without training anything."""

import json
import math
import random
from functools import cache
from pathlib import Path

import unskew
from unskew.base import storage
from unskew.base.json_text import to_json
from unskew.runs.config import from_table
from unskew.runs.folder import RunFolder
from unskew.runs.summary import summarise_rows

CLASSES = 10


def make_run(
    folder: Path, method: str = "fedavg", seed: int = 0, last: float = 0.8, rounds: int = 6, *, finished: bool = True,
    clients: int = 8, output: str = "global", labels: bool = True, more=None, visits=(), data: str = "digits",
    options=None,
) -> Path:  # fmt: skip
    """A run whose accuracy rises to `last`; `more(row)`: what else a round's row holds."""
    rng = random.Random(f"{method}{seed}")
    config = from_table(
        {"method": method, "data": data, "clients": clients, "rounds": rounds, "seed": seed} | (options or {})
    )
    config = config.resolve(digits())
    place = RunFolder(folder)
    place.create(config)
    rows = []
    for number in range(rounds + 1 if finished else rounds // 2 + 1):
        value = 0.1 + (last - 0.1) * (1 - math.exp(-4 * number / rounds)) / (1 - math.exp(-4))
        row = {"round": number, "seconds": {"evaluate": 0.1}}
        if number:
            row |= {
                "clients": [0, 1], "dropped": [], "excluded": [], "diverged": False, "train_loss": 2 / number,
                "bytes_down": 1000, "bytes_up": 1000, "lr": 0.1,
                "seconds": {"clients": 1.0, "local": 0.6, "aggregate": 0.1, "evaluate": 0.1},
            }  # fmt: skip
        if output == "global":
            classes = [min(1, max(0, value + rng.uniform(-0.1, 0.1))) for _ in range(CLASSES)]
            row |= {"accuracy": value, "loss": 2 - value, "class_accuracy": classes}
        tests = {"clients_tested": clients, "pooled": value, "mean": value, "std": 0.1, "worst_decile": value / 2,
                 "worst": value / 2}  # fmt: skip
        if number == rounds or output != "global":
            row["personal"] = tests
        if more and number:
            row |= more(number)
        rows.append(row)
    place.append("rounds.jsonl", rows)
    shares = [last * share for share in ([0.5] + [1.0] * (clients - 1))]
    end = [{"round": len(rows) - 1, "client": n, "accuracy": share, "test_samples": 10, "loss": 1.0}
           for n, share in enumerate(shares)]  # fmt: skip
    place.append("clients.jsonl", [*visits, *end])
    if labels:
        counts = [[rng.randrange(30) for _ in range(CLASSES)] for _ in range(clients)]
        held = {"classes": list("0123456789"), "clients": list(range(clients)), "names": [], "of": clients,
                "counts": counts}  # fmt: skip
        place.write_text("labels.json", json.dumps(held))
    if finished:
        about = {"run": config.hash, "method": str(config.method), "data": str(config.data), "model": str(config.model),
                 "split": str(config.split), "split_hash": f"s{seed}", "seed": seed, "clients": clients}  # fmt: skip
        summary = {**about, **summarise_rows(rows, 10, method, output == "both")}
        model = storage.encode({}, {"run": config.hash})
        place.write_model(model)
        read = [row for _, row in sorted(place.rounds().items())]
        place.write_summary({**json.loads(to_json(summary)), "files": place.mark_files(model, read)})
    place.close()
    return folder


@cache
def digits():
    return unskew.load("digits")


def make_comparison(folder: Path, methods: dict[str, float], seeds: int = 3, spread: float = 0.01, **options) -> Path:
    """Runs of several methods (name → accuracy), each seed a little better than the one before."""
    for seed in range(seeds):
        for number, (name, last) in enumerate(methods.items()):
            noise = random.Random(f"{name}{seed}").uniform(-spread, spread)
            make_run(folder / "runs" / f"{number:02}-seed{seed}", name, seed, last + 0.01 * seed + noise, **options)
    return folder
