"""Whole runs side by side on a Ray cluster: the cells of a comparison or of a queue, each in a process of its own.

A cell works in a folder of its node; what it has written is fetched every while, so that a stop, or a node that dies,
costs no more than the time since then. Finished, its folder is the one that a run on this machine would have left.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from unskew.base import storage
from unskew.base.errors import InputError, SlotError, one_line
from unskew.data.dataset import Dataset
from unskew.executors.ray.actor import Bytes, pack_data, unpack_data
from unskew.executors.ray.executor import RETRIES, connect, import_ray, sent_by_value
from unskew.runs.comparison import Announce, Place, run_cell
from unskew.runs.config import Run
from unskew.runs.engine import Watch
from unskew.runs.side_by_side import Died, Ended, find_unfinished, play_cells, without_processes

log = logging.getLogger(__name__)

EVERY = 20.0
"""Seconds between two looks at what cells have written."""

Files = dict[str, bytes]


class Host:
    """On a node: one cell, in a folder of its own, which can be looked at while it is at work."""

    def __init__(self, run: Run, about: Any, raw: Bytes, files: Files) -> None:
        self._run, self._data = run, unpack_data(about, raw)
        self._home = tempfile.TemporaryDirectory(prefix="unskew-cell-")
        self._path = Path(self._home.name) / "run"
        if files:
            write_files(files, self._path)

    def play(self) -> BaseException | None:
        """Runs the cell, from where it stopped; what went wrong, as it would be raised here."""
        try:
            run_cell(self._run, self._path, self._data, None)
        except (InputError, SlotError) as error:
            return error
        return None

    def fetch(self) -> Files:
        """All files of the folder as they are now."""
        return read_files(self._path)


def play_on_ray(
    places: Sequence[Place],
    address: str = "",
    announce: Announce | None = None,
    ended: Ended | None = None,
    patient: bool = False,
) -> None:
    """Runs every cell that is not finished; afterwards all their folders are here. `patient`: as for `play_cells`."""
    if find_unfinished(places):
        play_cells(places, Cluster(address), announce=announce, ended=ended, patient=patient)


class Cluster:
    """A venue of Ray actors, as many as the cluster has cores."""

    retries = RETRIES

    def __init__(self, address: str = "") -> None:
        self._started, self._ray = connect(address), import_ray()
        self._busy: dict[int, tuple[Any, Any, Place]] = {}
        """By number: what tells that a cell has ended, where it is, and which one."""
        self._data: dict[int, tuple[Dataset, Any, Any]] = {}
        self._seen = time.monotonic()

    def count_places(self) -> int:
        """One for each core that the cluster has now."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 0)))

    def start(self, number: int, place: Place, watch: Watch | None) -> None:
        """Sends a cell to a node, with what it has written so far; how its rounds go is not told."""
        # the run's own executor would be a cluster in a cluster
        run = without_processes(place.run, ("pool", "ray", "auto"))
        run = replace(run, track=())  # trackers are shown the cell when it is here
        options = {"num_cpus": 1, "scheduling_strategy": "SPREAD", "max_concurrency": 2}  # to play and to be looked at
        given = run, *self._send(place.data), read_files(place.path)
        with sent_by_value(self._ray):
            host = self._ray.remote(Host).options(**options).remote(*given)
        self._busy[number] = host.play.remote(), host, place

    def _send(self, data: Dataset) -> tuple[Any, Any]:
        """References to the data in the object store, where each data set is put once."""
        if id(data) not in self._data:
            about, raw = pack_data(data)
            self._data[id(data)] = data, self._ray.put(about), self._ray.put(raw)
        return self._data[id(data)][1:]

    def wait(self) -> list[int]:
        """The cells that have ended within some seconds; fetches what the others have written, now and then."""
        numbers = {future: number for number, (future, _, _) in self._busy.items()}
        ended = [numbers[future] for future in self._ray.wait(list(numbers), num_returns=1, timeout=EVERY)[0]]
        if time.monotonic() - self._seen > EVERY:
            self._fetch(self._busy.keys())
            self._seen = time.monotonic()
        return ended

    def collect(self, number: int) -> BaseException | None:
        """Fetches an ended cell's files; what went wrong."""
        future, host, place = self._busy.pop(number)
        try:
            failed, files = self._ray.get(future), self._ray.get(host.fetch.remote())
        except self._ray.exceptions.RayError as error:
            how = one_line(error)[:200]
            log.warning("%s: its process on the cluster died (%s)", place.path.name, how)
            raise Died(f"its process on the cluster died: {how}") from None
        write_files(files, place.path)
        self._ray.kill(host)
        if isinstance(failed, SlotError):
            failed.folder = str(place.path)
        return failed  # type: ignore[no-any-return]

    def stop(self, numbers: Collection[int]) -> None:
        """Fetches what these cells have written, and ends them."""
        self._fetch(numbers)
        for number in list(numbers):
            self._kill(number)

    def close(self) -> None:
        """Ends all cells, and the cluster if it was begun here."""
        for number in list(self._busy):
            self._kill(number)
        if self._started:
            self._ray.shutdown()

    def _kill(self, number: int) -> None:
        if number in self._busy:
            with contextlib.suppress(Exception):
                self._ray.kill(self._busy.pop(number)[1])

    def _fetch(self, numbers: Collection[int]) -> None:
        """What cells have written so far; one that does not answer keeps what was fetched before."""
        cells = [self._busy[number] for number in numbers if number in self._busy]
        looks = {host.fetch.remote(): place for _, host, place in cells}
        if not looks:
            return
        ready, _ = self._ray.wait(list(looks), num_returns=len(looks), timeout=EVERY)
        for future in ready:
            with contextlib.suppress(self._ray.exceptions.RayError):
                write_files(self._ray.get(future), looks[future].path)


def read_files(folder: Path) -> Files:
    """The files of a run's folder; of one that is being written, whole files only."""
    found: Files = {}
    for path in sorted(folder.rglob("*")) if folder.exists() else []:
        if path.is_file() and path.suffix != ".part":
            with contextlib.suppress(FileNotFoundError):  # an old checkpoint, removed meanwhile
                found[path.relative_to(folder).as_posix()] = path.read_bytes()
    return found


def write_files(files: Files, folder: Path) -> None:
    """The same files here, and no others; the summary last, which says that the run is finished."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in sorted(files, key=lambda name: (name == "summary.json", name)):
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise InputError(f"a cell on the cluster names a file outside of its folder: {name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_bytes() != files[name]:
            storage.write_atomic(path, files[name], sync=False)
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        if path.relative_to(folder).as_posix() not in files:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
