"""Methods compared fairly: per seed one federation, the same clients, batches and initial weights for all."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from unskew.base import display
from unskew.base.display import Drawable
from unskew.base.errors import DamagedRun, InputError
from unskew.base.process import neutral_torch
from unskew.base.registry import construct, to_table
from unskew.base.storage import write_atomic
from unskew.base.text import count_of
from unskew.core.method import Method
from unskew.data.dataset import Dataset
from unskew.data.partition.saved import load_partition
from unskew.data.sources import load
from unskew.runs import building, engine
from unskew.runs.config import Run, read_file
from unskew.runs.folder import Row, RunFolder
from unskew.runs.summary import read_finished
from unskew.runs.tracked import show_saved

log = logging.getLogger(__name__)
PLAN = ".planned.json"
Metric = Literal["last", "last_k", "last_10_percent", "best_on_validation", "best_on_test"]


@dataclass(frozen=True)
class CellResult:
    """One method under one seed."""

    method: str
    seed: int
    folder: Path
    summary: Row
    rounds: list[Row]
    reused: bool
    output: str = ""
    """Which model is the method's product, as it declares."""


class Cells(list[CellResult], Drawable):
    """The runs of a comparison, one after the other; notebooks show their table and curves."""

    def __repr__(self) -> str:  # the runs' own would be pages of rows
        methods = ", ".join(dict.fromkeys(cell.method for cell in self))
        return f"<comparison of {methods or 'nothing'}: {count_of(len(self), 'run')}>"

    def table(self, title: str = "", *, metric: Metric = "last", columns: str | Sequence[str] = ()) -> display.Shown:
        """The comparison's table, which notebooks show; `print` gives Markdown, `.to_text("csv")` other forms."""
        return display.make_table(self, title, metric=metric, columns=columns)


class Place(NamedTuple):
    """A resolved run, its data and the folder it is to have."""

    run: Run
    data: Dataset
    path: Path


Announce = Callable[[Run, int, int], engine.Watch | None]
"""Called before each cell with its run, number and the number of all cells; gives who watches its rounds."""
Elsewhere = Callable[[Sequence[Place], Announce | None], None]
"""Runs cells side by side, in other processes or on a cluster; afterwards their folders are here."""


@neutral_torch()
def compare(
    base: Run,
    methods: Sequence[Method],
    seeds: Sequence[int],
    out: Path,
    *,
    data_dir: Path | None = None,
    dataset: Dataset | None = None,
    announce: Announce | None = None,
    elsewhere: Elsewhere | None = None,
) -> Cells:
    """Runs every method under every seed; finished cells are read back, interrupted ones are resumed.

    `elsewhere`: who runs them side by side, if not this process one after the other.
    """
    names = [str(method) for method in methods]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise InputError(f"'{twice}' is named twice in the comparison; give each method once, with different options")
    loaded = dataset if dataset is not None else load(base.data, data_dir)
    wanted = [construct(Run, {**vars(base), "method": method, "seed": seed}) for seed in seeds for method in methods]
    places = place_runs(wanted, loaded, out / "runs")
    _write_plan(out, places)
    cells = compare_runs(places, announce, elsewhere)
    with suppress(OSError):
        (out / PLAN).unlink()
    return cells


def place_runs(wanted: Sequence[Run], data: Dataset, folder: Path) -> list[Place]:
    """The runs resolved, each with its own folder in this one; every one is checked before the first is run."""
    for run in wanted:
        building.check_method(run)
    folder = folder.absolute()  # a slot may change the current folder
    runs = [run.resolve(building.prepare_data(run, dataset=data)) for run in wanted]
    for run in runs:
        if run.init is not None or run.freeze:
            building.build_model(run, data)  # a method's network may not fit to the weights
    return [Place(run, data, folder / f"{run.method.name}-seed{run.seed}-{run.hash}") for run in runs]


def _write_plan(out: Path, places: Sequence[Place]) -> None:
    """Leaves the names of all cells while they are played, for who watches; nothing depends on it."""
    with suppress(OSError):  # whether the folder can be written is said with the first run
        out.mkdir(parents=True, exist_ok=True)
        write_atomic(out / PLAN, json.dumps([place.path.name for place in places]).encode())


def read_plan(folder: Path) -> list[str]:
    """The cells that the newest comparison in this folder is to have, begun or not; none where it left no list."""
    with suppress(OSError, ValueError):
        found = json.loads((folder / PLAN).read_text(encoding="utf-8"))
        if isinstance(found, list) and all(isinstance(name, str) for name in found):
            return found
    return []


def compare_runs(
    places: Sequence[Place], announce: Announce | None = None, elsewhere: Elsewhere | None = None
) -> Cells:
    """Plays the cells of a comparison; those of one seed must have had the same federation."""
    cells = Cells()
    for cell in play_places(places, announce, elsewhere):
        cells.append(cell)
        _check_split(cells)
    return cells


def play_places(
    places: Sequence[Place], announce: Announce | None = None, elsewhere: Elsewhere | None = None
) -> Iterator[CellResult]:
    """Every cell in its order: finished ones are read back, interrupted ones resumed, the others run."""
    finished = {place.path for place in places if RunFolder(place.path).finished}
    if elsewhere is not None:
        elsewhere(places, announce)
    for number, (run, data, path) in enumerate(places, 1):
        watch = announce(run, number, len(places)) if announce else None
        yield replace(run_cell(run, path, data, watch), reused=path in finished)


def _check_split(cells: Sequence[CellResult]) -> None:
    """All methods of a seed must have had the same federation."""
    newest = cells[-1]
    for cell in cells[:-1]:
        one, other = cell.summary.get("split_hash"), newest.summary.get("split_hash")
        if cell.seed == newest.seed and one and other and one != other:
            raise InputError(
                f"{newest.folder.name} and {cell.folder.name} of seed {cell.seed} have different splits, so that they "
                "cannot be compared; choose another --out"
            )


def check_folder(out: Path) -> None:
    """Refuses a file, and a run's folder, in the place of a comparison's folder."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; choose another --out, a folder")
    if (out / "run.toml").exists():
        raise InputError(f"{out} is the folder of a run; choose another --out")


def run_cell(run: Run, path: Path, data: Dataset, watch: engine.Watch | None) -> CellResult:
    """Runs a resolved run into its folder; a finished one is read back, an interrupted one is resumed."""
    with _advising(path):
        return _run_cell(run, path, data, watch)


@contextmanager
def _advising(path: Path) -> Iterator[None]:
    """What a run's own errors advise is for who chose its folder; of a cell nobody did, but it can be moved away."""
    try:
        yield
    except DamagedRun as error:
        error.args = (f"{error}; or move {path} away, and the same command plays this run from its start",)
        raise


def _run_cell(run: Run, path: Path, data: Dataset, watch: engine.Watch | None) -> CellResult:
    folder = RunFolder(path)
    reused, begun = folder.finished, (path / "run.toml").exists()
    if begun:
        _warn_unmeasured(run, path)
    if reused:
        _check_run(run, path)
        _check_data(run, folder, building.prepare_data(run, dataset=data))
        show_saved(folder, str(run.method), run.track)
    elif begun:
        engine.resume(path, dataset=data, watch=watch, known=run, track=run.track or None)
    else:
        folder.check_free()  # before anything takes time
        engine.start(building.prepare_resolved(run, building.prepare_data(run, dataset=data)), path, watch=watch)
    rows = [row for _, row in sorted(folder.rounds().items())]
    return CellResult(str(run.method), run.seed, folder.place, read_finished(folder), rows, reused, run.method.output)


def _check_run(run: Run, path: Path) -> None:
    """A finished cell must be of the run that its folder is named for, or of one that went on with changed code."""
    folder, found = RunFolder.open(path, known=run)
    written = folder.summary().get("run")
    for name, fits, hash_ in (
        ("run.toml", run.hash in found.hashes, found.hash),
        ("summary.json", written == found.hash, written),
    ):
        if not fits:
            raise DamagedRun(f"{path / name} is of run {hash_}, not of {run.hash}; restore it, or choose another --out")
    for change in found.code_changes:
        log.warning("%s went on with changed code after round %d; the table says so", path, change["round"])


def _check_data(run: Run, folder: RunFolder, data: Dataset) -> None:
    saved = load_partition(folder.split, data)
    if not saved.fits(data):
        raise InputError(f"{folder.path} was run on other data than '{run.data}' gives now; choose another --out")
    if run.split.name == "file" and building.cut(run, data).hash != saved.hash:
        raise InputError(f"{folder.path} was run with another partition than {run.split} is now; choose another --out")


def _warn_unmeasured(run: Run, path: Path) -> None:
    """Measures change no result, so an existing run counts; what it did not measure stays unmeasured."""
    begun = read_file(path / "run.toml").get("measure", [])  # not built: they may be of a plugin that is gone
    missing = [str(measure) for measure in run.measure if to_table(measure) not in begun]
    if missing:
        log.warning("%s was begun without measure %s; to have it, choose another --out", path, ", ".join(missing))
