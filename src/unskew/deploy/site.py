"""A site at work: its own samples, its own memory on its own disk, and answers to the server's requests.

    open        the run: method, network and settings; the site builds them itself, from names it knows
    survey      statistics before a round
    train       local training: what is sent leaves, what is kept stays here
    personal    the site's own model on its own test samples

What a client keeps between visits is a file for each round, so that a server which resumes from an earlier round finds
the state of that round. A request that comes twice is answered from a file, and trains nobody twice.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from unskew.base import storage, tree
from unskew.base.errors import InputError, SlotError, one_line
from unskew.base.process import prepare_process
from unskew.base.tree import Groups
from unskew.core.checks.faults import CAUGHT, explain
from unskew.core.jobs import Job
from unskew.core.task import Task
from unskew.data.dataset import Dataset, Samples
from unskew.data.partition.listed import ListedPartition
from unskew.deploy.channel import LIMIT, Refused
from unskew.deploy.messages import Answer, Request, check_like, decode_request, empty_like, encode
from unskew.runs.building import make_task
from unskew.runs.client_store import StateStore
from unskew.runs.config import Run, from_table
from unskew.runs.models import Models

log = logging.getLogger(__name__)

KEPT_ROUNDS = 20
"""States of so many rounds are kept, for servers that go back."""
MESSAGE = "message.safetensors"
"""The newest request with a model, of which the site's own model is made."""
_DOING = {"train": "training", "survey": "looking at the data", "personal": "testing the own model"}
MOST_CLIENTS = 100_000
"""A run of more is none that a site believes: it keeps a list of them."""


@dataclass(frozen=True)
class Facts:
    """What all sites must know of the data alike: classes, shape and type of an input, how inputs are normalised."""

    classes: tuple[str, ...]
    shape: tuple[int, ...]
    type: str
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, data: Dataset) -> Facts:
        """Those of a data set."""
        return cls(data.classes, data.shape, _name_type(data.train), data.mean, data.std)

    @classmethod
    def read(cls, about: Any) -> Facts:
        """From the plain values of a message."""
        try:
            classes = tuple(str(name) for name in about["classes"])
            shape = tuple(int(length) for length in about["shape"])
            kind = str(about["type"])
            mean, std = (tuple(float(value) for value in about[key]) for key in ("mean", "std"))
        except (KeyError, TypeError, ValueError) as error:
            raise Refused(f"what it says of the data cannot be read: {one_line(error)[:100]}") from None
        return cls(classes, shape, kind, mean, std)

    def to_plain(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "classes": list(self.classes),
            "shape": list(self.shape),
            "type": self.type,
            "mean": list(self.mean),
            "std": list(self.std),
        }


@dataclass
class _Opened:
    """A run that the site takes part in."""

    config: Run
    task: Task
    client: int
    folder: Path
    message: Groups
    """What the first message looks like."""


class Site:
    """Answers requests with the samples of one place. One request at a time.

    `classes`: what the labels are called here; without them they are the numbers of the run's classes.
    """

    def __init__(
        self, samples: Samples, folder: Path, classes: Sequence[str] | None = None, *, limit: int = LIMIT
    ) -> None:
        self.samples, self.folder, self.classes, self.limit = samples, folder, classes, limit
        self._open: dict[str, _Opened] = {}

    def answer(self, data: bytes) -> bytes:
        """The answer to a request; one that cannot be used is answered with the reason."""
        asked = hashlib.sha256(data).hexdigest()
        head = Request(run="0" * 8, round=0, client=0, kind="open")
        try:
            head, groups = decode_request(data, self.limit)
            return self._answer(head, groups, asked, data)
        except Refused as error:
            reason = f"the request was refused: {error}"
        except (InputError, SlotError) as error:
            reason = one_line(error)
        except CAUGHT as error:
            reason = explain(error).what
        log.warning("round %d: %s", head.round, reason)
        failed = Answer(run=head.run, round=head.round, client=head.client, kind="failed", asked=asked,
                        reason=reason[:2000])  # fmt: skip
        return encode(failed, {})

    def _answer(self, head: Request, groups: Groups, asked: str, data: bytes) -> bytes:
        if head.kind == "open":
            self._open_run(head)
            opened = Answer(run=head.run, round=0, client=head.client, kind="opened", asked=asked,
                            num_samples=len(self.samples))  # fmt: skip
            return encode(opened, {})
        at = self._open.get(head.run) or self._open_again(head.run)
        if head.client != at.client:
            raise Refused(f"it is for client {head.client}, and this site is client {at.client}")
        place = at.folder / f"answer-{head.kind}.safetensors"
        if place.exists() and storage.read_notes(place.read_bytes()).get("asked") == asked:
            return place.read_bytes()  # it was lost on its way
        known = {name: own for name, own in at.message.items() if name in groups or head.kind == "train"}
        check_like(groups, known, free=known.keys() - {"model", "buffers"})
        log.info("round %d: %s", head.round, _DOING[head.kind])
        with prepare_process(1), at.task.device.set_tf32():
            made = self._work(at, head, groups, asked)
        storage.write_atomic(place, made)
        if head.kind != "survey":
            storage.write_atomic(at.folder / MESSAGE, data)
        return made

    def _work(self, at: _Opened, head: Request, groups: Groups, asked: str) -> bytes:
        state = self._read_state(at, head.round + (head.kind == "personal"))  # whose model is that after the round
        reply = at.task.work(Job(head.kind, head.round, head.client, groups, state))  # type: ignore[arg-type]
        if head.kind == "train" and reply.state:
            if at.task.find_spoilt(reply.state) is not None:
                raise Refused("NaN or infinite values in what the client keeps; lower lr")
            self._write_state(at, head.round, reply.state)
        done = Answer(
            run=head.run, round=head.round, client=head.client, kind="done", asked=asked, weight=reply.weight,
            num_samples=reply.num_samples, num_steps=reply.num_steps, seconds=reply.seconds,
            diagnostics={name: float(value) for name, value in reply.diagnostics.items()},
        )  # fmt: skip
        return encode(done, reply.groups)

    def export(self, run: str | None = None) -> bytes:
        """This site's own model of a run, the newest if none is named, as the bytes of a safetensors file."""
        run = run or self._find_newest()
        try:
            head, groups = decode_request((self.folder / run / MESSAGE).read_bytes())
        except FileNotFoundError:
            raise InputError(f"this site has no model of run '{run}' yet; wait for its first round") from None
        at = self._open_again(run)
        state = self._read_state(at, head.round + 1)
        nobody: Groups = {}
        models = Models(at.config, at.task, StateStore(), nobody, nobody, head.round)
        model = models.build_from(at.client, groups, state)
        found: Groups = {"model": dict(model.named_parameters()), "buffers": dict(model.named_buffers())}
        return storage.encode(found, {
            "run": run, "round": head.round, "method": str(at.config.method), "model": str(at.config.model),
            "classes": list(at.task.federation.dataset.classes),
        })  # fmt: skip

    def _find_newest(self) -> str:
        found = sorted(self.folder.glob(f"*/{MESSAGE}"), key=lambda path: path.stat().st_mtime)
        if not found:
            raise InputError(f"{self.folder} holds no model yet; wait for the first round of a run")
        return found[-1].parent.name

    # ------------------------------------------------------------------------------------------- runs

    def _open_run(self, head: Request) -> None:
        """Builds the run from names that this site knows; keeps its description for the next start."""
        folder = self.folder / head.run
        self._open[head.run] = self._build(head.client, head.about, folder)
        storage.write_atomic(folder / "run.safetensors", encode(head, {}))

    def _open_again(self, run: str) -> _Opened:
        """A run that was opened before the site was started again."""
        try:
            head, _ = decode_request((self.folder / run / "run.safetensors").read_bytes())
        except FileNotFoundError:
            raise Refused("it is of a run that was not opened here") from None
        self._open[run] = self._build(head.client, head.about, self.folder / run)
        return self._open[run]

    def _build(self, client: int, about: Mapping[str, Any], folder: Path) -> _Opened:
        config = read_run(about.get("run"))
        clients = config.clients
        if clients is None or not client < clients <= MOST_CLIENTS:
            raise Refused(f"client {client} of {clients}")
        facts = Facts.read(about.get("data"))
        data = self._take_data(facts)
        lists = [range(len(self.samples)) if number == client else [] for number in range(clients)]
        partition = ListedPartition.from_lists([list(own) for own in lists], len(self.samples))
        with prepare_process(1):
            task = make_task(config, data, partition)
            s = task.server_context(0)
            message = task.method.download(s, task.method.init(s), client)
        return _Opened(config, task, client, folder, empty_like(message))

    def _take_data(self, facts: Facts) -> Dataset:
        """The site's samples as the run wants them; says what does not fit."""
        if tuple(self.samples.x.shape[1:]) != facts.shape:
            raise InputError(
                f"this site's samples have the shape {tuple(self.samples.x.shape[1:])}, the run expects {facts.shape}"
            )
        if _name_type(self.samples) != facts.type:
            raise InputError(f"this site's samples are {_name_type(self.samples)}, the run expects {facts.type}")
        samples = self._renumber(facts.classes)
        return Dataset("site", samples, samples, facts.classes, facts.mean, facts.std)

    def _renumber(self, classes: Sequence[str]) -> Samples:
        """The samples with the labels that all sites have for these classes."""
        if self.classes is None or tuple(self.classes) == tuple(classes):
            return self.samples
        unknown = [name for name in self.classes if name not in classes]
        if unknown:
            raise InputError(
                f"this site has samples of class '{unknown[0][:80]}', the run knows {', '.join(classes)[:300]}"
            )
        numbers = torch.tensor([list(classes).index(name) for name in self.classes])
        return Samples(self.samples.x, numbers[self.samples.y])

    # ----------------------------------------------------------------------------------------- memory

    def _read_state(self, at: _Opened, round_: int) -> Groups:
        """What the client kept after its last visit before this round."""
        earlier = [path for path in _list_states(at.folder) if _round_of(path) < round_]
        return storage.decode(storage.read_certified(earlier[-1])) if earlier else {}

    def _write_state(self, at: _Opened, round_: int, state: Groups) -> None:
        """Keeps a state; those of later rounds are of a past that the server has left."""
        for path in [path for path in _list_states(at.folder) if _round_of(path) >= round_]:
            path.unlink()
        storage.write_certified(at.folder, f"state-{round_:06d}", storage.encode(tree.settle(state)))
        for path in _list_states(at.folder)[:-KEPT_ROUNDS]:
            path.unlink()


def _name_type(samples: Samples) -> str:
    return str(samples.x.dtype).removeprefix("torch.")


def _list_states(folder: Path) -> list[Path]:
    return sorted(folder.glob("state-*.safetensors"))


def _round_of(path: Path) -> int:
    return int(path.name[6:12])


def describe_run(config: Run) -> dict[str, Any]:
    """A resolved run as a site may read it: names and numbers, no code, no paths, no data of its own."""
    table = config.to_plain()
    for key in ("code", "code_changes", "begun_in", "extended", "plugins", "data", "split", "measure", "track"):
        table.pop(key, None)
    execution = {**table["execution"], "executor": "serial", "workers": 0, "address": "", "gpus": 0.0, "chunk": 0}
    return {**table, "execution": execution}


def read_run(table: Any) -> Run:
    """The run of such a description; refuses whatever would load code or read files."""
    if not isinstance(table, dict) or {"plugins", "data", "split", "code", "init"} & table.keys():
        raise Refused("it holds no run that a site may read")
    if _names_code(table):
        raise Refused("it names code by its place (python:); install it at the site as a plugin instead")
    try:
        return replace(from_table(table, fresh=False), plugins=())
    except InputError as error:
        raise Refused(f"the run cannot be built here: {error}") from None


def _names_code(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_names_code, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_names_code, value))
    return isinstance(value, str) and (value == "python" or value.startswith("python:"))
