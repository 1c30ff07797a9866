"""Whole runs side by side on a Ray cluster: the cells of a comparison or of a queue, each in a process of its own.

A cell works in a folder of its node; what it has written is fetched every while, so that a stop, or a node that dies,
costs no more than the time since then. Finished, its folder is the one that a run on this machine would have left.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from unskew.base import storage
from unskew.base.errors import InputError, SlotError, one_line
from unskew.data.dataset import Dataset
from unskew.executors.ray.actor import Bytes, pack_data, unpack_data
from unskew.executors.ray.executor import RETRIES, connect, import_ray, sent_by_value
from unskew.runs import rules
from unskew.runs.comparison import Place, run_cell
from unskew.runs.config import Run
from unskew.runs.folder import RunFolder

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


def play_cells(places: Sequence[Place], address: str = "", said: Callable[[str], None] = log.info) -> None:
    """Runs every cell that is not finished; afterwards all their folders are here. `said`: told of each that ends."""
    waiting = [place for place in places if not RunFolder(place.path).finished]
    if not waiting:
        return
    started = connect(address)
    try:
        _Cells(waiting, said).play()
    finally:
        if started:
            import_ray().shutdown()


class _Cells:
    """Cells on their way, as many as the cluster has cores."""

    def __init__(self, waiting: list[Place], said: Callable[[str], None]) -> None:
        self._ray, self._waiting, self._said = import_ray(), waiting, said
        self._total = len(waiting)
        self._busy: dict[Any, tuple[Any, Place]] = {}
        """By what tells that a cell has ended: where it is, and which one."""
        self._data: dict[int, tuple[Dataset, Any, Any]] = {}
        self._deaths: dict[Path, int] = {}
        self._done = 0

    def play(self) -> None:
        """Until all are done; whatever ends it, what was written so far is here."""
        try:
            seen = time.monotonic()
            while self._waiting or self._busy:
                while self._waiting and len(self._busy) < max(1, int(self._ray.cluster_resources().get("CPU", 0))):
                    self._start(self._waiting.pop(0))
                for future in self._ray.wait(list(self._busy), num_returns=1, timeout=EVERY)[0]:
                    self._end(future)
                if time.monotonic() - seen > EVERY:
                    self._fetch_all()
                    seen = time.monotonic()
        except BaseException:
            self._fetch_all()
            raise
        finally:
            for host, _ in self._busy.values():
                with contextlib.suppress(Exception):
                    self._ray.kill(host)

    def _start(self, place: Place) -> None:
        # the run's own executor would be a cluster in a cluster; serial gives its bits
        chosen = place.run.execution
        execution = rules.change(chosen, executor="serial", workers=0, address="", gpus=0.0)
        same = chosen.executor in ("pool", "ray", "auto")
        run = replace(place.run, execution=execution) if same else place.run
        run = replace(run, track=())  # trackers are shown the cell when it is here
        options = {"num_cpus": 1, "scheduling_strategy": "SPREAD", "max_concurrency": 2}  # to play and to be looked at
        given = run, *self._send(place.data), read_files(place.path)
        with sent_by_value(self._ray):
            host = self._ray.remote(Host).options(**options).remote(*given)
        self._busy[host.play.remote()] = host, place

    def _send(self, data: Dataset) -> tuple[Any, Any]:
        """References to the data in the object store, where each data set is put once."""
        if id(data) not in self._data:
            about, raw = pack_data(data)
            self._data[id(data)] = data, self._ray.put(about), self._ray.put(raw)
        return self._data[id(data)][1:]

    def _end(self, future: Any) -> None:
        host, place = self._busy.pop(future)
        try:
            failed, files = self._ray.get(future), self._ray.get(host.fetch.remote())
        except self._ray.exceptions.RayError as error:
            deaths = self._deaths[place.path] = self._deaths.get(place.path, 0) + 1
            how = one_line(error)[:200]
            if deaths > RETRIES:
                raise InputError(f"{place.path.name}: its process on the cluster died {deaths} times: {how}") from None
            log.warning("%s: its process on the cluster died (%s); it goes on elsewhere", place.path.name, how)
            self._waiting.insert(0, place)
            return
        write_files(files, place.path)
        self._ray.kill(host)
        if failed is not None:
            if isinstance(failed, SlotError):
                failed.folder = str(place.path)
            raise failed
        self._done += 1
        self._said(
            f"{place.run.method}, seed {place.run.seed}: finished on the cluster ({self._done} of {self._total})"
        )

    def _fetch_all(self) -> None:
        """What cells have written so far; one that does not answer keeps what was fetched before."""
        looks = {host.fetch.remote(): place for host, place in self._busy.values()}
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
