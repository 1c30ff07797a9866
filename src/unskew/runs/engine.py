"""From a `Run` to its results: runs the rounds, evaluates, keeps the folder."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch

from unskew.base import storage
from unskew.base.errors import ClientError, InputError
from unskew.base.json_text import to_json
from unskew.base.process import prepare_process
from unskew.base.tree import Groups
from unskew.core.jobs import Executor
from unskew.core.observer import Observer, as_observer
from unskew.core.profile import Profile, charge_each, open_part
from unskew.core.round_loop import Round, rounds
from unskew.core.task import Task
from unskew.data.dataset import Dataset
from unskew.data.files.download import Progress
from unskew.measures.recorder import Recorder
from unskew.models.base import Architecture, Model
from unskew.runs import checkpoint, rules
from unskew.runs.building import Prepared, build_model, make_executor, prepare
from unskew.runs.calibration import settle
from unskew.runs.client_store import StateStore
from unskew.runs.config import Run
from unskew.runs.evaluation import evaluate_clients, evaluate_global
from unskew.runs.folder import Row, RunFolder
from unskew.runs.state_file import SERVER_NAME
from unskew.runs.summary import summarise

log = logging.getLogger(__name__)
Watch = Callable[[Row], None] | Observer
"""Called with the row of every finished round; or an observer, which sees more. It must not change anything."""


@dataclass(frozen=True)
class Result:
    """What came of a run."""

    run: Run
    summary: Row
    rounds: list[Row]
    server: Groups
    published: Groups
    """The global model as anyone may have it: groups `model` and `buffers`."""
    folder: Path | None
    _build: Callable[[], Model] = field(repr=False)

    @property
    def accuracy(self) -> float:
        """The global model's accuracy after the last round; a personal method's pooled accuracy over clients."""
        return float(self.summary["accuracy"]["last"])

    def model(self) -> Model:
        """The final global model, ready to use."""
        model = self._build()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(self.published["model"][name])
            for name, buffer in model.named_buffers():
                if name in self.published["buffers"]:
                    buffer.copy_(self.published["buffers"][name])
        return model.eval()


def run(
    config: Run,
    out: Path | str | None = None,
    *,
    data_dir: Path | None = None,
    dataset: Dataset | None = None,
    watch: Watch | None = None,
    download: Progress | None = None,
    profile: Profile | None = None,
) -> Result:
    """Runs a method from the start; with `out` it leaves a run folder that can be resumed.

    `profile` collects where the seconds of the rounds go.
    """
    if out is not None:
        RunFolder(Path(out)).check_free()  # before anything takes time
    return start(prepare(config, data_dir, dataset, download), out, watch=watch, profile=profile)


def start(
    prepared: Prepared, out: Path | str | None = None, *, watch: Watch | None = None, profile: Profile | None = None
) -> Result:
    """Runs what was prepared, as `run` does."""
    task = prepared.task
    config = settle(prepared.config, task)
    server = _try_server(config, task)
    folder = RunFolder.create(Path(out), config) if out is not None else None
    if folder is not None:
        task.federation.partition.save(folder.split)
    return _Loop(config, replace(task, profile=profile), folder, watch).run(server)


def resume(
    path: Path | str,
    *,
    data_dir: Path | None = None,
    dataset: Dataset | None = None,
    watch: Watch | None = None,
    executor: str | None = None,
    model: Architecture | None = None,
) -> Result:
    """Continues an interrupted run bit for bit from its newest whole checkpoint."""
    folder, config = RunFolder.open(Path(path))
    if model is not None:
        config = replace(config, model=model)
    if executor is not None:
        config = _change_executor(config, executor, folder)
    has_split = folder.split.exists()
    prepared = prepare(config, data_dir, dataset, saved_split=folder.split if has_split else None)
    task = prepared.task
    if not has_split:
        task.federation.partition.save(folder.split)
    folder.drop_torn_lines()
    return _Loop(settle(prepared.config, task), task, folder, watch).run()


def _change_executor(config: Run, executor: str, folder: RunFolder) -> Run:
    """The run with another executor that gives the same bits; any other one is refused."""
    changed = replace(config, execution=rules.change(config.execution, executor=executor))
    if changed.hash != config.hash:
        begun = config.execution.executor
        fitting = "stacked" if begun == "stacked" else "serial, pool or auto"
        raise InputError(
            f"{folder.path} was begun with executor '{begun}'; to the last bit it continues with {fitting} only, "
            f"got '{executor}'; leave --executor out, or start another run"
        )
    return changed


def _make_server(config: Run, task: Task) -> Groups:
    """The server's state before the first round."""
    with prepare_process(config.execution.threads), task.device.set_tf32():
        return task.method.init(task.server_context(0))


def _try_server(config: Run, task: Task) -> Groups | None:
    """The same before there is a folder: what a method refuses leaves none. None: it must be made again in the run."""
    with closing(StateStore(limit=config.execution.state_memory << 20)) as trial:
        server = _make_server(config, replace(task, server_store=trial))
        return server if trial.is_empty else None  # what it put belongs into the run's own store


class _Loop:
    """One run at work: rounds, evaluation, rows, checkpoints."""

    def __init__(self, config: Run, task: Task, folder: RunFolder | None, watch: Watch | None) -> None:
        self.config, self.folder = config, folder
        place, limit = folder.checkpoints if folder else None, config.execution.state_memory << 20
        self.store, self.remembered = StateStore(place, limit), StateStore(place, limit, SERVER_NAME)
        task = replace(task, server_store=self.remembered)
        if watch is not None:
            task = replace(task, observers=(*task.observers, as_observer(watch)))
        self.recorder = Recorder(config.measure, task, config.rounds, config.evaluation.every)
        self.task = self.recorder.task
        self.known: dict[int, Row] = folder.rounds() if folder else {}
        self.known_clients: dict[tuple[int, int, bool], Row] = {}
        self.rows: dict[int, Row] = {}
        self.saved, self.saved_at = 0, time.monotonic()

    def run(self, server: Groups | None = None) -> Result:
        """Runs all rounds; `server` is the initial state, made here if it is not given and there is no checkpoint."""
        lock = self.folder.lock() if self.folder else nullcontext()
        with lock, prepare_process(self.config.execution.threads), self.task.device.set_tf32():
            executor = make_executor(self.config, self.task)
            try:
                with open_part(self.task.profile, "rest"):
                    return self._finish(self._run_rounds(executor, server))
            finally:
                executor.close()
                self.store.close()
                self.remembered.close()
                if self.folder:
                    self.folder.close()

    def _run_rounds(self, executor: Executor, server: Groups | None) -> Groups:
        server, done = self._begin(executor, server)
        last = self.config.rounds
        current = Round(done, server, {})
        try:
            played = rounds(self.task, executor, self.store, server, done + 1, last)
            for current in charge_each(self.task.profile, "server", played):
                self._record(current, executor)
                if current.number == last or self._due(current.number):
                    self._save(current)
        except (KeyboardInterrupt, InputError, ClientError):
            # the finished rounds are worth keeping, unless somebody already remembers one that is only half done
            newest = max(self.store.latest, self.remembered.latest)
            if current.number > self.saved and current.number in self.rows and newest <= current.number:
                self._save(current)
            raise
        return current.server

    def _begin(self, executor: Executor, server: Groups | None) -> tuple[Groups, int]:
        """The server's state to continue from, and its round."""
        found = self._checkpoint()
        if self.folder:  # rows of the rounds that may be run again, not of all
            after = found.round if found else -1
            rows = (row for row in self.folder.client_rows() if row["round"] > after)
            self.known_clients = {_key(row): row for row in rows}
        if found is not None:
            self.store.restore(found.states)
            self.remembered.restore(found.remembered)
            self.rows = {number: row for number, row in self.known.items() if number <= found.round}
            self.saved = found.round
            log.info("resuming after round %d", found.round)
            return found.server, found.round
        server = server if server is not None else _make_server(self.config, self.task)
        self._record(Round(0, server, {"round": 0}), executor)
        return server, 0

    def _checkpoint(self) -> checkpoint.Checkpoint | None:
        """Where to resume: rounds whose rows were lost are run again."""
        if not self.folder:
            return None
        unbroken = next(number for number in itertools.count() if number not in self.known) - 1
        if self.known and unbroken < max(self.known):
            log.warning("rounds.jsonl lacks round %d; resuming from before it", unbroken + 1)
        return checkpoint.load_newest(self.folder.checkpoints, self.config.hash, unbroken)

    def _record(self, done: Round, executor: Executor) -> None:
        row = done.record
        began = time.perf_counter()
        with open_part(self.task.profile, "evaluation"):
            figures, client_rows = self._evaluate(done, executor)
            row |= figures
            row.setdefault("seconds", {})["evaluate"] = time.perf_counter() - began
            self.recorder.record(done, self.rows)
        self._warn(row)
        if self.folder:
            if not _same(self.known.get(done.number), row):
                self.folder.append("rounds.jsonl", [row])
            fresh = [r for r in (*done.clients, *client_rows) if not _same(self.known_clients.get(_key(r)), r)]
            self.folder.append("clients.jsonl", fresh)
        self.rows[done.number] = row
        for observer in self.task.observers:
            observer.finished(row)

    def _warn(self, row: Row) -> None:
        """Says once that clients are left out, and once that all were; the rows name them every time."""
        for what, text in (
            ("excluded", "clients {excluded} sent NaN or infinite values and are left out"),
            ("diverged", "no client sent finite numbers, so the model stays as it is: the run diverged; lower lr"),
        ):
            if row.get(what) and not any(earlier.get(what) for earlier in self.rows.values()):
                log.warning("round %d: %s (later rounds only in rounds.jsonl)", row["round"], text.format(**row))

    def _evaluate(self, done: Round, executor: Executor) -> tuple[Row, list[Row]]:
        wanted, number, method = self.config.evaluation, done.number, self.task.method
        final = number == self.config.rounds
        figures: Row = {}
        client_rows: list[Row] = []
        known = None
        # with pool_test the test samples are training samples of the clients, so only their held-out ones can test
        tests_global = method.output != "personal" and not self.config.pool_test
        if tests_global and (final or number % wanted.every == 0):
            figures, known = evaluate_global(self.task, executor, done.server, number)
            if self.task.federation.dataset.validation is not None:
                validated, _ = evaluate_global(self.task, executor, done.server, number, "validate")
                figures["validation"] = validated["accuracy"]
        often = wanted.clients_every or (0 if tests_global and method.output in ("global", "tuned") else wanted.every)
        if wanted.local_test != "none" and (final or (often and number % often == 0)):
            arguments = (self.task, executor, self.store, done.server, number, wanted.max_clients, known)
            figures["personal"], client_rows = evaluate_clients(*arguments)
        return figures, client_rows

    def _due(self, number: int) -> bool:
        """Whether it is time for a checkpoint."""
        every = self.config.execution.checkpoint_every
        if every:
            return number % every == 0
        return number % 10 == 0 and time.monotonic() - self.saved_at >= 5

    def _save(self, current: Round) -> None:
        self.saved_at = time.monotonic()
        if not self.folder:
            return
        try:
            self.folder.sync()
            about = self.folder.checkpoints, self.config.hash, current.number
            checkpoint.save(*about, current.server, self.store, self.remembered)
        except OSError as error:
            reason = error.strerror or str(error)
            raise InputError(
                f"cannot write a checkpoint into {self.folder.checkpoints}: {reason}; "
                f"make room, then 'unskew resume {self.folder.path}' continues after round {self.saved}"
            ) from None
        self.saved = current.number

    def _finish(self, server: Groups) -> Result:
        rows = list(self.rows.values())
        summary = {**summarise(self.config, self.task, rows), **self.recorder.summary(rows)}
        s = self.task.server_context(self.config.rounds, server=server).read_only()
        published = self.task.method.publish(s, server)
        if self.folder:
            about = {"run": self.config.hash, "method": str(self.config.method), "model": str(self.config.model)}
            constants = self.task.net.constants  # without them the parameters are not the whole model
            whole = {**published, "constants": self.task.device.to_cpu({"": constants})[""]} if constants else published
            self.folder.write_model(storage.encode(whole, about))
            self.folder.write_summary(summary)
        path = self.folder.path if self.folder else None
        build = partial(build_model, self.config, self.task.federation.dataset)
        return Result(self.config, summary, list(self.rows.values()), server, published, path, build)


def _same(old: Row | None, new: Row) -> bool:
    """Whether a row says the same as one that is there, times aside."""
    return old is not None and to_json({**old, "seconds": 0}) == to_json({**new, "seconds": 0})


def _key(row: Row) -> tuple[int, int, bool]:
    return row["round"], row["client"], "accuracy" in row
