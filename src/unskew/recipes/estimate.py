"""How long a run will take and what it will send, from a trial of some steps."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from unskew.base.registry import construct, to_table
from unskew.core.method import Method, methods
from unskew.data.partition.splits import splits
from unskew.data.sources.base import sources
from unskew.data.sources.smaller import Part, StandIn, read_count
from unskew.recipes.scales import steps_in_all
from unskew.runs import building, engine
from unskew.runs.config import Run, cohort_size
from unskew.runs.folder import RunFolder

STEPS = 3
"""Local steps of a trial's visit."""


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


def try_out(run: Run) -> tuple[float, float, float, float]:
    """Seconds of a step, of the server's work after a round, of testing a sample; bytes of a client and round."""
    source = run.data.of if isinstance(run.data, Part) else run.data.like if isinstance(run.data, StandIn) else run.data
    classes = source.about.classes or 10
    each = max(STEPS * run.local.batch, 2 * classes)
    data = sources.build({"name": "stand_in", "like": source, "train": 2 * each, "test": 100})
    local = construct(type(run.local), {**vars(run.local), "epochs": 1, "steps": STEPS})
    small = replace(
        run, data=data, split=splits.build("iid"), clients=2, sample=1.0, rounds=2, local=local, measure=(),
        method=_budget(run.method), split_seed=None,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "trial"
        engine.start(building.prepare(small), place)
        row = RunFolder(place).rounds()[2]
    seconds, visits = row["seconds"], 2 * STEPS
    tests = seconds.get("evaluate", 0.0) / 100
    return seconds["local"] / visits, seconds["aggregate"], tests, (row["bytes_up"] + row["bytes_down"]) / 2


def _budget(method: Method) -> Method:
    """With as many of its own steps as the trial has."""
    table = to_table(method)
    if isinstance(inner := getattr(method, "inner", None), Method):
        table["inner"] = _budget(inner)
    short = {"fedaf": {"steps": STEPS, "server_epochs": 5}, "feddm": {"steps": STEPS, "server_epochs": 5},
             "local": {"epochs": 1}}.get(method.name, {})  # fmt: skip
    return methods.build({**table, **{name: min(value, table[name]) for name, value in short.items()}})


def estimate(run: Run, tried: tuple[float, float, float, float]) -> Estimate:
    """The whole run's, from its trial's."""
    step, server, test, sent = tried
    clients = run.clients or 20
    source = run.data.of if isinstance(run.data, Part) else run.data
    samples = getattr(run.data, "train", 0) or read_count(source.about.counts, "train") or 50_000
    tests = getattr(run.data, "test", 0) or read_count(source.about.counts, "test") or 10_000
    cohort = cohort_size(run.sample, clients)
    steps = steps_in_all(run, samples)
    if run.method.name in ("fedaf", "feddm"):  # all classes are seen in each step, as in the trial
        table = to_table(run.method)
        steps = run.rounds * cohort * table["steps"]
        server *= table["server_epochs"] / min(5, table["server_epochs"]) * cohort / 2
    if run.method.name == "local":
        steps *= to_table(run.method)["epochs"]
    tested = run.rounds / run.evaluation.every * (0 if run.pool_test else tests)
    seconds = steps * step + run.rounds * server + tested * test
    return Estimate(seconds / 3600, run.rounds * cohort * sent / 2**30)
