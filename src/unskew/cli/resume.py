"""`unskew resume`: continues an interrupted run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unskew.cli.output import note, show_result
from unskew.cli.progress import RoundProgress
from unskew.cli.shared_flags import DataDir, Json, Quiet
from unskew.runs import engine
from unskew.runs.folder import RunFolder


def resume(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="the run's folder")],
    data_dir: DataDir = None,
    executor: Annotated[str | None, typer.Option(help="another executor than the run began with")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Resumes an interrupted run, bit for bit, from its newest complete checkpoint."""
    folder, config = RunFolder.open(path)
    if folder.finished:
        summary = folder.summary()
        note(f"{path} is finished already; nothing to do")
        show_result(summary, path, as_json)
        return
    with RoundProgress(str(config.method), config.rounds, quiet) as progress:
        result = engine.resume(path, data_dir=data_dir, watch=progress, executor=executor)
    show_result(result.summary, path, as_json)
