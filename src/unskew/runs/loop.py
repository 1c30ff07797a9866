"""A run at work: plays the rounds, evaluates, writes rows and checkpoints."""

from __future__ import annotations

import itertools
import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import cast

from unskew.base import storage, tree, user_code
from unskew.base.errors import InputError, SlotError, let_pass
from unskew.base.json_text import to_json
from unskew.base.once import warn_once
from unskew.base.process import prepare_process
from unskew.base.text import count_of
from unskew.base.tree import Groups
from unskew.core.checks.asking import ask_server
from unskew.core.checks.faults import is_spoilt, naming
from unskew.core.checks.watching import is_foreign
from unskew.core.jobs import Executor
from unskew.core.observer import Observer, as_observer, show_row
from unskew.core.profile import charge_each, open_part
from unskew.core.round_loop import Round, find_failure, rounds
from unskew.core.slots import owner_of
from unskew.core.task import Task
from unskew.measures.classification import Tally, Tested
from unskew.measures.recorder import Recorder
from unskew.runs import checkpoint
from unskew.runs.building import make_executor
from unskew.runs.client_store import SavedStates, StateStore
from unskew.runs.config import CodeChange, Run
from unskew.runs.evaluation import evaluate_clients, evaluate_global, find_due
from unskew.runs.folder import Row, RunFolder
from unskew.runs.last_test import FIGURES, arrange_tests, write_tests
from unskew.runs.models import Models, find_unused
from unskew.runs.result import Result
from unskew.runs.state_file import NAME, SERVER_NAME
from unskew.runs.summary import summarise
from unskew.runs.tracked import describe
from unskew.runs.tracking.keeping import Tracking
from unskew.terms.correlation import judge_dead

log = logging.getLogger(__name__)
LONG = 60.0
"""Seconds after which the end of any round is time for a checkpoint: ten rounds of minutes are too much to lose."""
Watch = Callable[[Row], None] | Observer
"""Called with the row of every finished round; or an observer, which sees more. It must not change anything."""
MakeExecutor = Callable[[Run, Task], Executor]
"""Makes who does the clients' work."""


class Loop:
    """One run at work: rounds, evaluation, rows, checkpoints."""

    def __init__(
        self, config: Run, task: Task, folder: RunFolder | None, watch: Watch | None,
        executor: MakeExecutor = make_executor,
    ) -> None:  # fmt: skip
        self.config, self.folder, self._make_executor, self.process = config, folder, executor, os.getpid()
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
        self.unwritten = False
        """Whether the code changed and run.toml does not say so yet."""
        self.said_dead = False
        """Whether it was said that few features are alive."""
        self.whole = Round(0, {}, {})
        """The newest round whose row is written."""
        self.tracking = Tracking(config.track, describe(config, folder.place if folder else None))
        self.tested: dict[str, Tested] | None = None
        """What the last test came to beyond accuracy: of the global model, and of the clients' own."""

    def run(self, server: Groups | None = None) -> Result:
        """Runs all rounds; `server` is the initial state, made here if it is not given and there is no checkpoint."""
        result, loaded = None, user_code.Loaded()
        user_code.say_unseeded()
        with prepare_process(self.config.execution.threads), self.task.device.set_tf32():
            executor = self._make_executor(self.config, self.task)
            try:
                with open_part(self.task.profile, "rest"):
                    result = self._finish(self._run_rounds(executor, server), executor)
            except SlotError as error:
                error.folder = str(self.folder.path) if self.folder else ""
                raise
            finally:
                if os.getpid() == self.process:  # else they are the other one's, see _check_process
                    self._close(executor, result)
                    self._say_unrecorded(loaded)
        return result

    def _close(self, executor: Executor, result: Result | None) -> None:
        executor.close()
        self.tracking.close()
        if self.folder or result is None:  # else the result's client_model still asks for the states
            self.store.close()
            self.remembered.close()
        if self.folder:
            self.folder.close()

    def _say_unrecorded(self, loaded: user_code.Loaded) -> None:
        """A module that a slot imports by a name made up at run time is known only now."""
        names = user_code.name_unrecorded(loaded.list_files(), self.config.code) if self.config.code else []
        if names:
            log.warning(
                "%s was loaded during the run and is no part of its recorded code, so that nobody notices when it is "
                "edited; import it by name at the top of your file, or name it in code_used", ", ".join(names),
            )  # fmt: skip

    def _run_rounds(self, executor: Executor, server: Groups | None) -> Groups:
        server, done = self._begin(executor, server)
        last = self.config.rounds
        self.whole = Round(done, server, self.rows[done])
        if "stopped" in self.whole.record:
            return server
        try:
            played = self._play(rounds(self.task, executor, self.store, server, done + 1, last), done + 1)
            for current in charge_each(self.task.profile, "server", played):
                self._check_process(current.number)
                self._record(current, executor)
                self._check_process(current.number)
                if current.failed or current.number == last or self._due(current.number):
                    self._save(current)
        except BaseException as error:
            # the finished rounds are worth keeping, unless somebody already remembers one that is only half done
            newest = max(self.store.latest, self.remembered.latest)
            spoilt = getattr(error, "spoilt", False) or is_spoilt(error)
            if newest <= self.whole.number > self.saved and not spoilt:
                self._save(self.whole)
            raise
        return self.whole.server

    def _check_process(self, number: int) -> None:
        """An error in a process that a slot or observer forked: folder and workers are the other one's."""
        if os.getpid() != self.process:
            raise SlotError(
                f"this process was forked in round {number} from the one that runs the rounds, and went on with them; "
                "end it where it was forked, with os._exit(0): the run goes on in the other", spoilt=True,
            )  # fmt: skip

    @staticmethod
    def _play(played: Iterator[Round], first: int) -> Iterator[Round]:
        """The rounds from the first on; what fails in a reducer or a wire processor is named with its round."""
        for number in itertools.count(first):
            with naming(number):
                done = next(played, None)
            if done is None:
                return
            yield done

    def _begin(self, executor: Executor, server: Groups | None) -> tuple[Groups, int]:
        """The server's state to continue from, and its round."""
        found = self._checkpoint()
        if self.folder:  # rows of the rounds that may be run again, not of all
            after = found.round if found else -1
            rows = (row for row in self.folder.client_rows() if row["round"] > after)
            self.known_clients = {_key(row): row for row in rows}
            if found is not None and found.rows is not None:
                self.folder.check_client_rows(found.client_rows, found.round)
        if found is not None:
            self.store.restore(found.states)
            self.remembered.restore(found.remembered)
            self.rows = {number: row for number, row in self.known.items() if number <= found.round}
            self.saved = found.round
            self._check_shapes(found)
            if hasattr(executor, "one_by_one"):
                executor.one_by_one.update(self.rows[found.round].get("one_by_one", ()))
            log.info("resuming after round %d", found.round)
            self._go_on_from(found.round)
            self.tracking.begin(self.rows)
            return found.server, found.round
        self._go_on_from(0)
        self.tracking.begin({})
        server = server if server is not None else make_server(self.config, self.task)
        self._record(Round(0, server, {"round": 0}), executor)
        return server, 0

    def _go_on_from(self, done: int) -> None:
        """Makes run.toml say what is used from here on; rounds that are run again are run by the newest code."""
        changes = tuple(cast("CodeChange", {**c, "round": min(c["round"], done)}) for c in self.config.code_changes)
        self.config = replace(self.config, code_changes=changes)
        self.unwritten = self.folder is not None and self.folder.written_hash not in (None, self.config.hash)
        if self.folder and not self.unwritten:
            self.folder.update(self.config)

    def _write_changes(self) -> None:
        """Makes run.toml say that the code changed: with its first checkpoint, as it may fail at once."""
        if self.folder and self.unwritten:
            self.folder.update(self.config)
            self.unwritten = False

    def _check_shapes(self, found: checkpoint.Checkpoint) -> None:
        """Refuses a checkpoint of another network than the changed code builds."""
        assert self.folder is not None
        if self.folder.written_hash in (None, self.config.hash):
            return
        fresh = try_server(self.config, self.task, always=True) or {}
        for group in found.server.keys() & fresh.keys() & {"model", "buffers"}:
            old, new = found.server[group], fresh[group]
            for name in sorted(old.keys() | new.keys()):
                before, now = (list(own[name].shape) if name in own else None for own in (old, new))
                if before != now:
                    raise InputError(
                        f"{self.folder.path}: its checkpoint holds '{name}' of shape {before or 'none'}, the changed "
                        f"code's model now has {now or 'none'}; restore the code, or start another run"
                    )

    def _checkpoint(self) -> checkpoint.Checkpoint | None:
        """Where to resume: rounds whose rows were lost are run again."""
        if not self.folder:
            return None
        unbroken = next(number for number in itertools.count() if number not in self.known) - 1
        if self.known and unbroken < max(self.known):
            log.warning("rounds.jsonl lacks round %d; resuming from before it", unbroken + 1)
        elif unbroken < checkpoint.find_last_round(self.folder.checkpoints):  # rows are written before checkpoints
            log.warning("rounds.jsonl lacks its last rows, from round %d on; resuming from before it", unbroken + 1)
        found = checkpoint.load_newest(self.folder.checkpoints, identify(self.config, self.task), unbroken)
        if found is not None and found.rows is not None:
            self.folder.check_rows(found.rows, found.round)
        if found is None and self.folder.finished:
            log.warning(
                "%s is finished, but holds no checkpoint any more: its rounds are run again for what only that held",
                self.folder.path,
            )
        elif found is None and unbroken > 0:
            what = f"{count_of(unbroken, 'round')} {'is' if unbroken == 1 else 'are'} run again"
            log.warning("%s holds no checkpoint: its %s", self.folder.path, what)
        return found

    def _record(self, done: Round, executor: Executor) -> None:
        row = done.record
        began = time.perf_counter()
        with open_part(self.task.profile, "evaluation"):
            figures, client_rows = self._evaluate(done, executor)
            row |= figures
            row.setdefault("seconds", {})["evaluate"] = time.perf_counter() - began
            if done.number and not _are_finite([figures, *client_rows]):
                row["diverged"] = True
            if alone := getattr(executor, "one_by_one", None):
                row["one_by_one"] = sorted(alone)
            with naming(done.number, "a measure"):
                self.recorder.record(done, self.rows)
        self._warn(row, done)
        again = _same(self.known.get(done.number), row)
        if self.folder:
            if not again:
                self.folder.append("rounds.jsonl", [row])
            fresh = [r for r in (*done.clients, *client_rows) if not _same(self.known_clients.get(_key(r)), r)]
            self.folder.append("clients.jsonl", fresh)
        self.rows[done.number], self.whole = row, done
        self.tracking.round(row, again)
        with naming(done.number, "an observer"):
            for observer in self.task.observers:
                show_row(observer, row)

    def _warn(self, row: Row, done: Round) -> None:
        """Says once that clients are left out, and once that the run diverged; the rows say it every time."""
        number, earlier = row["round"], self.rows.values()
        faults = ", ".join(dict.fromkeys(row.get("faults", {}).values()))
        if row.get("excluded") and not any(known.get("excluded") for known in earlier):
            left_out = f"clients {row['excluded']} sent {faults}, and are left out"
            log.warning("round %d: %s (later rounds only in rounds.jsonl)", number, left_out)
        single = [client.get("samples") == 1 and not client.get("steps") for client in done.clients]
        if number and single and all(single) and self.task.net.has_batchnorm:
            why = "all its batches have one sample, of which BatchNorm has no statistics"
            remedy = "give clients more samples, or take another normalisation such as norm=group"
            warn_once(log, f"no client takes a step: {why}; {remedy}")
        dead = judge_dead(done.clients) if number > 2 and not self.said_dead else ""  # earlier, features are as drawn
        if dead:
            self.said_dead = True
            log.warning("round %d: %s", number, dead)
        if _is_empty(row) and not any(map(_is_empty, earlier)):
            left = "every sampled client dropped out, so that the model stays as it is"
            log.warning("round %d: %s (later rounds only in rounds.jsonl)", number, left)
        if "stopped" in row:
            log.warning(
                "round %d: %s: the run diverged and stops here, with the state before this round; lower lr, or look at "
                "that slot", number, row["stopped"],
            )  # fmt: skip
        elif row.get("diverged") and not any(known.get("diverged") for known in earlier):
            nobody = row["excluded"] and not any(
                client not in row["excluded"] + row["dropped"] for client in row["clients"]
            )
            unused = "no client's reply could be used, so the model stays as it is"
            why = unused if nobody else "a loss in the tests is not finite"
            remedy = "lower lr" if not faults or "NaN" in faults else "look at the method's weight(c, params)"
            if not nobody and (own := _find_tested(self.task)):
                remedy = f"lower lr, or look at {own}"
            log.warning("round %d: %s: the run diverged; %s (later rounds only in rounds.jsonl)", number, why, remedy)

    def _evaluate(self, done: Round, executor: Executor) -> tuple[Row, list[Row]]:
        number, wanted = done.number, self.config.evaluation
        final = number == self.config.rounds or bool(done.failed)
        tests_global, tests_clients = find_due(self.config, number, final)
        figures: Row = {}
        client_rows: list[Row] = []
        known = None
        tallies: dict[str, Tally] = {}
        closely = final or wanted.figures
        if tests_global:
            if closely:
                tallies["figures"] = self._make_tally()
            figures, known = evaluate_global(self.task, executor, done.server, number, tally=tallies.get("figures"))
            if self.task.federation.dataset.validation is not None:
                validated, _ = evaluate_global(self.task, executor, done.server, number, "validate")
                figures["validation"] = validated["accuracy"]
        if tests_clients:
            if closely and (self.config.pool_test or self.task.method.output != "global"):
                tallies["personal_figures"] = self._make_tally()
            arguments = (self.task, executor, self.store, done.server, number, wanted.max_clients, known)
            figures["personal"], client_rows = evaluate_clients(*arguments, tally=tallies.get("personal_figures"))
        tested = {key: tally.close() for key, tally in tallies.items() if not tally.is_empty}
        if wanted.figures:
            figures |= {key: own.figures for key, own in tested.items()}
        if final:
            self.tested = tested
        return figures, client_rows

    def _make_tally(self) -> Tally:
        return Tally(self.task.federation.dataset.classes, self.task.method.gives_logits)

    def _due(self, number: int) -> bool:
        """Whether it is time for a checkpoint."""
        every = self.config.execution.checkpoint_every
        if every:
            return number % every == 0
        since = time.monotonic() - self.saved_at
        return since >= LONG or (number % 10 == 0 and since >= 5)

    def _save(self, current: Round) -> None:
        self.saved_at = time.monotonic()
        if not self.folder:
            return
        try:
            self.folder.sync()
            self._write_changes()  # before the checkpoint, which is of the run as it is now
            about = self.folder.checkpoints, identify(self.config, self.task), current.number, self.folder.mark_rows()
            client_rows = self.folder.measure_client_rows()
            checkpoint.save(*about, current.server, self.store, self.remembered, client_rows)
        except OSError as error:
            let_pass(error)
            reason = error.strerror or str(error)
            raise InputError(
                f"cannot write a checkpoint into {self.folder.path / 'checkpoint'}: {reason}; "
                f"make room, then 'unskew resume {self.folder.path}' continues after round {self.saved}"
            ) from None
        self.saved = current.number

    def _finish(self, server: Groups, executor: Executor) -> Result:
        rows, last = list(self.rows.values()), max(self.rows)
        with naming(last, "a measure"):
            measured = self.recorder.summary(rows)
        summary = {**summarise(self.config, self.task, rows), **measured}
        s = self.task.server_context(last, server=server).read_only()
        published: Groups = ask_server(self.task, "publish", s, server)
        if unused := find_unused(self.task, server):
            summary["unused_parameters"] = unused
        tested: dict[str, Tested] = {}
        if self.folder and self.folder.finished:
            written = self.folder.summary()
            summary |= {key: written[key] for key in (*FIGURES, "files") if key in written}
        else:
            tested = arrange_tests(self._find_tests(executor))
            summary |= {key: own.figures for key, own in tested.items()}
            if self.folder:
                write_tests(self.folder, tested)
                self._write(summary, published, unused)
        self.tracking.end(summary)
        path = self.folder.place if self.folder else None
        models = Models(self.config, self._task_afterwards(), self._states_afterwards(NAME), server, published, last)
        return Result(self.config, summary, rows, server, published, path, models, tested)

    def _find_tests(self, executor: Executor) -> dict[str, Tested]:
        """What the last test came to; made again where the run ended between its last row and its summary."""
        if self.tested is None:
            self._evaluate(replace(self.whole, failed=self.whole.record.get("stopped", "")), executor)
        assert self.tested is not None
        return self.tested

    def _write(self, summary: Row, published: Groups, unused: list[str]) -> None:
        assert self.folder is not None
        about = {"run": self.config.hash, "method": str(self.config.method), "model": str(self.config.model)}
        notes = {**about, "unused_parameters": unused} if unused else about
        constants = self.task.net.constants  # without them the parameters are not the whole model
        whole = {**published, "constants": self.task.device.to_cpu({"": constants})[""]} if constants else published
        self._write_changes()
        model = storage.encode(whole, notes)
        self.folder.write_model(model)
        summary["files"] = self.folder.mark_files(model, [row for _, row in sorted(self.rows.items())])
        self.folder.write_summary(summary)

    def _task_afterwards(self) -> Task:
        return replace(self.task, server_store=self._states_afterwards(SERVER_NAME), observers=())

    def _states_afterwards(self, name: str) -> StateStore | SavedStates:
        """What clients remember, or the server of them, for as long as the result lives."""
        store = self.store if name == NAME else self.remembered
        return SavedStates(self.folder.checkpoints, store.snapshot(), name) if self.folder else store


def _find_tested(task: Task) -> str:
    """The slots from outside the package that make what is tested."""
    owners = {slot: owner_of(task.method, slot) for slot in ("personalise", "predict") if slot in task.guarded_slots}
    return " and ".join(f"{owner.name}.{slot}" for slot, owner in owners.items() if is_foreign([owner]))


def identify(config: Run, task: Task) -> checkpoint.Identity:
    """What a checkpoint must belong to."""
    partition = task.federation.partition
    return checkpoint.Identity(config.hash, frozenset(config.hashes), partition.hash, partition.data)


def make_server(config: Run, task: Task) -> Groups:
    """The server's state before the first round."""
    with prepare_process(config.execution.threads), task.device.set_tf32():
        s = task.server_context(0)
        server: Groups = ask_server(task, "init", s)
    if failure := find_failure(task, "init", server, s):
        raise InputError(f"{failure}, so there is nothing to train; look at the model's weights and at that slot")
    checkpoint.check_names(server)
    return tree.settle(server) if task.guarded_slots else server


def try_server(config: Run, task: Task, always: bool = False) -> Groups | None:
    """The same before there is a folder: what a method refuses leaves none. None: it must be made again in the run."""
    with closing(StateStore(limit=config.execution.state_memory << 20)) as trial:
        server = make_server(config, replace(task, server_store=trial))
        return server if trial.is_empty or always else None  # what it put belongs into the run's own store


def _same(old: Row | None, new: Row) -> bool:
    """Whether a row says the same as one that is there, times aside."""
    return old is not None and to_json({**old, "seconds": 0}) == to_json({**new, "seconds": 0})


def _key(row: Row) -> tuple[int, int, bool]:
    return row["round"], row["client"], "accuracy" in row


def _are_finite(found: list[Row]) -> bool:
    """Whether no loss of a test is NaN or infinite."""
    return all(math.isfinite(row.get("loss", 0.0)) for row in found)


def _is_empty(row: Row) -> bool:
    """Whether nobody replied in a round."""
    return bool(row.get("clients")) and set(row.get("dropped", ())) >= set(row["clients"])
