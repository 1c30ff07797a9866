"""Run folders that nobody ran: rows of made figures, to look at pictures and views without training."""

import json
import math
import random

from unskew.runs.config import from_table
from unskew.runs.folder import RunFolder
from unskew.runs.summary import summarise_rows

SMALL = {"data": "digits", "model": "mlp(hidden=[8])", "clients": 10}


def make_row(number, seed=0, best=0.9, pace=5.0, personal=False, measures=None, **more):
    """A round's row, of a run that comes near `best`."""
    noise = random.Random(f"{seed} {number} {best}").gauss(0, 0.01)
    value = min(max(0.1 + (best - 0.1) * (1 - math.exp(-number / pace)) + noise, 0.0), 1.0)
    own = {"clients_tested": 10, "pooled": value, "mean": value, "std": 0.1, "worst_decile": value / 2, "worst": 0.1}
    row = {"round": number, "seconds": {"clients": 0.4, "local": 0.2, "aggregate": 0.05, "evaluate": 0.05}}
    if number:
        row |= {"clients": [0, 1, 2], "dropped": [], "excluded": [], "diverged": False, "train_loss": 1 / number,
                "bytes_down": 1000, "bytes_up": 1000 + 10 * seed, "lr": 0.1}  # fmt: skip
    row |= {"personal": own} if personal else {"accuracy": value, "loss": 1 - value, "class_accuracy": [value] * 10}
    if measures and number:
        row["measures"] = {name: scale * math.exp(-number / 10) for name, scale in measures.items()}
    return row | more


def make_run(folder, method="fedavg", seed=0, rounds=20, done=None, finished=None, best=0.9, **row):
    """A run's folder with rows up to round `done`."""
    done = rounds if done is None else done
    config = from_table({**SMALL, "method": method, "seed": seed, "rounds": rounds})
    made = RunFolder(folder)
    made.create(config)
    row.setdefault("personal", config.method.output == "personal")
    rows = [make_row(number, seed, best, **row) for number in range(done + 1)] if done >= 0 else []
    made.append("rounds.jsonl", rows)
    made.close()
    if finished or (finished is None and done == rounds):
        about = {"run": config.hash, "method": str(config.method), "data": str(config.data), "seed": seed}
        summary = {**about, **summarise_rows(rows, 10, config.method.name, False)}
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


NAMES = (
    "fedavg", "fedprox(mu=0.1)", "scaffold", "fednova", "feddyn", "moon", "fedntd", "fedrs", "fedlc", "feddecorr",
    "fedrcl", "fedproto", "fedfm", "fedetf", "fedgen", "fedsam", "fedasam", "fedavgm", "fedacg", "fedadam", "fedyogi",
    "fedadagrad", "flfa", "fedsol", "fedblade(var_eps=0.01)", "flfa(fedprox(mu=0.1))", "fedsol(rho=0.5)",
    "fedprox(mu=1.0)", "fedprox(mu=0.01)", "moon(mu=5.0)", "fedper", "fedrep", "lg_fedavg", "fedrod", "fedbn",
    "fedala", "local", "ditto(fedavg)", "fedas", "cd2_pfed",
)  # fmt: skip


def make_comparison(folder, count, seeds=(0, 1, 2), rounds=20, **row):
    """So many methods under each seed; the better, the later they come."""
    for place, method in enumerate(NAMES[:count]):
        for seed in seeds:
            name = f"{place:02d}-seed{seed}"
            make_run(
                folder / "runs" / name, method, seed, rounds, best=0.5 + 0.45 * (11 * place % count) / count, **row
            )
    return folder
