"""Accuracy of the global model and of the clients' own, through the same executor as training."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from unskew.core import seeds
from unskew.core.jobs import Executor, Job, Kind
from unskew.core.store import StateStore
from unskew.core.task import Task
from unskew.core.tree import Groups, Tree
from unskew.metrics.summaries import worst_share_mean


def evaluate_global(task: Task, executor: Executor, server: Groups, round_: int, kind: Kind = "test") -> dict[str, Any]:
    """Accuracy, loss and class-wise accuracy of the global model on the common test or validation set."""
    message = task.method.publish(task.server_context(round_), server)
    samples = task.federation.dataset.validation if kind == "validate" else task.federation.dataset.test
    assert samples is not None
    # parts of fixed size: which executor works on them, and how many workers it has, changes no bit
    parts = [(start, min(start + task.eval_batch, len(samples))) for start in range(0, len(samples), task.eval_batch)]
    jobs = (Job(kind, round_, -1, message, part=part) for part in parts)
    scores = [reply.groups["score"] for reply in executor.run(jobs)]
    count, right, loss = (torch.stack([score[key] for score in scores]).sum(0) for key in ("count", "right", "loss"))
    return {
        "accuracy": _ratio(right, count),
        "loss": _ratio(loss, count),
        "class_accuracy": [None if n == 0 else float(r / n) for r, n in zip(right, count, strict=True)],
    }


def evaluate_clients(
    task: Task, executor: Executor, store: StateStore, server: Groups, round_: int, limit: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Each client's model on its own test set: pooled and per-client figures, and a row for each client."""
    s = task.server_context(round_)
    chosen = sorted(seeds.cohort(task.seed, 0, task.num_clients, min(limit, task.num_clients)))
    jobs = (
        Job("personal", round_, client, task.method.download(s, server, client), store.get(client)) for client in chosen
    )
    rows = []
    right_all = count_all = 0.0
    for reply in executor.run(jobs):
        score: Tree = reply.groups["score"]
        right, count = float(score["right"].sum()), float(score["count"].sum())
        if count == 0:
            continue  # a client whose test set is empty has no accuracy
        right_all, count_all = right_all + right, count_all + count
        row = {"round": round_, "client": reply.client, "accuracy": right / count, "test_samples": int(count)}
        rows.append({**row, "loss": _ratio(score["loss"], score["count"])})
    return _over_clients([row["accuracy"] for row in rows], right_all, count_all), rows


def _over_clients(accuracies: list[float], right: float, count: float) -> dict[str, Any]:
    if not accuracies:
        return {"clients_tested": 0}
    return {
        "clients_tested": len(accuracies),
        "pooled": right / count,
        "mean": float(np.mean(accuracies)),
        "std": float(np.std(accuracies, ddof=1)) if len(accuracies) > 1 else None,
        "worst_decile": worst_share_mean(accuracies),
        "worst": min(accuracies),
    }


def _ratio(top: torch.Tensor, bottom: torch.Tensor) -> float:
    return float(top.sum() / bottom.sum())
