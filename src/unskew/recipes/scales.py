"""The three scales of a reproduction: the paper's, one for a machine without a GPU, and one of seconds."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from unskew.base.errors import InputError
from unskew.base.registry import construct, to_table
from unskew.core.method import Method, methods
from unskew.data.dataset import Dataset
from unskew.data.files.finder import Finder, check_variable
from unskew.data.partition.splits import Split, splits
from unskew.data.sources.base import Source, sources
from unskew.data.sources.smaller import Part, StandIn, origin_of, read_count
from unskew.recipes.base import Paper, Scale
from unskew.runs.config import Run

SMOKE_TEXT = (
    "a trial of seconds: a few hundred samples, at most 6 clients, 2 rounds of 2 steps; its figures mean nothing"
)


@dataclass(frozen=True)
class DataState:
    """Whether a data set is here, and what is to be said of it."""

    here: bool
    note: str = ""


def scale_run(paper: Paper, run: Run, scale: Scale, here: bool) -> Run:
    """The run at this scale; `here`: whether its data set is."""
    if scale == "full":
        return run
    return paper.cpu(run) if scale == "cpu" else shrink(run, here)


def describe(paper: Paper, scale: Scale) -> str:
    """What a scale keeps of the paper's protocol, in a line."""
    return {"full": "the paper's protocol", "cpu": paper.cpu_text, "smoke": SMOKE_TEXT}[scale]


# --------------------------------------------------------------------------------------------- smoke

BUDGETS: dict[str, dict[str, int]] = {
    "fedaf": {"steps": 2, "server_epochs": 2, "ipc": 2}, "feddm": {"steps": 2, "server_epochs": 2, "ipc": 2},
    "local": {"epochs": 2}, "fedgen": {"gen_steps": 2}, "fedbabu": {"finetune": 1}, "fedala": {"start_passes": 2},
}  # fmt: skip
"""Work that methods do besides local steps, for a trial of seconds."""


def shrink(run: Run, here: bool) -> Run:
    """A trial of seconds: the same method, network, split and metric on few samples, clients, rounds and steps."""
    classes = run.data.about.classes or 10
    sizes = {"train": max(240, 3 * classes), "test": 40}  # tests of large images are most of the time
    data = sources.build(
        {"name": "part", "of": run.data, **sizes} if here else {"name": "stand_in", "like": run.data, **sizes}
    )
    partial = run.sample < 1
    clients = 6 if partial or run.split.name == "domain" else 3
    local = {**vars(run.local), "epochs": 1, "steps": 2, "batch": min(run.local.batch, 8)}
    evaluation = {**vars(run.evaluation), "batch": 25}  # 200 images of 64x64 at once are half a GB in each layer
    return replace(
        run, data=data, clients=clients, sample=0.34 if partial else 1.0, rounds=2,
        method=limit_work(run.method, BUDGETS), split=_shrink_split(run.split, classes, clients),
        local=construct(type(run.local), local), evaluation=construct(type(run.evaluation), evaluation),
    )  # fmt: skip


def _shrink_split(split: Split, classes: int, clients: int) -> Split:
    if split.name == "shards":
        return splits.build(
            {"name": "shards", "per_client": max(to_table(split)["per_client"], -(-classes // clients))}
        )
    return splits.build({**to_table(split), "min_size": 2}) if "dirichlet" in split.name else split


def limit_work(method: Method, budgets: Mapping[str, Mapping[str, int]]) -> Method:
    """The method, and those inside it, with at most so much work besides local steps: budgets by method and option."""
    table = to_table(method)
    if isinstance(inner := getattr(method, "inner", None), Method):
        table["inner"] = limit_work(inner, budgets)
    budget = budgets.get(method.name, {})
    return methods.build({**table, **{key: min(value, table[key]) for key, value in budget.items()}})


# ------------------------------------------------------------------------------------- what is here


def look_for(source: Source, data_dir: Path | None = None) -> DataState:
    """Whether a data set's files are on this machine, and are the published ones; downloads nothing."""
    if isinstance(source, StandIn) or not (source := origin_of(source)).files:
        return DataState(True)
    finder = Finder(data_dir, offline=True)
    check_variable()
    try:
        paths = source.paths(finder)
    except InputError:
        return DataState(False, f"data '{source.name}' are not on this machine (unskew data {source.name})")
    for path, needed in zip(paths, source.files, strict=False):
        if needed.checksum and path.is_file() and path.name == needed.name and not _is_published(path, needed.checksum):
            return DataState(True, f"{path.name} is not the published file: its checksum differs")
    return DataState(True)


def check_whole(source: Source, dataset: Dataset) -> str:
    """A line that says how much of a data set is missing; empty where nothing is."""
    expected = read_count(source.about.counts, "train")
    if getattr(source, "use_validation_for_training", False):
        expected = (expected or 0) + (read_count(source.about.counts, "validation") or 0) or None
    if isinstance(source, (Part, StandIn)) or expected is None or len(dataset.train) >= expected:
        return ""
    return f"data '{source.name}' here have {len(dataset.train):,} of {expected:,} training samples"


def _is_published(path: Path, checksum: str) -> bool:
    kind, _, wanted = checksum.partition(":")
    return hashlib.new(kind, path.read_bytes()).hexdigest() == wanted
