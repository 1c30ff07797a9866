"""How long a run will take and what it will send, from a trial of some steps."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from unskew.base.registry import to_table
from unskew.data.partition.splits import splits
from unskew.data.sources.base import sources
from unskew.data.sources.smaller import origin_of, read_count
from unskew.recipes.scales import limit_work
from unskew.runs import building, engine
from unskew.runs.config import Run, cohort_size
from unskew.runs.folder import RunFolder

BATCHES, TESTS = 2, 100
"""Batches that a trial's client holds, and its test samples."""
SHORT = {
    "fedaf": {"steps": BATCHES, "server_epochs": 5}, "feddm": {"steps": BATCHES, "server_epochs": 5},
    "local": {"epochs": 1},
}  # fmt: skip
"""Own work of methods in a trial, which the estimate multiplies again."""


@dataclass(frozen=True)
class Estimate:
    """What a run takes, about."""

    hours: float
    """On one core of this machine."""
    gigabytes: float
    """Sent in both directions together."""


def key_of(run: Run) -> str:
    """Runs with the same key take the same time per step."""
    return f"{run.method} {run.model} {run.data.about.shape} {run.data.about.classes} {run.local.batch} {run.augment}"


@dataclass(frozen=True)
class Trial:
    """What was measured of two rounds with one client."""

    sample: float
    """Seconds of a visit for each sample that the client holds: all its epochs, and what is done once."""
    server: float
    """Seconds of the server's work after a round."""
    test: float
    """Seconds of testing a sample."""
    sent: float
    """Bytes of a client and round, both ways."""


def try_out(run: Run) -> Trial:
    """Plays two rounds of the run with one client of some batches, on generated images."""
    source = origin_of(run.data)
    each = max(BATCHES * run.local.batch, 2 * (source.about.classes or 10))
    data = sources.build({"name": "stand_in", "like": source, "train": each, "test": TESTS})
    small = replace(
        run, data=data, split=splits.build("iid"), clients=1, sample=1.0, rounds=2, measure=(), split_seed=None,
        method=limit_work(run.method, SHORT),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "trial"
        engine.start(building.prepare(small), place)
        row = RunFolder(place).rounds()[2]
    seconds = row["seconds"]
    return Trial(
        seconds["local"] / _held(run, each, TESTS), seconds["aggregate"], seconds.get("evaluate", 0.0) / TESTS,
        float(row["bytes_up"] + row["bytes_down"]),
    )  # fmt: skip


def _held(run: Run, train: int, test: int) -> float:
    """Samples that clients train on, all of them together."""
    return (train + test) * (1 - run.evaluation.holdout) if run.pool_test else train


def estimate(run: Run, tried: Trial) -> Estimate:
    """The whole run's, from its trial's."""
    clients = run.clients or 20
    whole = {word: read_count(origin_of(run.data).about.counts, word) or 10_000 for word in ("train", "test")}
    samples, tests = (min(getattr(run.data, word, 0) or whole[word], whole[word]) for word in ("train", "test"))
    cohort, server = cohort_size(run.sample, clients), tried.server
    visit = tried.sample * _held(run, samples, tests) / clients
    table = to_table(run.method)
    if run.method.name in ("fedaf", "feddm"):  # a step sees images of all classes, as in the trial
        visit = tried.sample * max(BATCHES * run.local.batch, 20) * table["steps"] / min(BATCHES, table["steps"] or 1)
        server *= table["server_epochs"] / min(5, table["server_epochs"]) * cohort
    if run.method.name == "local":
        visit *= table["epochs"]
    tested = run.rounds / run.evaluation.every * (samples * run.evaluation.holdout if run.pool_test else tests)
    seconds = run.rounds * (cohort * visit + server) + tested * tried.test
    return Estimate(seconds / 3600, run.rounds * cohort * tried.sent / 2**30)
