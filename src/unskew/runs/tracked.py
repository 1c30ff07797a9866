"""Runs as trackers are told of them, and runs in folders shown to trackers afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unskew.runs.config import RECORDED, Run, read_file
from unskew.runs.folder import RunFolder
from unskew.runs.summary import read_finished
from unskew.runs.tracking.base import TrackedRun, Tracker, list_options
from unskew.runs.tracking.keeping import Tracking

HIDDEN = (*RECORDED, "plugins", "track")
"""Keys of a run that are no options of what it computes."""


def describe(config: Run, folder: Path | None) -> TrackedRun:
    """A run that is about to begin."""
    name = config.title if folder is None else folder.name
    return _describe(config.to_plain(), name, str(config.method), folder)


def _describe(table: Mapping[str, Any], name: str, method: str, folder: Path | None) -> TrackedRun:
    options = list_options({key: value for key, value in table.items() if key not in HIDDEN})
    return TrackedRun(name, method, int(table.get("seed", 0)), options, folder)


def show_saved(folder: RunFolder, method: str, trackers: Sequence[Tracker]) -> bool:
    """Shows trackers what they have not seen of a run, finished or not; False if they had seen all of it."""
    about = _describe(read_file(folder.place / "run.toml"), folder.place.name, method, folder.place)
    tracking = Tracking(trackers, about)
    if tracking.is_idle:
        return False
    with folder.lock():
        tracking.begin(folder.rounds())
        if folder.finished:
            tracking.end(read_finished(folder))
        tracking.close()
    return True
