"""A run's folder: what a run writes, in which order, and how it is read back.

    run.toml           the resolved run; its hash names the run
    split.json         which client holds which samples
    rounds.jsonl       one object a round, round 0 being the initial model
    clients.jsonl      one object a client and round, and one a client and test
    checkpoint/        the newest states, see runs/checkpoint.py
    model.safetensors  the final global model
    summary.json       the figures; its presence says that the run is finished

Rows are only ever appended; where a round was run again after a crash with another result, its last row counts.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unskew.base import storage
from unskew.base.errors import InputError
from unskew.base.json_text import to_json
from unskew.runs.config import Run, from_table, read_file

Row = dict[str, Any]
SUMMARY = {"method", "data", "rounds", "accuracy", "personal", "loss", "bytes_up", "bytes_down", "seconds", "diverged"}
"""What every summary.json holds, at least."""


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoint"
        self.split = path / "split.json"
        self._open: dict[str, int] = {}

    @classmethod
    def create(cls, path: Path, run: Run) -> RunFolder:
        """A new folder that holds the resolved run; a folder with anything in it is refused."""
        folder = cls(path)
        folder.check_free()
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = error.strerror or error
            raise InputError(f"cannot create the run folder {path}: {reason}; choose another --out") from None
        folder._write("run.toml", run.to_toml().encode())
        return folder

    def check_free(self) -> None:
        """Refuses a folder with anything in it."""
        try:
            taken = self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir()))
        except OSError as error:
            reason = error.strerror or error
            raise InputError(f"cannot use the run folder {self.path}: {reason}; choose another --out") from None
        if taken:
            raise InputError(f"{self.path} is there already and {self._what_it_holds()}; nothing was changed")

    def _what_it_holds(self) -> str:
        if not self.path.is_dir():
            return "is a file; choose another --out"
        if (self.path / "summary.json").exists():
            return "holds a finished run; choose another --out"
        if (self.path / "run.toml").exists():
            return f"holds an unfinished run; continue it with 'unskew resume {self.path}' or choose another --out"
        return "is not empty; choose another --out"

    @classmethod
    def open(cls, path: Path) -> tuple[RunFolder, Run]:
        """An existing folder and its run."""
        if not (path / "run.toml").is_file():
            raise InputError(f"{path} is not a run folder: it holds no run.toml; give the folder of an 'unskew run'")
        return cls(path), from_table(read_file(path / "run.toml"))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps other processes from working on this run; ends with the process, however it ends."""
        try:
            import fcntl
        except ImportError:  # not on Windows
            yield
            return
        self.checkpoints.mkdir(exist_ok=True)
        with (self.checkpoints / ".lock").open("w") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(f"another process is working on {self.path}; wait until it ends") from None
            yield

    @property
    def finished(self) -> bool:
        """Whether the run is finished."""
        return (self.path / "summary.json").is_file()

    def rounds(self) -> dict[int, Row]:
        """The row of each round; the last one written counts."""
        return {row["round"]: row for row in self._rows("rounds.jsonl", "round")}

    def client_rows(self) -> Iterator[Row]:
        """All rows about clients, one at a time: there may be millions."""
        return self._rows("clients.jsonl", "round", "client")

    def summary(self) -> Row:
        """The figures of a finished run."""
        try:
            found: Row = json.loads((self.path / "summary.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise self._damaged("summary.json", str(error)) from None
        if not isinstance(found, dict) or not found.keys() >= SUMMARY:
            raise self._damaged("summary.json", "it lacks figures that every run has")
        return found

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
                self._open[name] = os.open(self.path / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
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
            path = self.path / name
            if path.exists() and path.stat().st_size and _last_byte(path) != b"\n":
                whole = path.read_bytes().rfind(b"\n") + 1
                os.truncate(path, whole)

    def sync(self) -> None:
        """Brings the rows to disk, before a checkpoint that relies on them."""
        for name in ("rounds.jsonl", "clients.jsonl"):
            if (self.path / name).exists():
                with (self.path / name).open("rb") as file:
                    os.fsync(file.fileno())

    def write_model(self, data: bytes) -> None:
        """The final global model."""
        self._write("model.safetensors", data)

    def write_summary(self, summary: Row) -> None:
        """The figures; this ends the run."""
        self._write("summary.json", (to_json(summary, indent=1) + "\n").encode())

    def _rows(self, name: str, *keys: str) -> Iterator[Row]:
        path = self.path / name
        if not path.exists():
            return
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    row = json.loads(line)
                except ValueError:
                    row = None
                if not isinstance(row, dict) or not all(isinstance(row.get(key), int) for key in keys):
                    raise InputError(
                        f"{path} is damaged at line {number}: expected a JSON object with {' and '.join(keys)}; "
                        "remove that line, or start the run again in another folder"
                    )
                yield row

    def _write(self, name: str, data: bytes) -> None:
        try:
            storage.write_atomic(self.path / name, data)
        except OSError as error:
            raise self._cannot_write(name, error) from None

    def _cannot_write(self, name: str, error: OSError) -> InputError:
        reason = error.strerror or str(error)
        return InputError(f"cannot write {self.path / name}: {reason}; what was written before is whole")


def _last_byte(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read()
