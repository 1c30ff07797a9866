"""A run that goes on to more rounds: a new folder takes over what the old one came to, and the old one stays.

The new folder is as if the longer run had been interrupted after the last round that it takes over: rows, the newest
checkpoint, all under the longer run's hash. It appears whole or not at all, and can be resumed from then on.
"""

from __future__ import annotations

import itertools
import logging
import shutil
from dataclasses import replace
from pathlib import Path

from unskew.base import storage, user_code
from unskew.base.errors import InputError, let_pass
from unskew.runs import checkpoint, labels
from unskew.runs.config import Extension, Run
from unskew.runs.evaluation import find_due
from unskew.runs.folder import Row, RunFolder

log = logging.getLogger(__name__)
OF_GLOBAL = frozenset({"accuracy", "loss", "class_accuracy", "validation", "figures"})
OF_CLIENTS = frozenset({"personal", "personal_figures"})
"""What tests add to a round's row."""
_AT_ONCE = 10_000
"""Rows about clients that are copied at a time; there may be millions."""


def check_rounds(folder: RunFolder, config: Run, rounds: int) -> None:
    """Refuses what cannot be continued to so many rounds."""
    if rounds <= config.rounds:
        instead = "" if folder.finished else f"; 'unskew resume {folder.path}' continues to those"
        raise InputError(
            f"--rounds: expected more than the {config.rounds} rounds of {folder.path}, got {rounds}{instead}"
        )
    if not folder.split.exists():
        raise InputError(f"{folder.path} holds no split.json; run 'unskew resume {folder.path}', which makes it again")
    rows = folder.rounds()
    missing = next(number for number in itertools.count() if number not in rows)
    if missing <= max(rows, default=0):
        raise InputError(
            f"{folder.path / 'rounds.jsonl'} lacks round {missing}; run 'unskew resume {folder.path}' first, which "
            "runs it again"
        )
    stopped = next((row for row in rows.values() if "stopped" in row), None)
    if stopped is not None:
        raise InputError(
            f"{folder.path} diverged and stopped in round {stopped['round']}, as it would in a longer run; start "
            "another one, with a lower lr"
        )


def describe(config: Run, rounds: int, found: checkpoint.Checkpoint | None, path: Path) -> Extension:
    """The record of an extension from a checkpoint; says if the rounds so far are not those of a run of that length."""
    if found is None:
        raise InputError(
            f"{path} holds no checkpoint, so there is nothing to continue; "
            f"'unskew run {path / 'run.toml'} --rounds {rounds}' runs all of it"
        )
    reason = _find_reason(config)
    if reason:
        log.warning(
            "%s depends on the number of rounds: the first %d are not those of a run of %d, so this is another run "
            "than that; run.toml and summary.json record it", reason, found.round, rounds,
        )  # fmt: skip
    return Extension(run=config.hash, rounds=config.rounds, after=found.round, same=not reason)


def lengthen(config: Run, rounds: int, made: Extension) -> Run:
    """The run with more rounds."""
    return replace(config, rounds=rounds, extended=(*config.extended, made))


def _find_reason(config: Run) -> str:
    """What makes a round differ by how many there are: a schedule that says so, code of the user's that asks."""
    schedule = config.local.chosen_schedule
    if schedule.depends_on_rounds:
        return f"schedule {schedule}"
    parts = (config.method, schedule, config.local.optimiser, *config.wire)
    return next((f"{part.name} (your own code reads 'rounds')" for part in parts
                 if user_code.names_attribute([part], "rounds")), "")  # fmt: skip


def choose_place(old: Path, run: str, longer: Run) -> Path:
    """The new folder beside the old one, whose hash it replaces in the name, where that has one."""
    old = old if old.name not in ("", "..") else old.resolve()
    return old.with_name(old.name.replace(run, longer.hash) if run in old.name else longer.title)


def take_over(
    old: RunFolder, found: checkpoint.Checkpoint | None, new: RunFolder, run: Run, identity: checkpoint.Identity
) -> None:
    """Makes the new folder, with what the old one came to by its checkpoint; `run`: the longer one."""
    assert found is not None
    if found.rows is not None:
        old.check_rows(found.rows, found.round)
    new.check_free()
    part = RunFolder(new.place.with_name(f".{new.place.name}.part"))
    try:
        shutil.rmtree(part.place, ignore_errors=True)  # of a killed process
        part.place.mkdir(parents=True)
        shutil.copy(old.split, part.split)
        if (old.place / labels.NAME).exists():
            shutil.copy(old.place / labels.NAME, part.place / labels.NAME)
        _copy_rows(old, part, run)
        checkpoint.copy(
            found, old.checkpoints, part.checkpoints, identity, part.mark_rows(), part.measure_client_rows()
        )
        part.close()
        part.sync()
        part.write_run(run)  # last: what has none is no run
        part.place.replace(new.place)
        storage.sync_folder(new.place.parent)
    except OSError as error:
        let_pass(error)
        raise InputError(
            f"cannot create the run folder {new.path}: {error.strerror or error}; choose another --out"
        ) from None
    finally:
        shutil.rmtree(part.place, ignore_errors=True)


def _copy_rows(old: RunFolder, new: RunFolder, run: Run) -> None:
    """Copies the rows so far; tests that were made because a round was the last one are left out, as it is not now."""
    made = run.extended[-1]
    after, keeps_clients = made["after"], True
    rows = [row for number, row in sorted(old.rounds().items()) if number <= after]
    if after == made["rounds"] and not rows[-1].get("diverged"):  # else its tests say why it is
        keeps_global, keeps_clients = find_due(run, after, final=False)
        gone = (frozenset() if keeps_global else OF_GLOBAL) | (frozenset() if keeps_clients else OF_CLIENTS)
        rows[-1] = {key: value for key, value in rows[-1].items() if key not in gone}
    new.append("rounds.jsonl", rows)

    def is_kept(row: Row) -> bool:
        return bool(row["round"] < after or (row["round"] == after and (keeps_clients or "accuracy" not in row)))

    kept = filter(is_kept, old.client_rows())
    while some := list(itertools.islice(kept, _AT_ONCE)):
        new.append("clients.jsonl", some)
