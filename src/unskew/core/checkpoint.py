"""Checkpoints: written to a new file, synced, then renamed; the name carries the checksum."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from unskew.core import wire
from unskew.core.store import StateStore
from unskew.core.tree import Groups
from unskew.errors import InputError

log = logging.getLogger(__name__)
KEPT = 2
"""The newest checkpoints that stay: if the last is damaged, the one before serves."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after a round."""

    round: int
    server: Groups
    states: dict[int, str]


def save(folder: Path, run_hash: str, round_: int, server: Groups, store: StateStore) -> None:
    """Writes the state after this round and removes what the kept checkpoints no longer need."""
    states = store.snapshot()
    notes = {"run": run_hash, "round": round_, "states": {str(client): name for client, name in states.items()}}
    wire.write_certified(folder, f"round-{round_:06d}", wire.encode(server, notes))
    kept: set[str] = set()
    for place, path in enumerate(_newest_first(folder)):
        if place >= KEPT:
            path.unlink(missing_ok=True)
        elif place == 0:
            kept |= set(states.values())
        else:
            kept |= _states_of(path)
    store.prune(kept)


def load_newest(folder: Path, run_hash: str, at_most: int) -> Checkpoint | None:
    """The newest whole checkpoint up to a round; a damaged one is named and passed over. None if there is none."""
    candidates = [
        path for path in _newest_first(folder) if int(path.name.split(".")[0].removeprefix("round-")) <= at_most
    ]
    problems: list[InputError] = []
    for path in candidates:
        try:
            data = wire.read_certified(path)
            notes = wire.notes(data)
            if notes["run"] != run_hash:
                raise _OtherRun(
                    f"{path} belongs to run {notes['run']}, but run.toml gives {run_hash}; restore run.toml"
                )
            states = {int(client): name for client, name in notes["states"].items()}
            for name in states.values():
                wire.read_certified(folder / name)
            for problem in problems:
                log.warning("%s; going on from the checkpoint before it, after round %s", problem, notes["round"])
            return Checkpoint(int(notes["round"]), wire.decode(data), states)
        except _OtherRun:
            raise
        except InputError as error:
            problems.append(error)
    if candidates:
        raise InputError(f"no checkpoint in {folder} is whole ({problems[0]}); start the run anew in another folder")
    return None


class _OtherRun(InputError):
    """The checkpoint is whole but not of this run."""


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-*.safetensors"), reverse=True)


def _states_of(path: Path) -> set[str]:
    try:
        return set(wire.notes(wire.read_certified(path))["states"].values())
    except InputError:
        return set()
