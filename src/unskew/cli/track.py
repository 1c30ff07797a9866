"""`unskew track`: a run that is there already, shown in a tracker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from unskew.base.errors import InputError
from unskew.cli.output import console
from unskew.runs.config import read_trackers
from unskew.runs.folder import RunFolder
from unskew.runs.saved import SavedRun, find_runs
from unskew.runs.tracked import show_saved
from unskew.runs.tracking.base import Tracker


def track(
    paths: Annotated[list[Path], typer.Argument(metavar="RUN…", help="folders of runs, or folders that hold some")],
    to: Annotated[list[str], typer.Option(help="the tracker: tensorboard:DIR, mlflow:DIR-or-URI, wandb:PROJECT")],
) -> None:
    """Shows runs in trackers, finished ones or as far as they came; what was shown before is not shown again."""
    trackers = read_checked(to)
    if not trackers:
        raise InputError("--to expects a tracker, such as tensorboard:runs/tensorboard")
    for run in (run for path in paths for run in find_runs(path)):
        console.print(f"{run.path}: {'shown' if show_in(run, trackers) else 'nothing new to show'}", soft_wrap=True)


def read_checked(given: Sequence[str]) -> tuple[Tracker, ...]:
    """Trackers from the words of a flag, ready to be shown something."""
    trackers = read_trackers(",".join(given))
    for tracker in trackers:
        tracker.check()
    return trackers


def show_in(run: SavedRun, trackers: Sequence[Tracker]) -> bool:
    """Shows trackers what they have not seen of a run; False if they had seen all of it."""
    return show_saved(RunFolder.at(run.path), str(run.about["method"]), trackers)
