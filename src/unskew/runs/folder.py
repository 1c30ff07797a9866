"""A run's folder: what a run writes, in which order, and how it is read back.

    run.toml           the resolved run; its hash names the run
    split.json         which client holds which samples
    labels.json        how many of each class, see runs/labels.py
    rounds.jsonl       one object a round, round 0 being the initial model
    clients.jsonl      one object a client and round, and one a client and test
    checkpoint/        the newest states, see runs/checkpoint.py
    model.safetensors  the final global model
    per_class.csv      the last test by classes, and confusion.csv, see runs/last_test.py
    summary.json       the figures; its presence says that the run is finished

Rows are only ever appended; where a round was run again after a crash with another result, its last row counts.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import platform
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from unskew.base import plugins, storage
from unskew.base.errors import DamagedRun, InputError, is_from_signal, let_pass
from unskew.base.json_text import to_json
from unskew.base.registry import to_table
from unskew.runs.config import Run, from_table, read_file, read_written_hash
from unskew.runs.rows import is_row, is_summary, parse

log = logging.getLogger(__name__)
Row = dict[str, Any]
KNOWN = ("plugins", "method", "data", "model", "split", "augment", "wire", "init")
"""What the user's code may be in, and what a program may hand over: taken from a run that is known."""


SUMMARY_FILE = "summary.json"
CONFUSION = ("confusion.csv", "personal_confusion.csv")
FILES = (
    "run.toml", "split.json", "labels.json", "rounds.jsonl", "clients.jsonl", "model.safetensors", "per_class.csv",
    "confusion.csv", "personal_per_class.csv", "personal_confusion.csv", SUMMARY_FILE, "tracking.json", "profile.json",
)  # fmt: skip
"""What a run writes, beside its checkpoints."""
LOCK = ".lock"
_FLOCK = "hhqqi"
"""The system's struct flock (Linux): type, whence, start, length, process."""
_MODEL, _ROUNDS, _CLIENTS = "model.safetensors", "rounds.jsonl", "clients.jsonl"


class EditedRun(DamagedRun):
    """The run.toml of a folder is not the one that was written there."""


class ChangedOptions(InputError):
    """The run.toml is as it was written, but the user's code has other options by now."""


_at_work: set[tuple[int, Path]] = set()
"""Folders that runs of this process are working on, by the process's number: a forked one works on none of them."""


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        """As the user gave it, for messages."""
        self.place = path.absolute()
        """The same, wherever the process goes meanwhile."""
        self.checkpoints = self.place / "checkpoint"
        self.split = self.place / "split.json"
        self._open: dict[str, int] = {}

    def create(self, run: Run) -> None:
        """Makes a new folder that holds the resolved run; a folder with anything in it is refused."""
        self.check_free()
        self._make(self.place)
        self.write_run(run)

    def check_place(self) -> None:
        """An error unless there can be a folder in its place, whose parents are made."""
        self._make(self.place.parent)

    def _make(self, place: Path) -> None:
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            let_pass(error)
            reason = error.strerror or error
            raise InputError(f"cannot create the run folder {self.path}: {reason}; choose another --out") from None

    def write_run(self, run: Run) -> None:
        """The resolved run."""
        self._write("run.toml", run.to_toml().encode())

    def check_free(self) -> None:
        """Refuses a folder with anything in it."""
        try:
            taken = self.place.exists() and (not self.place.is_dir() or any(self.place.iterdir()))
        except OSError as error:
            let_pass(error)
            reason = error.strerror or error
            raise InputError(f"cannot use the run folder {self.path}: {reason}; choose another --out") from None
        if taken:
            raise InputError(f"{self.path} is there already and {self._what_it_holds()}; nothing was changed")

    def _what_it_holds(self) -> str:
        if not self.place.is_dir():
            return "is a file; choose another --out"
        if (self.place / "summary.json").exists():
            return "holds a finished run; choose another --out"
        if (self.place / "run.toml").exists():
            return f"holds an unfinished run; continue it with 'unskew resume {self.path}' or choose another --out"
        return "is not empty; choose another --out"

    @classmethod
    def at(cls, path: Path) -> RunFolder:
        """An existing folder."""
        if not (path / "run.toml").is_file():
            raise InputError(f"{path} is not a run folder: it holds no run.toml; give the folder of an 'unskew run'")
        return cls(path)

    @classmethod
    def open(cls, path: Path, known: Run | None = None, accept: bool = False) -> tuple[RunFolder, Run]:
        """An existing folder and its run; `known`: the same run, whose method, data and so on are taken as they are.

        `accept`: options that the user's code has gained since take their defaults.
        """
        folder, table = cls.at(path), read_file(path / "run.toml")
        if not table:
            raise EditedRun(f"{path / 'run.toml'} is empty; restore it")
        if known is not None:
            table |= {key: getattr(known, key) for key in KNOWN}
        folder._check_plugins(table)
        try:
            config = from_table(table, fresh=known is None)
        except InputError as error:
            scripts = [name for name in table.get("code", ()) if str(name).startswith("__main__.")]
            if not scripts:
                if table.get("code") and "has no argument" in str(error):
                    raise InputError(
                        f"{error}; {path / 'run.toml'} is of the code that the run was begun with: restore that, or "
                        "start another run"
                    ) from None
                raise
            raise InputError(
                f"{error}; this run uses {scripts[0].removeprefix('__main__.')} of a script or notebook: resume it "
                f"there, with unskew.resume('{path}')"
            ) from None
        written = read_written_hash(path / "run.toml")
        if written not in (None, config.hash):
            if new := _find_new_options(config, table, written):
                if accept:
                    return folder, config
                raise ChangedOptions(
                    f"{path}: the options of the run's code changed: {', '.join(new)} is new since it was begun; "
                    "restore the code, or go on with its default and --accept-changed-code (in Python "
                    "accept_changed_code=True), which is recorded"
                )
            raise EditedRun(
                f"{path / 'run.toml'} was edited: it was run {written}, its options now give {config.hash}; "
                "undo the edit, or start another run from a copy of the file"
            )
        return folder, config

    def _check_plugins(self, table: Row) -> None:
        """Finds the user's code from where the run was begun; says which file is gone."""
        if isinstance(table.get("begun_in"), str):
            plugins.also_search(table["begun_in"])
        for place in table.get("plugins", ()) if isinstance(table.get("plugins"), (list, tuple)) else ():
            if isinstance(place, str) and plugins.is_file(place) and plugins.find_file(place) is None:
                raise InputError(
                    f"{self.path} needs the plugin {place}, which is gone; put it back, or write its new path into "
                    f"{self.path / 'run.toml'}"
                )

    def update(self, run: Run) -> None:
        """Makes run.toml say what the run uses from now on."""
        text = run.to_toml()
        if (self.place / "run.toml").read_text(encoding="utf-8") != text:
            self._write("run.toml", text.encode())

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps others from working on this run; ends with the process, however it ends."""
        place = (os.getpid(), self.place.resolve())
        if place in _at_work:  # the system's lock is for other processes only
            raise InputError(f"this program is working on {self.path} already; wait until that run ends")
        _at_work.add(place)
        try:
            with self._lock_out_processes():
                yield
        finally:
            _at_work.discard(place)

    @contextmanager
    def _lock_out_processes(self) -> Iterator[None]:
        try:
            import fcntl
        except ImportError:  # not on Windows
            yield
            return
        try:
            self.checkpoints.mkdir(exist_ok=True)
            file = (self.checkpoints / LOCK).open("a+")  # not emptied: it may be another process's
        except OSError as error:
            let_pass(error)
            if not self.finished:
                reason = error.strerror or str(error)
                raise InputError(
                    f"cannot write into {self.path}: {reason}; resume it where it can be written"
                ) from None
            yield  # nothing of a finished run is written
            return
        with file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                let_pass(error)
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    raise InputError(f"another process is working on {self.path}; wait until it ends") from None
                log.warning("%s: this file system has no locks; let no other process work on this run", self.path)
            _sign(file)
            yield

    @property
    def written_hash(self) -> str | None:
        """Which run run.toml says it is of."""
        return read_written_hash(self.path / "run.toml")

    @property
    def finished(self) -> bool:
        """Whether the run is finished."""
        return (self.place / "summary.json").is_file()

    def rounds(self) -> dict[int, Row]:
        """The row of each round; the last one written counts."""
        return {row["round"]: row for row in self._rows("rounds.jsonl", "round")}

    def list_rows(self) -> list[Row]:
        """The rows of the rounds in their order; of a finished run those that it wrote, or an error."""
        found = [row for _, row in sorted(self.rounds().items())]
        if self.finished and isinstance(files := self.summary().get("files", {}), dict):
            self.check_finished_rows(found, files)
        return found

    def client_rows(self) -> Iterator[Row]:
        """All rows about clients, one at a time: there may be millions."""
        return self._rows("clients.jsonl", "round", "client")

    def summary(self) -> Row:
        """The figures of a finished run."""
        try:
            found = parse((self.place / "summary.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            let_pass(error)
            raise self._damaged("summary.json", str(error)) from None
        if not is_summary(found):
            raise self._damaged("summary.json", "it lacks figures that every run has")
        read: Row = found
        return read

    def _damaged(self, name: str, why: str) -> InputError:
        return InputError(
            f"cannot read {self.path / name}: {why}; remove the file, then 'unskew resume {self.path}' writes it again"
        )

    def append(self, name: str, rows: list[Row]) -> None:
        """Adds rows to a .jsonl file: all of them or, where the disk is full, none."""
        if not rows:
            return
        text = "".join(to_json(row) + "\n" for row in rows).encode()
        try:
            if name not in self._open:  # held open: a tiny round takes less time than opening two files
                self._open[name] = os.open(self.place / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            file = self._open[name]
            before = os.fstat(file).st_size
        except OSError as error:
            raise self._cannot_write(name, error) from None
        try:
            written = os.write(file, text)
            while written < len(text):
                written += os.write(file, text[written:])
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(file, before)
            raise self._cannot_write(name, error) from None

    def close(self) -> None:
        """Closes the files of rows."""
        for file in self._open.values():
            os.close(file)
        self._open.clear()

    def drop_torn_lines(self) -> None:
        """Removes a last line that a crash left unfinished: it is not a row yet."""
        for name in ("rounds.jsonl", "clients.jsonl"):
            path = self.place / name
            if path.exists() and path.stat().st_size and _last_byte(path) != b"\n":
                whole = path.read_bytes().rfind(b"\n") + 1
                os.truncate(path, whole)

    def sync(self) -> None:
        """Brings the rows to disk, before a checkpoint that relies on them."""
        for name in ("rounds.jsonl", "clients.jsonl"):
            if (self.place / name).exists():
                with (self.place / name).open("rb") as file:
                    os.fsync(file.fileno())

    def mark_rows(self) -> list[int | str]:
        """The length of rounds.jsonl and the hash of its content."""
        content = (self.place / "rounds.jsonl").read_bytes()
        return [len(content), hashlib.sha256(content).hexdigest()]

    def check_client_rows(self, size: int, done: int) -> None:
        """Says that rows about clients are gone: no figure needs them, and nothing writes them again."""
        if self.measure_client_rows() < size:
            log.warning(
                "%s lost rows or was edited: it is shorter than after round %d; nothing is written again, the results "
                "are whole",
                self.path / "clients.jsonl", done,
            )  # fmt: skip

    def measure_client_rows(self) -> int:
        """The length of clients.jsonl."""
        path = self.place / "clients.jsonl"
        return path.stat().st_size if path.exists() else 0

    def check_rows(self, mark: list[int | str], done: int) -> None:
        """An error unless rounds.jsonl still begins with what was marked; rows are only ever appended."""
        with (self.place / "rounds.jsonl").open("rb") as file:
            content = file.read(int(mark[0]))
        if hashlib.sha256(content).hexdigest() != mark[1]:
            raise DamagedRun(
                f"{self.path / 'rounds.jsonl'} was edited: its rows up to round {done} are not those that were "
                "written; restore it, or remove it (of a finished run, summary.json too) to run these rounds again"
            )

    def write_text(self, name: str, text: str) -> None:
        """A file for people and other programs, which no run reads."""
        self._write(name, text.encode())

    def write_model(self, data: bytes) -> None:
        """The final global model."""
        self._write(_MODEL, data)

    def check_model(self, run: str | None, files: Row) -> None:
        """An error unless the final model is there, of this run and as it was written; `files`: `mark_files`."""
        try:
            data = (self.place / _MODEL).read_bytes()
            found = storage.read_notes(data).get("run")
            problem = None if found == run else f"is of run {found}, and summary.json of {run}"
            if problem is None and files.get(_MODEL, _digest(data)) != _digest(data):
                problem = "was changed: it is not the file that the run wrote"
        except FileNotFoundError:
            problem = "is gone"
        except Exception as error:  # whatever a damaged file leads to
            if is_from_signal(error):
                raise
            problem = "cannot be read"
        if problem is not None:
            raise InputError(
                f"{self.path / _MODEL} {problem}; restore what was changed, or remove summary.json, then "
                f"'unskew resume {self.path}' writes both again"
            )

    def check_finished_rows(self, rows: list[Row], files: Row) -> None:
        """An error where the rounds' rows are not those that the run wrote; says where rows about clients are gone."""
        if files.get(_ROUNDS, _digest_rows(rows)) != _digest_rows(rows):
            raise DamagedRun(
                f"{self.path / _ROUNDS} was edited: its rows are not those that the run wrote; restore it, or remove "
                f"it and summary.json, then 'unskew resume {self.path}' runs the rounds again"
            )
        if isinstance(size := files.get(_CLIENTS), int) and (left := self._count_client_rows()) < size:
            log.warning(
                "%s lost rows: it has %d of %d; they are not written again, the results are whole",
                self.path / _CLIENTS, left, size,
            )  # fmt: skip

    def check_table(self, name: str) -> None:
        """An error where a table beside the figures of a finished run is not the one that the run wrote."""
        files = self.summary().get("files") if self.finished else None
        known = files.get(name) if isinstance(files, dict) else None  # an earlier version noted none
        if known is not None and known != _digest((self.place / name).read_bytes()):
            raise DamagedRun(f"{self.path / name} was edited: it is not the table that the run wrote; restore it")

    def mark_files(self, model: bytes, rows: list[Row]) -> Row:
        """What tells later whether the files of the finished run are as they were left, the times in rows aside."""
        tables = (path for name in CONFUSION if (path := self.place / name).is_file())
        return {_MODEL: _digest(model), _ROUNDS: _digest_rows(rows), _CLIENTS: self._count_client_rows(),
                **{path.name: _digest(path.read_bytes()) for path in tables}}  # fmt: skip

    def _count_client_rows(self) -> int:
        path = self.place / _CLIENTS
        if not path.exists():
            return 0
        with path.open("rb") as file:
            return sum(part.count(b"\n") for part in iter(lambda: file.read(1 << 20), b""))

    def write_summary(self, summary: Row) -> None:
        """The figures; this ends the run."""
        summary["files"] = {**summary.get("files", {}), SUMMARY_FILE: digest_summary(summary)}
        self._write("summary.json", (to_json(summary, indent=1) + "\n").encode())

    def _rows(self, name: str, *keys: str) -> Iterator[Row]:
        path = self.place / name
        if not path.exists():
            return
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not is_row(row := parse(line), *keys):
                    raise DamagedRun(
                        f"{self.path / name} is damaged at line {number}: expected a JSON object with "
                        f"{' and '.join(keys)}, and figures as a run writes them; remove that line, or start the run "
                        "again in another folder"
                    )
                yield row

    def _write(self, name: str, data: bytes) -> None:
        try:
            storage.write_atomic(self.place / name, data)
        except OSError as error:
            raise self._cannot_write(name, error) from None

    def _cannot_write(self, name: str, error: OSError) -> InputError:
        let_pass(error)
        reason = error.strerror or str(error)
        return InputError(f"cannot write {self.path / name}: {reason}; what was written before is whole")


def _sign(file: TextIO) -> None:
    """Writes into the lock which machine holds it: another one that shares the folder may not see the lock itself."""
    with contextlib.suppress(OSError):  # a full disk: the lock holds without it
        file.truncate(0)
        file.write(f"{platform.node()}\n")
        file.flush()


def find_run_of(path: Path) -> Path | None:
    """The folder of the run whose own file this is or would be; None: it is no run's."""
    folder = Path(os.path.realpath(path.parent))
    for place in (folder, *folder.parents):
        if (place / "run.toml").is_file() and any((place / name).is_file() for name in ("split.json", _ROUNDS)):
            first = (*folder.relative_to(place).parts, path.name.lower())[0]  # some systems do not tell case apart
            if first == "checkpoint" or (place == folder and first in FILES):
                return place
    return None


class Owner(NamedTuple):
    """Who works on a run."""

    held: bool | None
    """Whether somebody does, as this machine's locks tell; None: they cannot tell."""
    pid: int | None = None
    """The process, if it is on this machine."""


def find_owner(path: Path) -> Owner:
    """Who works on the run in this folder, without touching its lock; `held` is None for a run of another machine."""
    place = path.absolute()
    if (os.getpid(), place.resolve()) in _at_work:  # closing the file here would give up the lock
        return Owner(True, os.getpid())
    if sys.platform != "linux":  # the answer is laid out in another way
        return Owner(None)
    lock = place / "checkpoint" / LOCK
    try:
        import fcntl

        with lock.open("rb") as file:
            here = file.read(300).decode(errors="replace").strip() == platform.node()
            answer = fcntl.fcntl(file, fcntl.F_GETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        kind, _, _, _, pid = struct.unpack(_FLOCK, answer)
    except (ImportError, OSError, struct.error):  # no such locks here, or nobody began
        return Owner(None)
    if kind != fcntl.F_UNLCK:
        return Owner(True, pid if pid > 0 and here else None)
    return Owner(False if here else None)


def _find_new_options(config: Run, table: Row, written: str | None) -> list[str]:
    """Options that run.toml does not have and the user's code has by now; none if something else is different, too."""
    parts = {key: table[key] for key in KNOWN if isinstance(table.get(key), (dict, list)) and key != "plugins"}
    if not table.get("code") or config.hash_with(parts) != written:
        return []
    own = to_table(config)
    return [
        f"{own[key]['name']}.{option}" for key, part in parts.items() if isinstance(part, dict)
        for option in own[key] if option not in part
    ] or ["an option"]  # fmt: skip


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def digest_summary(summary: Row) -> str:
    """Of all that a summary says but times and digests."""
    return _digest(to_json({key: own for key, own in summary.items() if key not in ("seconds", "files")}).encode())


def _digest_rows(rows: list[Row]) -> str:
    """Of the rounds' rows in their order without their times, so that runs with equal results have equal digests."""
    return _digest("\n".join(to_json({**row, "seconds": 0}) for row in rows).encode())


def _last_byte(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read()
