"""`unskew extend`: a run goes on to more rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unskew.cli import signals
from unskew.cli.output import exit_if_diverged, note, show_result
from unskew.cli.picture import leave_picture
from unskew.cli.progress import RoundProgress
from unskew.cli.shared_flags import DataDir, Json, NoPicture, Quiet
from unskew.runs import engine
from unskew.runs.config import Run
from unskew.runs.folder import RunFolder


def extend(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="the run's folder; it stays as it is")],
    rounds: Annotated[int, typer.Option(min=1, help="how many rounds there shall be in all")],
    out: Annotated[Path | None, typer.Option(help="the longer run's folder; default: one beside the old")] = None,
    data_dir: DataDir = None,
    executor: Annotated[str | None, typer.Option(help="another executor than the run began with")] = None,
    accept_changed_code: Annotated[
        bool, typer.Option("--accept-changed-code", help="go on although your own code changed, and record it")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    no_picture: NoPicture = False,
) -> None:
    """Continues a run to more rounds, in a folder of its own.

    The result is that of so many rounds from the start, bit for bit; where something depends on the number of rounds, a
    line says that it is not.

    Example: unskew extend runs/x --rounds 400
    """

    place = path

    def announce(folder: Path, run: Run) -> None:
        nonlocal place
        place = folder
        signals.explain_run(folder)
        note(f"{path} goes on to {run.rounds} rounds in {folder}, after round {run.extended[-1]['after']}")

    _, config = RunFolder.open(path, accept=accept_changed_code)
    with RoundProgress(str(config.method), rounds, quiet) as progress:
        result = engine.extend(
            path, rounds, out, data_dir=data_dir, watch=progress, executor=executor,
            accept_changed_code=accept_changed_code, announce=announce,
        )  # fmt: skip
    show_result(result.summary, place, as_json)
    leave_picture(result, no_picture)
    exit_if_diverged(result.summary)
