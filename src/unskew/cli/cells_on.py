"""`--jobs` and `--cells-on`: where the runs of a comparison or a reproduction work, if not here one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from unskew.base.errors import InputError
from unskew.cli.output import note
from unskew.runs.cells_here import count_jobs, read_jobs, run_side_by_side
from unskew.runs.comparison import Announce, Elsewhere, Place
from unskew.runs.sections import Execution


def choose_elsewhere(
    jobs: int | None, cells_on: str | None, executions: Sequence[Execution], quiet: bool, patient: bool = False
) -> Elsewhere | None:
    """Who runs cells side by side, of runs that work in these ways; None: nobody, they take turns in this process.

    `patient`: on a cluster a cell that fails does not end those behind it.
    """
    if cells_on is None:
        number = count_jobs(read_jobs(jobs), executions)
        return run_side_by_side(number, _keep_quiet if quiet else note)
    if jobs is not None:
        raise InputError("--cells-on takes the cores of a cluster, --jobs those of this machine; leave one of them out")
    return _read_cells_on(cells_on, quiet, patient)


def _read_cells_on(text: str, quiet: bool, patient: bool) -> Elsewhere:
    kind, equals, address = text.partition("=")
    if kind != "ray" or (equals and not address):
        raise InputError(f"--cells-on expects ray, or ray=ADDRESS such as ray=10.0.0.5:6379, got '{text}'")
    from unskew.executors.ray.executor import import_ray
    from unskew.runs.cells_on_ray import play_on_ray

    import_ray()  # now: before anything takes time

    def tell(place: Place, done: int, total: int) -> None:
        note(f"{place.run.method}, seed {place.run.seed}: finished on the cluster ({done} of {total})")

    def play(places: Sequence[Place], announce: Announce | None) -> None:
        play_on_ray(places, address, announce, None if quiet else tell, patient)

    return play


def _keep_quiet(_: str) -> None:
    """Says nothing."""
