"""Accuracy of the global model and of the clients' own, through the same executor as training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unskew.base import seeds
from unskew.base.tree import Groups, Tree
from unskew.core.jobs import Executor, Job, Kind, StateStore
from unskew.core.task import Task
from unskew.measures.figures import worst_share_mean


def score_global(task: Task, executor: Executor, server: Groups, round_: int, kind: Kind = "test") -> Tree:
    """For each sample of the common test or validation set: whether the global model is right, and its loss."""
    message = task.method.publish(task.server_context(round_, server=server), server)
    size = len(_labels(task, kind))
    # parts of fixed size: which executor works on them, and how many workers it has, changes no bit
    starts = range(0, max(1, size - 1), task.eval_batch)  # a last sample alone would have no batch statistics
    parts = list(zip(starts, [*starts[1:], size], strict=True))
    jobs = (Job(kind, round_, -1, message, part=(start, stop), size=stop - start) for start, stop in parts)
    scores = [reply.groups["score"] for reply in executor.run(jobs)]
    return {key: torch.cat([score[key] for score in scores]) for key in ("right", "loss")}


def figures_of(task: Task, score: Tree, kind: Kind = "test") -> dict[str, Any]:
    """Accuracy, loss and class-wise accuracy from the scores of single samples."""
    labels = _labels(task, kind)
    classes = task.federation.dataset.num_classes
    count = torch.bincount(labels, minlength=classes)
    right = torch.bincount(labels, weights=score["right"].double(), minlength=classes)
    return {
        "accuracy": _mean(score["right"]),
        "loss": _mean(score["loss"]),
        "class_accuracy": [None if n == 0 else r / n for r, n in zip(right.tolist(), count.tolist(), strict=True)],
    }


def evaluate_clients(
    task: Task, executor: Executor, store: StateStore, server: Groups, round_: int, limit: int, known: Tree | None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Each client's model on its own test set: pooled and per-client figures, and a row for each client.

    `known` are the global model's scores on the common test set: where every client uses that model on samples of
    that set, nothing needs to be computed again.
    """
    chosen = sorted(seeds.sample_cohort(task.seed, 0, task.num_clients, min(limit, task.num_clients)))
    same_model = task.method.output == "global" and task.buffer_policy != "local"
    if known is not None and same_model and task.federation.local_tests == "proportional":
        scores = _looked_up(task, known, chosen)
    else:
        scores = _computed(task, executor, store, server, round_, chosen)
    rows = [
        {"round": round_, "client": client, "accuracy": _mean(score["right"]), "loss": _mean(score["loss"]),
         "test_samples": len(score["right"])}
        for client, score in scores
        if len(score["right"])  # a client whose test set is empty has no accuracy
    ]  # fmt: skip
    return _over_clients(rows), rows


def _looked_up(task: Task, known: Tree, clients: list[int]) -> Iterator[tuple[int, Tree]]:
    for client in clients:
        index = torch.tensor(task.federation.local_test_indices(client))
        yield client, {key: values[index] for key, values in known.items()}


def _computed(
    task: Task, executor: Executor, store: StateStore, server: Groups, round_: int, clients: list[int]
) -> Iterator[tuple[int, Tree]]:
    s, size = task.server_context(round_, server=server), task.federation.size
    jobs = (Job("personal", round_, k, task.method.download(s, server, k), store.get(k), size=size(k)) for k in clients)
    for reply in executor.run(jobs):
        yield reply.client, reply.groups["score"]


def _over_clients(rows: list[dict[str, Any]]) -> dict[str, Any]:
    accuracies = [row["accuracy"] for row in rows]
    if not rows:
        return {"clients_tested": 0}
    samples = [row["test_samples"] for row in rows]
    return {
        "clients_tested": len(rows),
        "pooled": float(np.average(accuracies, weights=samples)),
        "mean": float(np.mean(accuracies)),
        "std": float(np.std(accuracies, ddof=1)) if len(rows) > 1 else None,
        "worst_decile": worst_share_mean(accuracies),
        "worst": min(accuracies),
    }


def _labels(task: Task, kind: Kind) -> Tensor:
    """The labels of the set."""
    samples = task.federation.dataset.validation if kind == "validate" else task.federation.dataset.test
    assert samples is not None
    return samples.y.cpu()


def _mean(values: Tensor) -> float:
    return float(values.double().mean())
