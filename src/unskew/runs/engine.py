"""From a `Run` to its result: begins runs, resumes and extends them, looks at what they left."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from unskew.base.errors import DamagedRun, InputError
from unskew.base.once import warn_once
from unskew.base.process import prepare_process
from unskew.base.tree import Groups
from unskew.core.checks.asking import ask_server
from unskew.core.profile import Profile
from unskew.data.dataset import Dataset
from unskew.data.files.download import Progress
from unskew.models.base import Architecture
from unskew.runs import checkpoint, extending
from unskew.runs.building import Prepared, make_executor, prepare
from unskew.runs.calibration import settle
from unskew.runs.client_store import SavedStates
from unskew.runs.config import RECORDED, Run
from unskew.runs.folder import RunFolder
from unskew.runs.labels import write_labels
from unskew.runs.loop import Loop, MakeExecutor, Watch, identify, try_server
from unskew.runs.models import Models
from unskew.runs.reopening import compare_code, explain_no_checkpoint, give_parts, reopen
from unskew.runs.result import Result
from unskew.runs.state_file import NAME, SERVER_NAME
from unskew.runs.tracking.base import Tracker
from unskew.runs.weights import Weights

__all__ = ["Result", "Watch", "extend", "look", "proceed", "resume", "run", "start"]

log = logging.getLogger(__name__)


def run(
    config: Run,
    out: Path | str | None = None,
    *,
    data_dir: Path | None = None,
    dataset: Dataset | None = None,
    watch: Watch | None = None,
    download: Progress | None = None,
    profile: Profile | None = None,
) -> Result:
    """Runs a method from the start; with `out` it leaves a run folder that can be resumed.

    `profile` collects where the seconds of the rounds go.
    """
    if out is not None:
        RunFolder(Path(out)).check_free()  # before anything takes time
    with prepare_process(config.execution.threads):
        return start(prepare(config, data_dir, dataset, download), out, watch=watch, profile=profile)


def start(
    prepared: Prepared,
    out: Path | str | None = None,
    *,
    watch: Watch | None = None,
    profile: Profile | None = None,
    executor: MakeExecutor = make_executor,
) -> Result:
    """Runs what was prepared, as `run` does; `executor`: makes who does the clients' work, if not as the run says."""
    folder = RunFolder(Path(out)) if out is not None else None  # now: a slot may change the current folder
    with prepare_process(prepared.config.execution.threads):
        task = prepared.task
        config = settle(prepared.config, task)
        server = try_server(config, task)
        task = replace(task, profile=profile)
        if folder is None:
            if every := config.execution.checkpoint_every:
                warn_once(log, f"execution.checkpoint_every = {every} does nothing without out: no folder to write to")
            return Loop(config, task, None, watch, executor).run(server)
        folder.create(config)
        with folder.lock():
            task.federation.partition.save(folder.split)
            if executor is make_executor:  # else the data may be elsewhere
                write_labels(folder, task.federation)
            return Loop(config, task, folder, watch, executor).run(server)


def resume(
    path: Path | str,
    *,
    data_dir: Path | None = None,
    dataset: Dataset | None = None,
    watch: Watch | None = None,
    executor: str | None = None,
    model: Architecture | None = None,
    init: Weights | None = None,
    accept_changed_code: bool = False,
    known: Run | None = None,
    track: Sequence[Tracker] | None = None,
) -> Result:
    """Continues an interrupted run bit for bit from its newest whole checkpoint.

    If the user's code changed it refuses, or goes on and records it (`accept_changed_code`). `known`: the run, if the
    caller has it already. `track`: other trackers than the run has been shown to.
    """
    folder, config = RunFolder.open(Path(path), known, accept_changed_code)
    config = reopen(folder, config, model, init, executor)
    if track is not None:
        config = replace(config, track=tuple(track))
    config = compare_code(config, known.code if known else config.find_code(), folder, accept_changed_code)
    with prepare_process(config.execution.threads), folder.lock():
        has_split = folder.split.exists()
        prepared = prepare(config, data_dir, dataset, saved_split=folder.split if has_split else None)
        task = prepared.task
        if not has_split:
            task.federation.partition.save(folder.split)
            write_labels(folder, task.federation)
        folder.drop_torn_lines()
        recorded = {key: getattr(config, key) for key in RECORDED}
        return Loop(replace(settle(prepared.config, task), **recorded), task, folder, watch).run()


def extend(
    path: Path | str,
    rounds: int,
    out: Path | str | None = None,
    *,
    data_dir: Path | None = None,
    dataset: Dataset | None = None,
    watch: Watch | None = None,
    executor: str | None = None,
    model: Architecture | None = None,
    init: Weights | None = None,
    accept_changed_code: bool = False,
    announce: Callable[[Path, Run], None] | None = None,
) -> Result:
    """Continues a run to more rounds, in a folder of its own: `out`, else one beside it; the old one stays as it is.

    The result is that of so many rounds from the start, bit for bit, unless something depends on their number: then a
    line says so, and it is another run by its hash. `announce` is called with folder and run before the first round.
    """
    new = RunFolder(Path(out)) if out is not None else None
    if new is not None:
        new.check_free()  # before anything takes time
    folder, config = RunFolder.open(Path(path), accept=accept_changed_code)
    begun = reopen(folder, config, model, init, executor)
    config = compare_code(begun, begun.find_code(), folder, accept_changed_code)
    with prepare_process(config.execution.threads):
        with folder.lock():
            if not folder.finished:
                folder.drop_torn_lines()
            extending.check_rounds(folder, config, rounds)
            prepared = prepare(replace(config, rounds=rounds), data_dir, dataset, saved_split=folder.split)
            task = prepared.task
            short = identify(config, task)
            found = checkpoint.load_newest(folder.checkpoints, short, max(folder.rounds(), default=0))
            made = extending.describe(begun, rounds, found, folder.path)
            begun, config = (extending.lengthen(each, rounds, made) for each in (begun, config))
            new = new or RunFolder(extending.choose_place(folder.path, made["run"], config))
            extending.take_over(folder, found, new, begun, replace(short, run=begun.hash))
        if announce is not None:
            announce(new.path, config)
        recorded = {key: getattr(config, key) for key in RECORDED}
        with new.lock():
            return Loop(replace(settle(prepared.config, task), **recorded), task, new, watch).run()


def proceed(
    path: Path | str, prepared: Prepared, *, watch: Watch | None = None, executor: MakeExecutor = make_executor
) -> Result:
    """Continues a run whose data are elsewhere, with what was prepared for it anew; the same code and settings."""
    folder, config = RunFolder.open(Path(path))
    if config.hash != prepared.config.hash:
        raise InputError(f"{folder.path} is of run {config.hash}, but the run file gives {prepared.config.hash} now")
    with prepare_process(config.execution.threads), folder.lock():
        folder.drop_torn_lines()
        return Loop(prepared.config, prepared.task, folder, watch, executor).run()


def _check_last(folder: RunFolder, newest: int) -> None:
    """Refuses to take an older checkpoint for the end of a finished run."""
    rows = folder.list_rows()
    if rows and newest < rows[-1]["round"]:
        raise DamagedRun(
            f"{folder.path} is finished after round {rows[-1]['round']}, but its newest whole checkpoint is of round "
            f"{newest}; restore it, or remove summary.json, then 'unskew resume {folder.path}' goes on from there"
        )


def look(
    path: Path | str,
    *,
    data_dir: Path | None = None,
    dataset: Dataset | None = None,
    model: Architecture | None = None,
    init: Weights | None = None,
    accept_changed_code: bool = False,
) -> Models:
    """What a run's models are made of, as of its newest whole checkpoint; runs nothing and writes nothing."""
    folder, config = RunFolder.open(Path(path), accept=accept_changed_code)
    config = give_parts(config, model, init, folder)
    config = compare_code(config, config.find_code(), folder, accept_changed_code, goes_on=False)
    with prepare_process(config.execution.threads):
        prepared = prepare(config, data_dir, dataset, saved_split=folder.split if folder.split.exists() else None)
        config, task = replace(prepared.config, **{key: getattr(config, key) for key in RECORDED}), prepared.task
        found = checkpoint.load_newest(folder.checkpoints, identify(config, task), max(folder.rounds(), default=0))
        if found is None:
            raise InputError(explain_no_checkpoint(folder))
        if folder.finished:
            _check_last(folder, found.round)
        remembered, states = (
            SavedStates(folder.checkpoints, snapshot, name)
            for snapshot, name in ((found.remembered, SERVER_NAME), (found.states, NAME))
        )
        task = replace(task, server_store=remembered)
        s = task.server_context(found.round, server=found.server).read_only()
        published: Groups = ask_server(task, "publish", s, found.server)
        return Models(config, task, states, found.server, published, found.round)
