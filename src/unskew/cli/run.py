"""`unskew run`: one method, one folder of results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unskew.base import storage
from unskew.base.json_text import to_json
from unskew.base.text import Table
from unskew.cli import signals
from unskew.cli.output import console, exit_if_diverged, make_table, show_result
from unskew.cli.picture import leave_picture
from unskew.cli.progress import DownloadProgress, RoundProgress
from unskew.cli.run_flags import add_run_flags
from unskew.cli.shared_flags import DataDir, Json, NoPicture, Quiet
from unskew.core.profile import PARTS, Profile
from unskew.runs import building, engine
from unskew.runs.arguments import to_run
from unskew.runs.config import FLAGS


@add_run_flags(*FLAGS)
def run(
    config: Table,
    out: Annotated[Path | None, typer.Option(help="the run's folder; default: runs/<method>-<data>-<hash>")] = None,
    data_dir: DataDir = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="show where the seconds went, and write profile.json")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    no_picture: NoPicture = False,
) -> None:
    """Runs one method and leaves a folder with its results.

    Example: unskew run --method "fedprox(mu=0.1)" --split dirichlet:0.1 --clients 20 --sample 0.25 --rounds 20
    """
    prepared = building.prepare(to_run(config), data_dir, download=DownloadProgress())
    wanted = prepared.config
    path = out or Path("runs") / wanted.title
    place = path.absolute()  # a slot may change the current folder
    signals.explain_run(path)
    stopwatch = Profile() if profile else None
    with RoundProgress(str(wanted.method), wanted.rounds, quiet) as progress:
        result = engine.start(prepared, path, watch=progress, profile=stopwatch)
    show_result(result.summary, path, as_json)
    leave_picture(result, no_picture)
    if stopwatch is not None:
        _show_profile(stopwatch.seconds, place, as_json)
    exit_if_diverged(result.summary)


def _show_profile(seconds: dict[str, float], folder: Path, as_json: bool) -> None:
    """Where a run's seconds went; also as profile.json in its folder."""
    total = sum(seconds.values())
    parts = {name: seconds[name] for name in PARTS if seconds.get(name)}
    storage.write_atomic(
        folder / "profile.json", (to_json({"seconds": parts, "total": total}, indent=1) + "\n").encode()
    )
    if as_json:
        return
    rows = make_table("part", "seconds", "share", "what", title="where the seconds of all processes went")
    for name, value in parts.items():
        rows.add_row(name, f"{value:.2f}", f"{100 * value / total:.1f} %", PARTS[name])
    console.print(rows)
