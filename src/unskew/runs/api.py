"""The Python interface: the same options as the command line, and objects where the command line has names."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from unskew.base.display import show_progress
from unskew.base.errors import InputError
from unskew.base.process import default_to_cpu, without_lost_threads
from unskew.base.user_code import keep_values
from unskew.core.checks.faults import naming_own_code
from unskew.core.method import Method
from unskew.data.dataset import Dataset
from unskew.data.sources import load
from unskew.runs import comparison, engine
from unskew.runs.arguments import (
    read_data_dir,
    read_dataset,
    read_executor,
    read_method,
    read_methods,
    read_module,
    read_options,
    read_place,
    read_rounds,
    read_seeds,
    read_truth,
    read_watch,
    refuse,
    to_run,
)
from unskew.runs.cells_here import count_jobs, read_jobs, run_side_by_side
from unskew.runs.config import read_trackers
from unskew.runs.field import drop_misfits
from unskew.runs.saved import SavedRun
from unskew.runs.tuning import tune as tuning
from unskew.runs.tuning.searches import Kind
from unskew.runs.tuning.tune import Tuning
from unskew.runs.weights import read_weights

log = logging.getLogger(__name__)


@contextmanager
def _enter() -> Iterator[None]:
    """The door of every call: whatever the program has set up, the call works as in a fresh one."""
    with naming_own_code(), without_lost_threads(), default_to_cpu(), keep_values():
        yield


@_enter()
def run(
    method: str | Method = "fedavg",
    *,
    data: str | Dataset = "digits",
    model: str | nn.Module | None = None,
    head: str = "",
    out: str | Path | None = None,
    data_dir: str | Path | None = None,
    watch: engine.Watch | None = None,
    progress: bool = False,
    **options: Any,
) -> engine.Result:
    """Runs one method; `options` are those of the command line (`split="dirichlet:0.1"`, `clients=20`, `lr=0.05` …).

    A model may be your own `nn.Module` with the name of its last layer as `head`; data may be a `Dataset`. `plugin`
    names Python files to import first; any other option is set by its path: `**{"local.drop_last": True}`. `progress`
    shows a bar, in notebooks too.
    """
    place = None if out is None else read_place("out", out)
    files, watcher = read_data_dir(data_dir), read_watch(watch)
    table = read_options(options, data, model, head, method=method)
    table["method"] = read_method(table["method"])
    dataset = data if isinstance(data, Dataset) else None
    config = to_run(table)
    with _watch_data(dataset), show_progress(_read_progress(progress, watch)) as bars:
        shown = bars(config, 1, 1) if bars else watcher
        return engine.run(config, place, data_dir=files, dataset=dataset, watch=shown)


@_enter()
def resume(
    folder: str | Path,
    *,
    data: Dataset | None = None,
    model: nn.Module | None = None,
    head: str = "",
    init: Mapping[str, Tensor] | None = None,
    data_dir: str | Path | None = None,
    watch: engine.Watch | None = None,
    executor: str | None = None,
    track: Any = None,
    accept_changed_code: bool = False,
) -> engine.Result:
    """Continues an interrupted run; hand over data, model and init again if they were Python objects.

    `executor` may be another one that gives the same bits: "pool" for a run begun with "serial", or the reverse.
    `track` names other trackers than the run began with (`[]`: none).

    If your own code changed since the run was begun it refuses, or with `accept_changed_code` goes on and records it.
    """
    place, dataset, files, watcher = (
        read_place("folder", folder), read_dataset(data), read_data_dir(data_dir), read_watch(watch)
    )  # fmt: skip
    architecture, accept = read_module(model, head), read_truth("accept_changed_code", accept_changed_code)
    with _watch_data(dataset):
        return engine.resume(
            place, data_dir=files, dataset=dataset, watch=watcher, model=architecture, init=read_weights(init),
            executor=read_executor(executor), accept_changed_code=accept,
            track=None if track is None else read_trackers(track),
        )  # fmt: skip


@_enter()
def extend(
    folder: str | Path,
    rounds: int,
    *,
    out: str | Path | None = None,
    data: Dataset | None = None,
    model: nn.Module | None = None,
    head: str = "",
    init: Mapping[str, Tensor] | None = None,
    data_dir: str | Path | None = None,
    watch: engine.Watch | None = None,
    executor: str | None = None,
    accept_changed_code: bool = False,
) -> engine.Result:
    """Continues a run, finished or not, to more rounds; hand over again what was handed over as Python objects.

    The longer run has a folder of its own, `out` or one beside the old, which stays as it is.
    """
    place, dataset, files, watcher = (
        read_place("folder", folder), read_dataset(data), read_data_dir(data_dir), read_watch(watch)
    )  # fmt: skip
    architecture, accept = read_module(model, head), read_truth("accept_changed_code", accept_changed_code)
    target = None if out is None else read_place("out", out)
    with _watch_data(dataset):
        return engine.extend(
            place, read_rounds(rounds), target, data_dir=files, dataset=dataset, watch=watcher, model=architecture,
            init=read_weights(init), executor=read_executor(executor), accept_changed_code=accept,
        )  # fmt: skip


@_enter()
def open(
    folder: str | Path,
    *,
    data: Dataset | None = None,
    model: nn.Module | None = None,
    head: str = "",
    init: Mapping[str, Tensor] | None = None,
    data_dir: str | Path | None = None,
    accept_changed_code: bool = False,
) -> SavedRun:
    """A run in its folder: its figures, curves, models and predictions; nothing is run.

    Hand over data, model and init again if they were Python objects.
    """
    place, dataset, files = read_place("folder", folder), read_dataset(data), read_data_dir(data_dir)
    architecture, accept = read_module(model, head), read_truth("accept_changed_code", accept_changed_code)
    return SavedRun(
        place, data_dir=files, dataset=dataset, model=architecture, init=read_weights(init), accept_changed_code=accept
    )


@_enter()
def compare(
    methods: str | Sequence[str | Method],
    *,
    seeds: int | str | Sequence[int] = 3,
    out: str | Path,
    data: str | Dataset = "digits",
    model: str | nn.Module | None = None,
    head: str = "",
    data_dir: str | Path | None = None,
    jobs: int | None = 1,
    progress: bool = False,
    **options: Any,
) -> comparison.Cells:
    """Runs each method under each seed on the same federations; finished runs in `out` are read back.

    Methods may be one text, as on the command line: "fedavg,fedprox(mu=0.1)"; "all", "all-global" and "all-personal"
    are all registered methods at their defaults. `jobs`: so many runs at a time, each in a forked process of its own;
    None: one for each core. `progress` shows bars, in notebooks too.
    """
    place, files, numbers = read_place("out", out), read_data_dir(data_dir), read_seeds(seeds)
    at_once = read_jobs(jobs)
    comparison.check_folder(place)
    refuse(
        options,
        {
            "method": "name the methods with methods=[...]",
            "seed": "name the seeds with seeds=[...]",
            "metric": "give it to the table: unskew.report.comparison.table(cells, title, metric=...)",
        },
    )
    config = to_run(read_options(options, data, model, head))
    wanted = read_methods(methods)
    elsewhere = run_side_by_side(count_jobs(at_once, [config.execution]))
    dataset = data if isinstance(data, Dataset) else None
    with _watch_data(dataset), show_progress(_read_progress(progress)) as bars:
        loaded = dataset if dataset is not None else load(config.data, files)
        fitting = drop_misfits(wanted, config, numbers[0], loaded)
        return comparison.compare(
            config, fitting, numbers, place, data_dir=files, dataset=loaded, announce=bars, elsewhere=elsewhere
        )


@_enter()
def tune(
    methods: str | Sequence[str | Method],
    grid: Mapping[str, Any] | Sequence[str] | str,
    *,
    out: str | Path,
    budget: int | None = None,
    search: Kind = "grid",
    seeds: int | str | Sequence[int] = 3,
    tuning_seeds: int | str | Sequence[int] = 1,
    metric: comparison.Metric = "last",
    data: str | Dataset = "digits",
    model: str | nn.Module | None = None,
    head: str = "",
    data_dir: str | Path | None = None,
    jobs: int | None = 1,
    progress: bool = False,
    **options: Any,
) -> Tuning:
    """Tries settings of each method on validation data, as many for each, then runs the chosen ones on fresh seeds.

    `grid` says what to try: {"lr": [0.01, 0.1], "fedprox.mu": [0.1, 1]}, or texts as on the command line. Trials and
    runs that are finished in `out` are read back.
    """
    place, files, numbers = read_place("out", out), read_data_dir(data_dir), read_seeds(seeds)
    at_once = read_jobs(jobs)
    comparison.check_folder(place)
    refuse(options, {"method": "name the methods with methods=[...]", "seed": "name the seeds with seeds=[...]"})
    config = to_run(read_options(options, data, model, head))
    wanted = read_methods(methods)
    elsewhere = run_side_by_side(count_jobs(at_once, [config.execution]))
    dataset = data if isinstance(data, Dataset) else None
    with _watch_data(dataset), show_progress(_read_progress(progress)) as bars:
        loaded = dataset if dataset is not None else load(config.data, files)
        fitting = drop_misfits(wanted, config, numbers[0], loaded)
        plan = tuning.make_plan(config, fitting, grid, budget, search, tuning_seeds, numbers, metric, loaded)
        trials, tuned = tuning.tune(plan, loaded, place, announce=bars, elsewhere=elsewhere)
        cells = tuning.compare_tuned(plan, tuned, loaded, place, announce=bars, elsewhere=elsewhere)
    return Tuning(trials, tuned, cells, (*fitting.notes, *tuning.explain(plan, loaded)))


def _read_progress(given: Any, watch: engine.Watch | None = None) -> bool:
    """Whether to show bars; nobody can watch beside them."""
    wanted = read_truth("progress", given)
    if wanted and watch is not None:
        raise InputError("progress=True shows the rounds, and watch is told of them; give one of them")
    return wanted


@contextmanager
def _watch_data(data: Dataset | None) -> Iterator[None]:
    """Says if a data set was changed in place while it was in use: the results are of neither version."""
    before = data.fingerprint() if data is not None else ""
    yield
    if data is not None and data.fingerprint() != before:
        log.warning(
            "data '%s' were changed while they were in use, so the results are of no one version of them; run again, "
            "and change a copy", data.name,
        )  # fmt: skip
