"""`unskew resume`: continues an interrupted run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from unskew.base.errors import InputError
from unskew.cli import signals
from unskew.cli.output import exit_if_diverged, note, show_result
from unskew.cli.picture import leave_picture
from unskew.cli.progress import RoundProgress
from unskew.cli.shared_flags import DataDir, Json, NoPicture, Quiet
from unskew.cli.track import read_checked, show_in
from unskew.runs import engine
from unskew.runs.config import read_trackers
from unskew.runs.folder import EditedRun, RunFolder
from unskew.runs.saved import SavedRun
from unskew.runs.summary import check_summary, read_finished


def resume(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="the run's folder")],
    data_dir: DataDir = None,
    executor: Annotated[str | None, typer.Option(help="another executor than the run began with")] = None,
    track: Annotated[
        list[str] | None, typer.Option(help="other trackers than the run began with; empty text: none")
    ] = None,
    accept_changed_code: Annotated[
        bool, typer.Option("--accept-changed-code", help="go on although your own code changed, and record it")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    no_picture: NoPicture = False,
) -> None:
    """Resumes an interrupted run, bit for bit, from its newest complete checkpoint."""
    if RunFolder.at(path).finished:
        show_finished(path, as_json, track or ())
        return
    _, config = RunFolder.open(path, accept=accept_changed_code)
    signals.explain_run(path)
    with RoundProgress(str(config.method), config.rounds, quiet) as progress:
        result = engine.resume(
            path,
            data_dir=data_dir,
            watch=progress,
            executor=executor,
            accept_changed_code=accept_changed_code,
            track=read_trackers(",".join(track)) if track else None,
        )
    show_result(result.summary, path, as_json)
    leave_picture(result, no_picture)
    exit_if_diverged(result.summary)


def show_finished(path: Path, as_json: bool, track: Sequence[str] = ()) -> None:
    """Shows a finished run, also if its code is gone by now, here and in other trackers."""
    summary = read_finished(RunFolder(path))
    try:
        _, config = RunFolder.open(path)
        check_summary(config, summary, path)
    except EditedRun:
        raise
    except InputError as error:
        note(f"run.toml can no longer be read: {error}")
    ended = f"diverged in round {summary['diverged_in']}" if summary.get("diverged_in") else "is finished already"
    note(f"{path} {ended}; {_show_elsewhere(path, track)}")
    show_result(summary, path, as_json)
    exit_if_diverged(summary)


def _show_elsewhere(path: Path, track: Sequence[str]) -> str:
    """Shows a run in these trackers; says what was done."""
    trackers = read_checked(track)  # not before its plugins are loaded: one may be theirs
    if not trackers:
        return "nothing to do"
    names = ", ".join(map(str, trackers))
    return f"shown in {names}" if show_in(SavedRun(path), trackers) else f"{names} has been shown all of it"
