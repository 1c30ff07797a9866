"""A run's folder opened to go on with it: what may differ from when it was begun, and what may not."""

from __future__ import annotations

import logging
from dataclasses import replace

from unskew.base.errors import InputError
from unskew.models.base import Architecture
from unskew.runs import rules
from unskew.runs.config import CodeChange, Run
from unskew.runs.folder import RunFolder
from unskew.runs.summary import check_summary, read_finished
from unskew.runs.weights import Weights

log = logging.getLogger(__name__)


def reopen(
    folder: RunFolder, config: Run, model: Architecture | None, init: Weights | None, executor: str | None
) -> Run:
    """The run of a folder, to go on with; a finished one must be as it was left."""
    if folder.finished:
        check_summary(config, read_finished(folder), folder.path)
    config = give_parts(config, model, init, folder)
    return config if executor is None else change_executor(config, executor, folder)


def give_parts(config: Run, model: Architecture | None, init: Weights | None, folder: RunFolder) -> Run:
    """The run with what a Python program hands over; anything else than it began with is refused."""
    if model is not None and replace(config, model=model).hash != config.hash:
        raise InputError(
            f"{folder.path} was begun with the model {config.model}, got {model}; hand over the module it began with"
        )
    if init is not None and replace(config, init=init).hash != config.hash:
        raise InputError(f"{folder.path} was begun with other initial weights; hand over the weights it began with")
    return replace(config, model=model or config.model, init=init or config.init)


def compare_code(
    config: Run, now: dict[str, str], folder: RunFolder, accept: bool, goes_on: bool = True
) -> Run:  # fmt: skip
    """The run with the user's code as it is now; refuses code that changed, unless that is accepted.

    `goes_on`: whether rounds are run and the change is recorded, or the run is only looked at.
    """
    if sorted(now.values()) == sorted(config.code.values()):
        return config
    if not config.code:
        log.warning(
            "%s was begun by a version that recorded no code; %s is taken to be unchanged", folder.path, ", ".join(now)
        )
        return config
    names = ", ".join(name for name in {**config.code, **now} if config.code.get(name) != now.get(name))
    if not accept:
        raise InputError(
            f"{folder.path}: the code in {names} changed since the run was begun; restore it, or go on with "
            "--accept-changed-code (in Python accept_changed_code=True)" + ", which is recorded" * goes_on
        )
    if goes_on:
        log.warning("%s goes on with changed code: %s; run.toml and summary.json say so", folder.path, names)
    else:
        log.warning("%s is used with changed code: %s; what comes out need not be the run's", folder.path, names)
    earlier = CodeChange(round=config.rounds, code=config.code)  # the round is known when the checkpoint is
    written = folder.written_hash
    if written is not None and written != config.hash:
        earlier["run"] = written
    return replace(config, code=now, code_changes=(*config.code_changes, earlier))


def change_executor(config: Run, executor: str, folder: RunFolder) -> Run:
    """The run with another executor that gives the same bits; any other one is refused."""
    changed = replace(config, execution=rules.change(config.execution, executor=executor))
    if changed.hash != config.hash:
        begun = config.execution.executor
        fitting = "stacked" if begun == "stacked" else "serial, pool, ray or auto"
        raise InputError(
            f"{folder.path} was begun with executor '{begun}'; to the last bit it continues with {fitting} only, "
            f"got '{executor}'; leave --executor out, or start another run"
        )
    return changed


def explain_no_checkpoint(folder: RunFolder) -> str:
    """Why there are no models, and what to do."""
    if not folder.finished:
        return f"{folder.path} holds no checkpoint yet, and so no model; run 'unskew resume {folder.path}'"
    return (
        f"{folder.path} is finished, but its checkpoint, which holds the models, is gone; restore it, or remove "
        f"summary.json, then 'unskew resume {folder.path}' runs the rounds again"
    )
