"""Checkpoints: written to a new file, synced, then renamed; the name carries the checksum.

    round-000010.<checksum>.safetensors    the server's state, and which states of clients belong to it
    clients.sqlite                         the clients' states; see runs/state_file.py
    server.sqlite                          what the server remembers of single clients, if it does

The two newest checkpoints are kept, and the states that belong to them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from unskew.base import storage
from unskew.base.errors import DamagedRun, InputError
from unskew.base.tree import Groups
from unskew.data.dataset import may_be_same
from unskew.runs import state_file
from unskew.runs.client_store import StateStore

log = logging.getLogger(__name__)
KEPT = 2
"""The newest checkpoints that stay: if the last is damaged, the one before serves."""
_STATES = "client states"
_REMEMBERED = "states of clients at the server"
"""Only in checkpoints of methods that put some."""
_FORMAT = 4
Mark = list[int | str]
"""The length of a file and the hash of its content, to notice edits of what was there."""


@dataclass(frozen=True)
class Identity:
    """What a checkpoint belongs to."""

    run: str
    """The run's hash."""
    earlier: frozenset[str] = frozenset()
    """Those it had before its code changed."""
    split: str = ""
    data: str = ""
    """The partition's hash and the data's fingerprint, where they are to be compared."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after a round."""

    round: int
    server: Groups
    states: Tensor
    """The snapshot of the clients' states."""
    remembered: Tensor
    """That of what the server remembers of single clients."""
    rows: Mark | None = None
    """Marks the rounds' rows as they were; None in checkpoints of older versions."""
    client_rows: int = 0
    """The length of clients.jsonl; 0 where it is not known."""


def save(
    folder: Path,
    identity: Identity,
    round_: int,
    rows: Mark,
    server: Groups,
    store: StateStore,
    remembered: StateStore,
    client_rows: int = 0,
) -> None:
    """Writes the state after this round and removes what the kept checkpoints no longer need.

    `rows` marks the rounds' rows as they are now, `client_rows` is the length of the clients'.
    """
    made = Checkpoint(round_, server, store.snapshot(), remembered.snapshot(), rows, client_rows)
    written = _write(folder, identity, made)
    # others of this round or later ones are from before the rounds were run again, with rows that are gone
    superseded = [path for path in _newest_first(folder) if _round_of(path) >= round_ and path.name != written]
    for path in (*superseded, *[path for path in _newest_first(folder) if path not in superseded][KEPT:]):
        path.unlink(missing_ok=True)
    store.prune()
    remembered.prune()


def copy(found: Checkpoint, source: Path, folder: Path, identity: Identity, rows: Mark, client_rows: int) -> None:
    """Writes a checkpoint of the folder `source`, and all states that belong to it, for another run's folder."""
    for name in (state_file.NAME, state_file.SERVER_NAME):
        state_file.copy(source, folder, name)
    _write(folder, identity, replace(found, rows=rows, client_rows=client_rows))


def _write(folder: Path, identity: Identity, made: Checkpoint) -> str:
    """Writes the file of a checkpoint; gives its name."""
    check_names(made.server)
    groups = {**made.server, _STATES: {"snapshot": made.states}}
    if made.remembered.any():
        groups[_REMEMBERED] = {"snapshot": made.remembered}
    about = {"split": identity.split, "data": identity.data, "rows": made.rows, "client_rows": made.client_rows}
    notes = {"format": _FORMAT, "run": identity.run, "round": made.round, **about}
    return storage.write_certified(folder, f"round-{made.round:06d}", storage.encode(groups, notes))


def check_names(server: Groups) -> None:
    """Refuses a server's state with a group of a name that checkpoints use themselves."""
    if taken := server.keys() & {_STATES, _REMEMBERED}:
        raise InputError(f"a group of the server's state must not be named '{min(taken)}': checkpoints use it")


def find_last_round(folder: Path) -> int:
    """The round of the newest checkpoint, whole or not; -1: there is none."""
    return max(map(_round_of, _newest_first(folder)), default=-1)


def load_newest(folder: Path, identity: Identity, at_most: int) -> Checkpoint | None:
    """The newest whole checkpoint up to a round; a damaged one is named and passed over. None if there is none."""
    candidates = [path for path in _newest_first(folder) if _round_of(path) <= at_most]
    problems: list[InputError] = []
    for path in candidates:
        try:
            found = _read(path, identity)
            for problem in problems:
                log.warning("%s; resuming from the checkpoint before it, after round %s", problem, found.round)
            return found
        except _OtherRun:
            raise
        except InputError as error:
            problems.append(error)
    if candidates:
        raise DamagedRun(f"no checkpoint in {folder} is whole ({problems[0]}); start the run again in another folder")
    return None


class _OtherRun(InputError):
    """The checkpoint is whole but not of this run, or not of this version."""


def _read(path: Path, identity: Identity) -> Checkpoint:
    """The checkpoint, if it and all states that belong to it are whole."""
    data = storage.read_certified(path)
    notes = storage.read_notes(data)
    if notes.get("format") != _FORMAT:  # first: versions also differ in what the hash is made of
        raise _OtherRun(f"{path} was written by another version of unskew; resume with that version, or start again")
    if notes["run"] not in {identity.run, *identity.earlier}:
        raise _OtherRun(f"{path} belongs to run {notes['run']}, but run.toml gives {identity.run}; restore run.toml")
    if identity.split and notes.get("split", identity.split) != identity.split:
        raise _OtherRun(f"{path} belongs to another partition than split.json; restore split.json")
    if not may_be_same(notes.get("data", ""), identity.data):
        raise _OtherRun(f"{path} was made on other data than the run gets now; restore the data files")
    groups = storage.decode(data)
    states = groups.pop(_STATES)["snapshot"]
    state_file.check(path.parent, states)
    remembered = groups.pop(_REMEMBERED)["snapshot"] if _REMEMBERED in groups else torch.zeros_like(states)
    state_file.check(path.parent, remembered, state_file.SERVER_NAME)
    return Checkpoint(int(notes["round"]), groups, states, remembered, notes.get("rows"), notes.get("client_rows", 0))


def _round_of(path: Path) -> int:
    return int(path.name.split(".")[0].removeprefix("round-"))


def _newest_first(folder: Path) -> list[Path]:
    found = folder.glob("round-*.safetensors")
    return sorted(found, key=lambda path: (_round_of(path), path.stat().st_mtime_ns), reverse=True)
