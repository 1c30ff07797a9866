"""Checkpoints: written to a new file, synced, then renamed; the name carries the checksum.

    round-000010.<checksum>.safetensors    the server's state, and which states of clients belong to it
    clients.sqlite                         the clients' states; see runs/state_file.py
    server.sqlite                          what the server remembers of single clients, if it does

The two newest checkpoints are kept, and the states that belong to them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from unskew.base import storage
from unskew.base.errors import InputError
from unskew.base.tree import Groups
from unskew.runs import state_file
from unskew.runs.client_store import StateStore

log = logging.getLogger(__name__)
KEPT = 2
"""The newest checkpoints that stay: if the last is damaged, the one before serves."""
_STATES = "client states"
_REMEMBERED = "states of clients at the server"
"""Only in checkpoints of methods that put some."""
_FORMAT = 4


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after a round."""

    round: int
    server: Groups
    states: Tensor
    """The snapshot of the clients' states."""
    remembered: Tensor
    """That of what the server remembers of single clients."""


def save(folder: Path, run_hash: str, round_: int, server: Groups, store: StateStore, remembered: StateStore) -> None:
    """Writes the state after this round and removes what the kept checkpoints no longer need."""
    groups = {**server, _STATES: {"snapshot": store.snapshot()}}
    if (snapshot := remembered.snapshot()).any():
        groups[_REMEMBERED] = {"snapshot": snapshot}
    notes = {"format": _FORMAT, "run": run_hash, "round": round_}
    storage.write_certified(folder, f"round-{round_:06d}", storage.encode(groups, notes))
    for path in _newest_first(folder)[KEPT:]:
        path.unlink(missing_ok=True)
    store.prune()
    remembered.prune()


def load_newest(folder: Path, run_hash: str, at_most: int) -> Checkpoint | None:
    """The newest whole checkpoint up to a round; a damaged one is named and passed over. None if there is none."""
    candidates = [
        path for path in _newest_first(folder) if int(path.name.split(".")[0].removeprefix("round-")) <= at_most
    ]
    problems: list[InputError] = []
    for path in candidates:
        try:
            found = _read(path, run_hash)
            for problem in problems:
                log.warning("%s; resuming from the checkpoint before it, after round %s", problem, found.round)
            return found
        except _OtherRun:
            raise
        except InputError as error:
            problems.append(error)
    if candidates:
        raise InputError(f"no checkpoint in {folder} is whole ({problems[0]}); start the run again in another folder")
    return None


class _OtherRun(InputError):
    """The checkpoint is whole but not of this run, or not of this version."""


def _read(path: Path, run_hash: str) -> Checkpoint:
    """The checkpoint, if it and all states that belong to it are whole."""
    data = storage.read_certified(path)
    notes = storage.read_notes(data)
    if notes.get("format") != _FORMAT:  # first: versions also differ in what the hash is made of
        raise _OtherRun(f"{path} was written by another version of unskew; resume with that version, or start again")
    if notes["run"] != run_hash:
        raise _OtherRun(f"{path} belongs to run {notes['run']}, but run.toml gives {run_hash}; restore run.toml")
    groups = storage.decode(data)
    states = groups.pop(_STATES)["snapshot"]
    state_file.check(path.parent, states)
    remembered = groups.pop(_REMEMBERED)["snapshot"] if _REMEMBERED in groups else torch.zeros_like(states)
    state_file.check(path.parent, remembered, state_file.SERVER_NAME)
    return Checkpoint(int(notes["round"]), groups, states, remembered)


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-*.safetensors"), reverse=True)
