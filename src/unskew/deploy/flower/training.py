"""A run of the deployment, seen from outside: ordered, followed by its rows, stopped."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unskew.base.errors import InputError, SlotError
from unskew.deploy import presence
from unskew.deploy.flower.processes import CONNECTION, call_flower, is_listening, start_run, stop_run
from unskew.deploy.folder import DeployFolder, Deployment, Order, make_run_name
from unskew.runs.folder import Row

START = 180.0
"""Seconds within which the server's app must be at work."""
_LOOK = 0.3


@dataclass(frozen=True)
class Training:
    """A run that is on."""

    folder: DeployFolder
    order: Order

    @property
    def out(self) -> Path:
        """The run's folder."""
        return self.folder.runs / self.order.out

    @property
    def is_on(self) -> bool:
        """Whether the server's app is at work on it."""
        return presence.find(self.folder.order_file(self.order, "lock")) is not None

    def follow(self, say: Callable[[str], None]) -> Iterator[Row]:
        """The rows of rounds as they are written, until the run is finished; raises what ended it otherwise."""
        rows, lines = _Tail(self.out / "rounds.jsonl"), _Tail(self.folder.order_file(self.order, "log"))
        began, seen = time.monotonic(), False
        while True:
            working = self.is_on  # before the files are read, so that none is missed
            seen = seen or working
            for line in lines.read():
                say(line)
            for line in rows.read():
                yield json.loads(line)
            if not working and (self.out / "summary.json").is_file():
                return
            self._raise_failure()
            if seen and not working:
                raise self._explain("the server's app ended without a word")
            if not seen and time.monotonic() - began > START:
                raise self._explain(f"the server's app did not begin within {START:g} s")
            time.sleep(_LOOK)

    def _raise_failure(self) -> None:
        file = self.folder.order_file(self.order, "failed")
        if file.exists():
            why = json.loads(file.read_bytes())
            if why["code"] == 1:
                raise SlotError(why["text"])
            raise InputError(why["text"])

    def _explain(self, what: str) -> InputError:
        try:
            answer = call_flower(self.folder, "ls", CONNECTION, "--run-id", self.order.flower, seconds=60)
            status = str(answer["runs"][0]["status"])
        except (InputError, KeyError, IndexError):
            status = "nothing"
        why = f"{what} (Flower says: {status}); see {self.folder.link_log}"
        why = "the run was stopped" if "stopped" in status else why
        return InputError(f"{why}; 'unskew deploy run {self.folder.path}' goes on from the last checkpoint")

    def stop(self) -> None:
        """Ends it; what was finished is kept, and the run can go on."""
        stop_run(self.folder, self.order.flower)


def order(
    folder: DeployFolder, about: Deployment, out: str, min_replies: int | None, round_timeout: float | None
) -> Training:
    """Begins the run that belongs into this folder below runs/, goes on with it, or finds it at work."""
    known = folder.find_order(out)
    if known is not None and Training(folder, known).is_on:
        return Training(folder, known)
    busy = find_at_work(folder)
    if busy is not None:
        raise InputError(f"the server is at work on {busy.out}; wait, or end it: unskew deploy stop {folder.path}")
    if not is_listening(about):
        raise InputError(f"no server answers at {about.address}; start it with 'unskew deploy server {folder.path}'")
    begun = (folder.runs / out / "run.toml").exists()
    if begun and known is None:
        raise InputError(f"{folder.runs / out} is of no run that this server ordered; move it away")
    proceed = begun and known is not None
    new = Order(
        run=known.run if known is not None and proceed else make_run_name(), out=out, proceed=proceed,
        min_replies=about.min_replies if min_replies is None else min_replies,
        round_timeout=about.round_timeout if round_timeout is None else round_timeout,
    )  # fmt: skip
    if known is not None and known.run != new.run:
        for kind in ("json", "log", "failed", "lock"):
            folder.order_file(known, kind).unlink(missing_ok=True)
    for kind in ("failed", "log"):
        folder.order_file(new, kind).unlink(missing_ok=True)
    folder.write_order(new)
    new = new.model_copy(update={"flower": start_run(folder, new.run)})
    folder.write_order(new)
    return Training(folder, new)


def find_at_work(folder: DeployFolder) -> Training | None:
    """The run that the server's app is at work on."""
    found = (Training(folder, order) for order in folder.list_orders())
    return next((each for each in found if each.is_on), None)


class _Tail:
    """The whole lines that a growing file has gained; what was there before is read, too."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0

    def read(self) -> list[str]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                new = file.read()
        except FileNotFoundError:
            return []
        whole = new.rpartition(b"\n")[0]
        self._read += len(whole) + 1 if whole else 0
        return whole.decode(errors="replace").splitlines()


def describe(folder: DeployFolder, order: Order) -> dict[str, Any]:
    """What is known of a run: its folder, how far it is, whether it is on."""
    training = Training(folder, order)
    lines = _Tail(training.out / "rounds.jsonl").read()
    last: Row = json.loads(lines[-1]) if lines else {}
    finished = (training.out / "summary.json").is_file()
    state = "training" if training.is_on else "finished" if finished else "stopped"
    return {
        "run": order.out, "state": state, "round": last.get("round"), "accuracy": last.get("accuracy"),
        "personal": last.get("personal", {}).get("mean"), "folder": str(training.out),
    }  # fmt: skip
