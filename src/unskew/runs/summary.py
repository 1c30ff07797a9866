"""The figures of a finished run."""

from __future__ import annotations

from unskew.base.errors import InputError
from unskew.core.task import Task
from unskew.measures import figures
from unskew.runs.config import Run
from unskew.runs.folder import Row


def summarise(config: Run, task: Task, rows: list[Row]) -> Row:
    """The figures of a finished run."""
    done = [row for row in rows if row["round"] > 0]
    tested = [row for row in done if "accuracy" in row]
    personal = [row["personal"] for row in done if row.get("personal", {}).get("clients_tested")]
    curve = [row["accuracy"] for row in tested] or [figures["pooled"] for figures in personal]
    if not curve:
        raise InputError(
            f"{config.method.name} gives personal models only, so it needs local test sets; "
            "set evaluation.local_test to proportional or holdout"
        )
    accuracy = {
        "last": figures.last(curve),
        f"last_{config.evaluation.last_k}_mean": figures.last_k_mean(curve, config.evaluation.last_k),
        "last_10_percent_mean": figures.last_share_mean(curve),
        "best_on_test": figures.best(curve),
    }
    if tested and "validation" in tested[0]:
        accuracy["best_on_validation"] = figures.at_best_validation(curve, [row["validation"] for row in tested])
    kinds = ("clients", "local", "aggregate", "evaluate")
    return {
        "run": config.hash,
        "method": str(config.method),
        "data": str(config.data),
        "model": str(config.model),
        "split": str(config.split),
        **({"wire": [str(processor) for processor in config.wire]} if config.wire else {}),
        "split_hash": task.federation.partition.hash,
        "seed": config.seed,
        "train_samples": len(task.federation.dataset.train),
        "test_samples": len(task.federation.dataset.test),
        "clients": task.num_clients,
        "rounds": len(done),
        "accuracy_of": "global model" if tested else "clients' own models, pooled",
        "accuracy": accuracy,
        "loss": tested[-1]["loss"] if tested else None,
        "class_accuracy": tested[-1]["class_accuracy"] if tested else None,
        "personal": personal[-1] if personal else None,
        "diverged": any(row["diverged"] for row in done),
        "excluded_replies": sum(len(row["excluded"]) for row in done),
        "bytes_up": sum(row["bytes_up"] for row in done),
        "bytes_down": sum(row["bytes_down"] for row in done),
        "seconds": {kind: sum(row["seconds"].get(kind, 0.0) for row in rows) for kind in kinds},
    }
