"""A run's folder: what a run writes, in which order, and how it is read back.

    run.toml           the resolved run; its hash names the run
    split.json         which client holds which samples
    rounds.jsonl       one object a round, round 0 being the initial model
    clients.jsonl      one object a client and round, and one a client and test
    checkpoint/        the newest states, see core/checkpoint.py
    model.safetensors  the final global model
    summary.json       the figures; its presence says that the run is finished

Rows are only ever appended; where a round was played again after a crash with another result, its last row counts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unskew.config import Run, from_table, read_file
from unskew.core import wire
from unskew.errors import InputError

Row = dict[str, Any]


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoint"
        self.split = path / "split.json"

    @classmethod
    def create(cls, path: Path, run: Run) -> RunFolder:
        """A new folder that holds the resolved run; a folder with anything in it is refused."""
        folder = cls(path)
        try:
            if path.exists() and (not path.is_dir() or any(path.iterdir())):
                raise InputError(f"{path} is there already{folder._what_it_holds()}; nothing was changed")
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot create the run folder {path}: {error.strerror or error}") from None
        folder._write("run.toml", run.to_toml().encode())
        return folder

    def _what_it_holds(self) -> str:
        if (self.path / "summary.json").exists():
            return " and holds a finished run; choose another --out"
        if (self.path / "run.toml").exists():
            return f" and holds an unfinished run; go on with 'unskew resume {self.path}' or choose another --out"
        return " and is not empty; choose another --out"

    @classmethod
    def open(cls, path: Path) -> tuple[RunFolder, Run]:
        """An existing folder and its run."""
        if not (path / "run.toml").is_file():
            raise InputError(f"{path} is not a run folder: it holds no run.toml")
        return cls(path), from_table(read_file(path / "run.toml"))

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return (self.path / "summary.json").is_file()

    def rounds(self) -> dict[int, Row]:
        """The row of each round; the last one written counts."""
        return {row["round"]: row for row in self._rows("rounds.jsonl")}

    def client_rows(self) -> list[Row]:
        """All rows about clients."""
        return list(self._rows("clients.jsonl"))

    def summary(self) -> Row:
        """The figures of a finished run."""
        try:
            found: Row = json.loads((self.path / "summary.json").read_text())
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read {self.path / 'summary.json'}: {error}") from None
        return found

    def append(self, name: str, rows: list[Row]) -> None:
        """Adds rows to a .jsonl file."""
        if rows:
            try:
                with (self.path / name).open("a", encoding="utf-8") as file:
                    file.write("".join(json.dumps(row) + "\n" for row in rows))
            except OSError as error:
                raise self._cannot_write(name, error) from None

    def mend(self) -> None:
        """Cuts off a last line that a crash left unfinished: it is not a row yet."""
        for name in ("rounds.jsonl", "clients.jsonl"):
            path = self.path / name
            if path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n"):
                whole = path.read_bytes().rfind(b"\n") + 1
                os.truncate(path, whole)

    def sync(self) -> None:
        """Brings the rows to disk, before a checkpoint that takes them for granted."""
        for name in ("rounds.jsonl", "clients.jsonl"):
            if (self.path / name).exists():
                with (self.path / name).open("rb") as file:
                    os.fsync(file.fileno())

    def write_model(self, data: bytes) -> None:
        """The final global model."""
        self._write("model.safetensors", data)

    def write_summary(self, summary: Row) -> None:
        """The figures; this ends the run."""
        self._write("summary.json", (json.dumps(summary, indent=1) + "\n").encode())

    def _rows(self, name: str) -> Iterator[Row]:
        path = self.path / name
        if not path.exists():
            return
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                yield json.loads(line)
            except ValueError:
                raise InputError(f"{path} is damaged at line {number}: expected a JSON object") from None

    def _write(self, name: str, data: bytes) -> None:
        try:
            wire.write_atomic(self.path / name, data)
        except OSError as error:
            raise self._cannot_write(name, error) from None

    def _cannot_write(self, name: str, error: OSError) -> InputError:
        reason = error.strerror or str(error)
        return InputError(f"cannot write {self.path / name}: {reason}; what was written before is whole")
