"""How long a run will take and what it will send, from a trial of some steps."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from unskew.base.registry import to_table
from unskew.data.dataset import Dataset
from unskew.data.files.finder import Finder
from unskew.data.partition.splits import splits
from unskew.data.sources.base import Source, sources
from unskew.data.sources.smaller import origin_of, read_count
from unskew.recipes.scales import limit_work
from unskew.runs import building, engine
from unskew.runs.config import Run, cohort_size
from unskew.runs.folder import Row, RunFolder
from unskew.runs.sections import Execution

BATCHES, TESTS = 2, 100
"""Batches that a trial's client holds, and its test samples."""
STEPS, CLASSES, EPOCHS = 2, 2, 5
"""Of a method that condenses: steps and classes of a trial's client, epochs of its server."""
SHORT = {
    "fedaf": {"steps": STEPS, "server_epochs": EPOCHS}, "feddm": {"steps": STEPS, "server_epochs": EPOCHS},
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


@dataclass(frozen=True)
class Held:
    """What clients condense, all of them together."""

    classes: int
    """Each client's classes."""
    images: int
    """Real images of a class in a step, the mean over these classes."""


def count_held(run: Run, dataset: Dataset) -> Held | None:
    """Of which classes clients hold enough samples to condense them; None: the method does not condense."""
    if not condenses(run):
        return None
    options = to_table(run.method)
    data = building.prepare_data(run, dataset=dataset)
    labels, resolved = data.train.y.numpy(), run.resolve(data)
    least = options["ipc"] if options["min_class"] == "ipc" else options["min_class"]
    counts = [np.bincount(labels[own], minlength=data.num_classes) for own in building.cut(resolved, data)]
    enough = np.concatenate([own[own >= least] for own in counts])
    return Held(len(enough), round(float(enough.clip(max=options["real_batch"]).mean())) if len(enough) else 0)


def condenses(run: Run) -> bool:
    """Whether its clients condense data, which takes time by class and not by sample."""
    return run.method.name in ("fedaf", "feddm")


def key_of(run: Run, held: Held | None) -> str:
    """Runs with the same key take the same time per step."""
    about = run.data.about
    return f"{run.method} {run.model} {about.shape} {about.classes} {run.local.batch} {run.augment} {held}"


@dataclass(frozen=True)
class Trial:
    """What was measured of two rounds with one client."""

    visit: float
    """Seconds of a visit for each sample that the client holds: all its epochs, and what is done once.

    Of a method that condenses: of one step for each class.
    """
    server: float
    """Seconds of the server's work after a round; of a method that condenses of one epoch for each class."""
    test: float
    """Seconds of testing a sample."""
    down: float
    """Bytes to a client in a round."""
    up: float
    """Bytes from a client in a round; of a method that condenses for each class."""


def try_out(run: Run, held: Held | None = None) -> Trial:
    """Plays two rounds of the run with one client of some batches, or of some classes, on generated images."""
    source, method = origin_of(run.data), limit_work(run.method, SHORT)
    if held is not None:
        options = to_table(method)
        row = _play(replace(run, method=method), _of_few_classes(source, max(held.images, options["ipc"])))
        visit, by, epochs = max(1, options["steps"]) * CLASSES, CLASSES, options["server_epochs"] * CLASSES
    else:
        each = max(BATCHES * run.local.batch, 2 * (source.about.classes or 10))
        data = sources.build({"name": "stand_in", "like": source, "train": each, "test": TESTS})
        row = _play(replace(run, data=data, method=method))
        visit, by, epochs = _count_trained(run, each, TESTS), 1, 1
    seconds = row["seconds"]
    return Trial(
        seconds["local"] / visit, seconds["aggregate"] / epochs, seconds.get("evaluate", 0.0) / TESTS,
        float(row["bytes_down"]), row["bytes_up"] / by,
    )  # fmt: skip


def _play(run: Run, dataset: Dataset | None = None) -> Row:
    """The second round of one client that has all of the data, its seconds those of one core.

    By the clock it would take longer beside other work, and less long with several threads.
    """
    small = replace(
        run, split=splits.build("iid"), clients=1, sample=1.0, rounds=2, measure=(), split_seed=None,
        stragglers=0.0, straggler_online=Run().straggler_online, execution=Execution(executor="serial"),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "trial"
        clock, processor = time.perf_counter(), time.process_time()
        engine.start(building.prepare(small, dataset=dataset), place)
        share = (time.process_time() - processor) / (time.perf_counter() - clock)
        row = RunFolder(place).rounds()[2]
    return {**row, "seconds": {name: share * seconds for name, seconds in row["seconds"].items()}}


def _of_few_classes(source: Source, each: int) -> Dataset:
    """So many generated images of each of the first classes."""
    classes = source.about.classes or 10
    words = {"name": "stand_in", "like": source, "train": each * classes, "test": TESTS * classes}
    whole = sources.build(words).load(Finder(None, offline=True))
    train, test = ((part.y < CLASSES).nonzero().flatten()[:number]
                   for part, number in ((whole.train, None), (whole.test, TESTS)))  # fmt: skip
    return replace(
        whole, train=whole.train.take(train), test=whole.test.take(test),
        groups=None if whole.groups is None else whole.groups[train],
        test_groups=None if whole.test_groups is None else whole.test_groups[test],
    )  # fmt: skip


def _count_trained(run: Run, train: int, test: int) -> float:
    """Samples that clients train on, all of them together."""
    return (train + test) * (1 - run.evaluation.holdout) if run.pool_test else train


def estimate(run: Run, tried: Trial, held: Held | None = None) -> Estimate:
    """The whole run's, from its trial's."""
    clients = run.clients or 20
    whole = {word: read_count(origin_of(run.data).about.counts, word) or 10_000 for word in ("train", "test")}
    samples, tests = (min(getattr(run.data, word, 0) or whole[word], whole[word]) for word in ("train", "test"))
    cohort, table = cohort_size(run.sample, clients), to_table(run.method)
    if held is None:
        visits = cohort * tried.visit * _count_trained(run, samples, tests) / clients
        visits *= table["epochs"] if run.method.name == "local" else 1
        server, up = tried.server, cohort * tried.up
    else:
        classes = held.classes * cohort / clients
        visits = classes * tried.visit * table["steps"]
        server, up = classes * tried.server * table["server_epochs"], classes * tried.up
    online = 1 - run.stragglers * (1 - run.straggler_online)
    visits, up = online * visits, online * up
    tested = run.rounds / run.evaluation.every * (samples * run.evaluation.holdout if run.pool_test else tests)
    seconds = run.rounds * (visits + server) + tested * tried.test
    return Estimate(seconds / 3600, run.rounds * (online * cohort * tried.down + up) / 2**30)
