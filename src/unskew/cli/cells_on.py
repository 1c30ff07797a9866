"""`--cells-on`: where the runs of a comparison or a reproduction work, if not here one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from unskew.base.errors import InputError
from unskew.cli.output import note
from unskew.runs.comparison import Elsewhere, Place


def read_cells_on(text: str | None, quiet: bool) -> Elsewhere | None:
    """Who runs cells elsewhere; None: nobody."""
    if text is None:
        return None
    kind, equals, address = text.partition("=")
    if kind != "ray" or (equals and not address):
        raise InputError(f"--cells-on expects ray, or ray=ADDRESS such as ray=10.0.0.5:6379, got '{text}'")
    from unskew.executors.ray.executor import import_ray
    from unskew.runs.cells_on_ray import play_cells

    import_ray()  # now: before anything takes time

    def play(places: Sequence[Place]) -> None:
        play_cells(places, address, (lambda line: None) if quiet else note)

    return play
