"""The figures of a finished run."""

from __future__ import annotations

import json
import re
from pathlib import Path

from unskew.base.errors import DamagedRun, InputError
from unskew.base.json_text import to_json
from unskew.core.task import Task
from unskew.measures import figures
from unskew.runs.config import Run
from unskew.runs.folder import SUMMARY_FILE, EditedRun, Row, RunFolder, digest_summary

_LAST_K = re.compile(r"last_\d+_mean")

GLOBAL, PERSONAL = "global model", "clients' own models, pooled"
"""Whose accuracy it is."""


def summarise(config: Run, task: Task, rows: list[Row]) -> Row:
    """The figures of a finished run."""
    return {
        "run": config.hash,
        "method": str(config.method),
        "data": str(config.data),
        "model": str(config.model),
        "split": str(config.split),
        **({"wire": [str(processor) for processor in config.wire]} if config.wire else {}),
        **({"code": config.code} if config.code else {}),
        **({"code_changes": list(config.code_changes)} if config.code_changes else {}),
        **({"extended": list(config.extended)} if config.extended else {}),
        "split_hash": task.federation.partition.hash,
        "seed": config.seed,
        "train_samples": len(task.federation.dataset.train),
        "test_samples": len(task.federation.dataset.test),
        "clients": task.num_clients,
        **summarise_rows(rows, config.evaluation.last_k, config.method.name, config.method.output == "both"),
    }


def summarise_rows(rows: list[Row], last_k: int, method: str, both: bool) -> Row:
    """What the rows alone say; `both`: the method's product is a global model and personal ones."""
    done = [row for row in rows if row["round"] > 0]
    tested = [row for row in done if "accuracy" in row]
    personal = [row["personal"] for row in done if row.get("personal", {}).get("clients_tested")]
    curve = [row["accuracy"] for row in tested] or [own["pooled"] for own in personal]
    if not curve:
        raise InputError(
            f"{method} gives personal models only, so it needs local test sets; "
            "set evaluation.local_test to proportional or holdout"
        )
    accuracy = _sum_up(curve, last_k)
    both = both and bool(tested) and bool(personal)
    if tested and "validation" in tested[0]:
        accuracy["best_on_validation"] = figures.at_best_validation(curve, [row["validation"] for row in tested])
    kinds = ("clients", "local", "aggregate", "evaluate")
    return {
        "rounds": len(done),
        "accuracy_of": (GLOBAL if tested else PERSONAL) + f"; personal_accuracy: {PERSONAL}" * both,
        "accuracy": accuracy,
        **({"personal_accuracy": _sum_up([own["pooled"] for own in personal], last_k)} if both else {}),
        "loss": tested[-1]["loss"] if tested else None,
        "class_accuracy": tested[-1]["class_accuracy"] if tested else None,
        "personal": personal[-1] if personal else None,
        "diverged": any(row["diverged"] for row in done),
        "diverged_in": next((row["round"] for row in done if row["diverged"]), None),
        "stopped": next((row["stopped"] for row in done if "stopped" in row), None),
        "excluded_replies": sum(len(row["excluded"]) for row in done),
        "bytes_up": sum(row["bytes_up"] for row in done),
        "bytes_down": sum(row["bytes_down"] for row in done),
        "seconds": {kind: sum(row["seconds"].get(kind, 0.0) for row in rows) for kind in kinds},
    }


def _sum_up(curve: list[float], last_k: int) -> dict[str, float]:
    """The papers' figures of a curve."""
    return {
        "last": figures.last(curve),
        f"last_{last_k}_mean": figures.last_k_mean(curve, last_k),
        "last_10_percent_mean": figures.last_share_mean(curve),
        "best_on_test": figures.best(curve),
    }


def read_finished(folder: RunFolder) -> Row:
    """The figures of a finished run; an error if its rows say something else: either was edited."""
    summary, rows = folder.summary(), [row for _, row in sorted(folder.rounds().items())]
    last_k = next((int(name.split("_")[1]) for name in summary["accuracy"] if _LAST_K.fullmatch(name)), 1)
    try:
        found = json.loads(
            to_json(summarise_rows(rows, last_k, str(summary["method"]), "personal_accuracy" in summary))
        )
        wrong = [key for key in found if key != "seconds" and summary.get(key) != found[key]]  # a rerun takes longer
    except (InputError, KeyError, TypeError, ValueError, IndexError, ZeroDivisionError):
        wrong = ["rounds"]
    if wrong:
        raise DamagedRun(
            f"{folder.path}: summary.json and rounds.jsonl differ in '{wrong[0]}', so one of them was edited; restore "
            f"it, or remove summary.json, then 'unskew resume {folder.path}' writes it again"
        )
    files = summary.get("files", {})  # older versions wrote none
    files = files if isinstance(files, dict) else {}
    folder.check_finished_rows(rows, files)
    folder.check_model(summary.get("run"), files)
    if files.get(SUMMARY_FILE, digest_summary(summary)) != digest_summary(summary):
        raise DamagedRun(
            f"{folder.path / SUMMARY_FILE} was edited: it is not as the run wrote it; restore it, or remove it, then "
            f"'unskew resume {folder.path}' writes it again"
        )
    return summary


def check_summary(config: Run, summary: Row, path: Path) -> None:
    """An error unless the figures are of this run; `path`: its folder."""
    if config.hash != summary.get("run"):
        raise EditedRun(
            f"{path / 'run.toml'} gives run {config.hash}, but summary.json is of {summary.get('run')}; "
            "restore the one that was edited"
        )
    about = {key: str(getattr(config, key)) for key in ("method", "data", "model", "split")}
    for key, value in {**about, "seed": config.seed}.items():
        if summary.get(key, value) != value:
            found = f"{path / 'summary.json'} says {key} {summary[key]}, but run.toml {value}"
            raise EditedRun(f"{found}; restore the one that was edited")
