"""Whole runs side by side on this machine: each cell in a forked process of its own, with one thread.

The data are the parent's memory, which the processes share. A cell works in its own folder; how far it has come, what
it logs and how it ended travel to the parent as JSON through a pipe; nothing is pickled.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from types import FrameType
from typing import Any

import torch

from unskew.base import progress
from unskew.base.errors import ClientError, InputError, SlotError, is_from_signal, make_again, one_line
from unskew.base.once import ONCE, warn_once
from unskew.base.process import count_cores, keep_freed_memory
from unskew.core.checks.faults import is_raised_outside
from unskew.core.device import Device
from unskew.executors.pool.forked import Forked, die_with
from unskew.runs import engine
from unskew.runs.comparison import Announce, Elsewhere, Place, run_cell
from unskew.runs.folder import Row, RunFolder
from unskew.runs.sections import Execution
from unskew.runs.side_by_side import Died, Ended, find_unfinished, play_cells, without_processes

log = logging.getLogger(__name__)

Play = Callable[[Place, "engine.Watch | None"], object]
"""What a process does with its cell."""
STOP: int = getattr(signal, "SIGUSR1", signal.SIGTERM)
"""What the parent sends to a cell that is to save and end; Ctrl-C and the like are the parent's to handle."""
OFTEN = 0.1
"""Seconds between two rows of a cell that are shown."""
_SHOWN = ("round", "accuracy", "personal", "stopped")


def read_jobs(given: Any) -> int | None:
    """How many runs at a time; None: as many as fit."""
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise InputError(f"--jobs expects a whole number of at least 1, got {given!r}")
    return given


def count_jobs(asked: int | None, executions: Sequence[Execution]) -> int:
    """As many as asked for, else one per core; 1 where that cannot be, or where runs use several cores themselves."""
    if asked == 1:
        return 1
    obstacle = next((found for each in executions if (found := _find_obstacle(each))), "")
    if obstacle and asked is not None:
        raise InputError(f"--jobs {asked}: {obstacle}")
    pools = [each.workers or count_cores() for each in executions if each.executor == "pool"]
    if obstacle or (pools and asked is None):
        return 1
    jobs, cores = asked or count_cores(), count_cores()
    if pools and jobs * max(pools) > cores:
        warn_once(
            log, f"--jobs {jobs} with executor 'pool' makes {jobs * max(pools)} processes for {cores} cores, which get "
            "into each other's way; leave one of them out",
        )  # fmt: skip
    return jobs


def _find_obstacle(execution: Execution) -> str:
    """Why runs cannot work side by side."""
    if not hasattr(os, "fork"):
        return "runs side by side need a system that can fork (Linux, macOS); leave it out"
    if execution.threads > 1:
        return f"runs side by side have one thread each, got execution.threads = {execution.threads}; leave one out"
    if execution.executor == "ray":
        return "executor 'ray' spreads each run over a cluster; leave it out, or take --cells-on ray instead of both"
    if not Device.from_name(execution.device).is_cpu:
        return f"runs side by side work on the CPU, got device {execution.device}; leave it out"
    return ""


def run_side_by_side(jobs: int, tell: Callable[[str], None] = log.info) -> Elsewhere | None:
    """Who plays so many cells at a time on this machine; None: nobody, one after the other is done by the caller."""

    def play(places: Sequence[Place], announce: Announce | None) -> None:
        waiting = find_unfinished(places)
        number = min(jobs, len(waiting))
        if number > 1:  # a single one needs no process of its own
            RunFolder(next(iter(waiting.values())).path).check_place()  # before anything is said
            tell(f"{number} runs side by side, one thread each (--jobs 1: one after the other)")
            play_here(places, number, announce)

    return play if jobs > 1 else None


def play_here(
    places: Sequence[Place],
    jobs: int,
    announce: Announce | None = None,
    *,
    ended: Ended | None = None,
    play: Play | None = None,
    nice: int = 0,
    patient: bool = False,
) -> None:
    """Plays the unfinished cells, so many at a time, at a lower priority if `nice` is above 0.

    `play`: what is done with a cell, if not to run it; `patient`: as for `play_cells`.
    """
    venue = Processes(jobs, play or run_place, nice)
    play_cells(places, venue, announce=announce, ended=ended, patient=patient)


def run_place(place: Place, watch: engine.Watch | None) -> None:
    """Runs a cell, or what is left of it."""
    run_cell(without_processes(place.run, ("auto",)), place.path, place.data, watch)


# -------------------------------------------------------------------------------------------------- the parent


@dataclass
class _Cell:
    """The parent's end of a cell."""

    title: str
    process: Forked
    pipe: Connection
    watch: engine.Watch | None
    said: Row | None = None
    """How it ended, if it said so."""


class Processes:
    """A venue of forked processes."""

    retries = 0  # what kills a process, such as a lack of memory, does so again

    def __init__(self, jobs: int, play: Play, nice: int = 0) -> None:
        self._jobs, self._play, self._nice = jobs, play, nice
        self._cells: dict[int, _Cell] = {}

    def count_places(self) -> int:
        """As many as it was made for."""
        return self._jobs

    def start(self, number: int, place: Place, watch: engine.Watch | None) -> None:
        """Forks the cell's process."""
        ours, theirs = Pipe(duplex=False)
        closed, parent = [ours, *(cell.pipe for cell in self._cells.values())], os.getpid()

        def work() -> None:
            for pipe in closed:
                pipe.close()
            die_with(parent)
            os.nice(self._nice)
            teller = _Teller(theirs, place.run.rounds) if watch is not None else None
            _work(lambda: self._play(place, teller), theirs)

        with theirs:
            try:
                title = f"{place.run.method}, seed {place.run.seed}"
                self._cells[number] = _Cell(title, Forked(work), ours, watch)
            except OSError as error:
                ours.close()
                if is_from_signal(error):
                    raise
                raise InputError(f"cannot start another process: {error.strerror}; take fewer --jobs") from None

    def wait(self) -> list[int]:
        """Hears what cells say until one has ended."""
        ended = []
        ready = wait([cell.pipe for cell in self._cells.values()])
        for number, cell in self._cells.items():
            if cell.pipe in ready and not self._hear(cell):
                ended.append(number)
        return ended

    def _hear(self, cell: _Cell) -> bool:
        """Takes one message; False: there will be no more."""
        try:
            said: Row = json.loads(cell.pipe.recv_bytes())
        except (EOFError, OSError) as error:
            if is_from_signal(error):
                raise
            return False
        if "ended" in said:
            cell.said = said
            return False
        if "log" in said:
            _log_again(said["log"], cell.title)
        elif "part" in said and (show := getattr(cell.watch, "show_part", None)):
            show(*said["part"])
        elif "row" in said and callable(cell.watch):
            cell.watch(said["row"])
        return True

    def collect(self, number: int) -> BaseException | None:
        """How the cell ended."""
        cell = self._cells.pop(number)
        cell.pipe.close()
        cell.process.join()
        if cell.said is None:
            raise Died(f"its process died with {cell.process.death}; the same command again goes on, with fewer --jobs")
        return _read_error(cell.said["ended"])

    def stop(self, numbers: Collection[int]) -> None:
        """Has the cells save and end, however long that takes; a second signal to this process ends the waiting."""
        ending = {number: self._cells[number] for number in numbers if number in self._cells}
        for cell in ending.values():
            cell.process.send(STOP)
        for number, cell in ending.items():
            while self._hear(cell):
                pass
            cell.pipe.close()
            cell.process.join()
            del self._cells[number]

    def close(self) -> None:
        """Ends all processes that are left."""
        for cell in self._cells.values():
            cell.process.kill()
        for cell in self._cells.values():
            cell.process.join()
            cell.pipe.close()
        self._cells.clear()


def _log_again(said: Row, title: str) -> None:
    """What a cell logged, as if it were logged here, with its name; what is said once in a process is said once."""
    logger = logging.getLogger(said["name"])
    if said["once"]:
        warn_once(logger, said["msg"])
    else:
        logger.handle(logging.makeLogRecord({**said, "msg": f"{title}: {said['msg']}"}))


def _read_error(said: Row | None) -> BaseException | None:
    if said is None:
        return None
    kind, about = said["kind"], said["about"]
    if kind == "input":
        return InputError(said["text"])
    if kind == "system":
        return OSError(about["errno"], about["strerror"], about["filename"])
    if kind == "interrupt":
        return KeyboardInterrupt()
    if kind in ("slot", "client"):
        return make_again(ClientError if kind == "client" else SlotError, (said["text"],), about)
    return RuntimeError(f"a run failed in a process of its own:\n{said['text']}")


# --------------------------------------------------------------------------------------------- a cell's process


class _Teller:
    """Watches a cell's rounds and sends what is shown of them to the parent."""

    def __init__(self, pipe: Connection, rounds: int) -> None:
        self._pipe, self._rounds, self._last = pipe, rounds, 0.0

    def __call__(self, row: Row) -> None:
        """Sends a finished round, not each of many a second."""
        if time.monotonic() - self._last >= OFTEN or row["round"] == self._rounds or "stopped" in row:
            self._last = time.monotonic()
            _send(self._pipe, row={key: row[key] for key in _SHOWN if key in row})


class _Logs(logging.Handler):
    """Sends what is logged to the parent."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__()
        self._pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        """Sends a record."""
        about = {"name": record.name, "levelno": record.levelno, "levelname": record.levelname}
        _send(self._pipe, log={**about, "msg": record.getMessage(), "once": getattr(record, ONCE, False)})


class _Interrupt:
    """Turns the parent's signal into one KeyboardInterrupt."""

    def __init__(self) -> None:
        signal.signal(STOP, self)
        sys.unraisablehook = self._raise_again

    def __call__(self, number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def _raise_again(self, unraisable: Any) -> None:
        """In the middle of a destructor Python would only print it, so it is sent again."""
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            os.kill(os.getpid(), STOP)
        else:
            sys.__unraisablehook__(unraisable)


def _work(play: Callable[[], object], pipe: Connection) -> None:
    """Plays the cell and says how it ended."""
    keep_freed_memory()
    torch.set_num_threads(1)  # OpenMP's threads do not survive a fork: with several it would wait for them for ever
    logger = logging.getLogger("unskew")
    logger.handlers, logger.propagate = [_Logs(pipe)], False
    progress.listen(lambda *said: _send(pipe, part=said))
    failed: Row | None = {"kind": "interrupt", "text": "", "about": {}}
    with contextlib.suppress(KeyboardInterrupt):  # the parent sends one at most; it may come at the very end
        _Interrupt()
        failed = _try(play)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()  # a forked process ends without it
    _send(pipe, ended=failed)


def _try(play: Callable[[], object]) -> Row | None:
    """What went wrong, in plain values."""
    try:
        play()
    except InputError as error:
        return {"kind": "input", "text": one_line(error), "about": {}}
    except SlotError as error:
        kind = "client" if isinstance(error, ClientError) else "slot"
        return {"kind": kind, "text": one_line(error), "about": vars(error)}
    except KeyboardInterrupt:
        return {"kind": "interrupt", "text": "", "about": {}}
    except OSError as error:
        about = {"errno": error.errno, "strerror": error.strerror, "filename": error.filename}
        return {"kind": "system", "text": one_line(error), "about": about}
    except SystemExit as error:
        if is_raised_outside(error):
            text = f"your own code called sys.exit({error.code!r}), and so ended the command; raise an error instead"
            return {"kind": "slot", "text": text, "about": vars(SlotError(text))}
        return {"kind": "other", "text": traceback.format_exc(), "about": {}}
    except BaseException:
        return {"kind": "other", "text": traceback.format_exc(), "about": {}}
    return None


def _send(pipe: Connection, **said: Any) -> None:
    with contextlib.suppress(BrokenPipeError):  # the parent left; the system ends this process
        pipe.send_bytes(json.dumps(said, default=str).encode())
