"""Tests of the global model and of the clients' own, through the same executor as training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from unskew.base import seeds
from unskew.base.tree import Groups, Tree
from unskew.core.checks.asking import ask_server
from unskew.core.jobs import Executor, Job, Kind, StateStore
from unskew.core.task import Task
from unskew.measures.accuracy import accuracy_and_loss, class_accuracy, over_clients
from unskew.measures.classification import Tally
from unskew.runs.config import Run


def find_due(config: Run, round_: int, final: bool) -> tuple[bool, bool]:
    """Whether the global model is tested after a round, and whether clients are; `final`: it is the run's last one."""
    wanted, output = config.evaluation, config.method.output
    # with pool_test the test samples are training samples of the clients, so only their held-out ones can test
    tests_global = output != "personal" and not config.pool_test
    often = wanted.clients_every or (0 if tests_global and output in ("global", "tuned") else wanted.every)
    return (
        tests_global and (final or round_ % wanted.every == 0),
        wanted.local_test != "none" and (final or bool(often and round_ % often == 0)),
    )


def evaluate_global(
    task: Task, executor: Executor, server: Groups, round_: int, kind: Kind = "test", tally: Tally | None = None
) -> tuple[dict[str, Any], Tree]:
    """The global model's figures on the common test or validation set, and its scores of single samples.

    Scores: `right`, whether the model is right about a sample, and `loss`. `tally`: takes in what else there is.
    """
    message = ask_server(task, "publish", task.server_context(round_, server=server).read_only(), server)
    labels = _labels(task, kind)
    # parts of fixed size: which executor works on them, and how many workers it has, changes no bit
    starts = range(0, max(1, len(labels) - 1), task.test_part)  # a last sample alone would have no batch statistics
    parts = list(zip(starts, [*starts[1:], len(labels)], strict=True))
    whole = tally is not None
    jobs = (Job(kind, round_, -1, message, part=part, size=part[1] - part[0], whole=whole) for part in parts)
    replies = [reply.groups["score"] for reply in executor.run(jobs)]
    if tally is not None:
        for (start, stop), score in zip(parts, replies, strict=True):
            tally.add(labels[start:stop], score["predicted"], score["scores"])
    scores = {key: torch.cat([score[key] for score in replies]) for key in ("right", "loss")}
    by_class = class_accuracy(labels, scores["right"], task.federation.dataset.num_classes)
    return {**accuracy_and_loss(scores["right"], scores["loss"]), "class_accuracy": by_class}, scores


def evaluate_clients(
    task: Task, executor: Executor, store: StateStore, server: Groups, round_: int, limit: int, known: Tree | None,
    tally: Tally | None = None,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:  # fmt: skip
    """Each client's model on its own test set: figures over clients, and a row for each client.

    `known` are the global model's scores on the common test set: where every client uses that model on samples of
    that set, nothing needs to be computed again. `tally`: takes in what else the clients' own models say.
    """
    chosen = sorted(seeds.sample_cohort(task.seed, 0, task.num_clients, min(limit, task.num_clients)))
    same_model = task.method.output == "global" and task.buffer_policy != "local"
    if known is not None and same_model and task.federation.local_tests != "holdout":
        found = _look_up_scores(task, known, chosen)
    else:
        found = _compute_scores(task, executor, store, server, round_, chosen, tally)
    rows: list[dict[str, Any]] = [
        {
            "round": round_,
            "client": client,
            **accuracy_and_loss(scores["right"], scores["loss"]),
            "test_samples": len(scores["right"]),
        }
        for client, scores in found
        if len(scores["right"])  # a client whose test set is empty has no accuracy
    ]
    return over_clients([row["accuracy"] for row in rows], [row["test_samples"] for row in rows]), rows


def _look_up_scores(task: Task, known: Tree, clients: list[int]) -> Iterator[tuple[int, Tree]]:
    for client in clients:
        index = torch.tensor(task.federation.local_test_indices(client))
        yield client, {key: values[index] for key, values in known.items()}


def _compute_scores(
    task: Task, executor: Executor, store: StateStore, server: Groups, round_: int, clients: list[int],
    tally: Tally | None,
) -> Iterator[tuple[int, Tree]]:  # fmt: skip
    s, size = task.server_context(round_, server=server).for_tests(), task.federation.size

    def message(client: int) -> Groups:
        sent: Groups = ask_server(task, "download", s, server, client, client=client)
        return sent

    whole = tally is not None
    jobs = (Job("personal", round_, k, message(k), store.get(k), size=size(k), whole=whole) for k in clients)
    for reply in executor.run(jobs):
        if reply.fault:
            continue
        score = reply.groups["score"]
        if tally is not None and "scores" in score:  # sites tell nobody what they predict of a sample
            tested = task.federation.local_test(reply.client)
            tally.add(tested.source.y[tested.index].cpu(), score["predicted"], score["scores"])
        yield reply.client, score


def _labels(task: Task, kind: Kind) -> Tensor:
    samples = task.federation.dataset.validation if kind == "validate" else task.federation.dataset.test
    assert samples is not None
    return samples.y.cpu()
