"""The picture that a run leaves in its folder."""

from __future__ import annotations

from unskew.base.errors import InputError
from unskew.cli.output import note
from unskew.runs.engine import Result

NAME = "curves.png"


def leave_picture(result: Result, without: bool = False) -> None:
    """Draws the run's accuracy over rounds into its folder; the figures are written, whether that works or not."""
    if without or result.folder is None:
        return
    from unskew.report.curves import collect_panels, plot_panels  # matplotlib: half a second, not before the run
    from unskew.report.files import draw_whole

    run = result.run
    title = f"{run.data}, {run.split}, {run.model}"
    panels = collect_panels([(str(run.method), run.method.output, result.rounds)])
    try:
        draw_whole(result.folder / NAME, lambda part: plot_panels(panels, part, title))
    except InputError as error:
        note(f"no picture: {error}")
