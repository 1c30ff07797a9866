"""The server's side of a federation of real sites: who is sent what, whose answer counts. How bytes travel is others'.

An answer that is malformed, not finite, late, repeated or of another round is dropped with the site's name and the
reason; the round goes on if enough good ones came.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from unskew.base.errors import InputError
from unskew.base.text import Table
from unskew.base.tree import Groups
from unskew.core.jobs import Job, Reply
from unskew.core.task import Task
from unskew.data.dataset import Dataset
from unskew.data.partition.listed import ListedPartition
from unskew.data.sources import load
from unskew.deploy.channel import LIMIT, Refused
from unskew.deploy.folder import DeployFolder, Deployment
from unskew.deploy.messages import Answer, Request, check_like, decode_answer, empty_like, encode
from unskew.deploy.site import Facts, describe_run
from unskew.runs.building import Prepared, make_task
from unskew.runs.config import Run, from_table, read_file

log = logging.getLogger(__name__)


class Transport(Protocol):
    """How requests reach sites."""

    def exchange(self, requests: Mapping[int, bytes]) -> Iterable[tuple[int, bytes | str]]:
        """Sends each client its request; gives answers as they come, or in a text why there is none.

        Clients that do not answer in time may be left out.
        """


class TooFewAnswers(InputError):
    """A round in which not enough sites could be used; the run can be resumed."""


@dataclass(frozen=True)
class Terms:
    """What the server asks of a round."""

    min_replies: int = 1
    limit: int = LIMIT


def prepare_for_sites(config: Run, test: Dataset, sites: int) -> Prepared:
    """The run as the server plays it: its own test samples, and clients of which it has none."""
    if config.evaluation.local_test not in ("none", "holdout"):
        raise InputError(
            f"sites test on samples of their own: set evaluation.local_test to holdout or none, got "
            f"'{config.evaluation.local_test}'"
        )
    if config.measure:
        raise InputError(f"sites measure nothing yet: leave measure out, got {config.measure[0]}")
    if config.init is not None:
        raise InputError(f"sites begin with the weights that the seed draws: leave init out, got {config.init}")
    if config.clients not in (None, sites):
        raise InputError(f"the run file says {config.clients} clients, and there are {sites} sites; leave clients out")
    if not config.execution.checkpoint_every:  # a round of sites takes long
        config = replace(config, execution=replace(config.execution, checkpoint_every=1))
    nobody = ListedPartition.from_lists([[] for _ in range(sites)], len(test.train))
    resolved = replace(config, clients=sites).resolve(test)
    return Prepared(resolved, make_task(resolved, test, nobody))


def prepare_deployment(folder: DeployFolder) -> Prepared:
    """The run of a deployment's folder as its server plays it."""
    about = folder.read()
    return prepare_table(read_file(folder.run_file), about)


def prepare_table(table: Table, about: Deployment) -> Prepared:
    """The run of a run file's table; its data are the server's test samples."""
    if not about.test:
        raise InputError("deploy.toml: test: expected the server's test samples, such as npz:/data/test.npz")
    given = {key: table[key] for key in ("data", "split", "clients") if key in table}
    if given:
        raise InputError(f"the run file of a deployment leaves out {', '.join(given)}: sites have their own data")
    table = {**table, "data": about.test}
    config, data = from_table(table), load(about.test)
    test = Dataset(data.name, data.test, data.test, data.classes, data.mean, data.std)
    return prepare_for_sites(config, test, len(about.sites))


class OverSites:
    """Hands clients' jobs to their sites; the test of the global model stays here."""

    longest_first = False

    def __init__(
        self, config: Run, task: Task, run: str, transport: Transport, names: Sequence[str], terms: Terms
    ) -> None:
        self._task, self._run, self._transport, self._names, self._terms = task, run, transport, names, terms
        self._about = {"run": describe_run(config), "data": Facts.of(task.federation.dataset).to_plain()}
        self._opened: set[int] = set()
        s = task.server_context(0)
        sent = task.method.download(s, task.method.init(s), 0)
        self._delta = empty_like({"delta": sent.get("model", {})})

    def run(self, jobs: Iterable[Job]) -> Iterator[Reply]:
        """A reply for each job, in order; of a site that gave none that can be used, one that says why."""
        waiting = list(jobs)
        here = [job for job in waiting if job.client < 0]
        if here:
            yield from (self._task.work(job) for job in here)
            return
        self._open({job.client for job in waiting} - self._opened)
        found = self._ask({job.client: self._encode(job) for job in waiting}, self._read_reply(waiting))
        kind = waiting[0].kind if waiting else "personal"
        good = sum(isinstance(reply, Reply) for reply in found.values())
        if kind != "personal" and good < min(self._terms.min_replies, len(waiting)):
            raise TooFewAnswers(
                f"round {waiting[0].round}: {good} of {len(waiting)} sites gave an answer that can be used, expected "
                f"at least {self._terms.min_replies}; resume the run when they are back"
            )
        for job in waiting:
            reply = found.get(job.client, "no answer in time")
            yield reply if isinstance(reply, Reply) else Reply(job.client, fault=str(reply))

    def close(self) -> None:
        """Sites stay open: a resumed run goes on with them."""

    def _open(self, clients: Iterable[int]) -> None:
        """Tells sites which run it is, each before its first job."""
        requests = {
            client: encode(Request(run=self._run, round=0, client=client, kind="open", about=self._about), {})
            for client in sorted(clients)
        }
        if not requests:
            return

        def check(client: int, answer: Answer, groups: Groups) -> str:
            if answer.kind != "opened":
                raise Refused(f"expected 'opened', got '{answer.kind}'")
            return "opened"

        found = self._ask(requests, check)
        self._opened |= {client for client, said in found.items() if said == "opened"}

    def _encode(self, job: Job) -> bytes:
        head = Request(run=self._run, round=job.round, client=job.client, kind=job.kind)  # type: ignore[arg-type]
        return encode(head, job.message)

    def _read_reply(self, jobs: Sequence[Job]) -> Callable[[int, Answer, Groups], Reply]:
        by_client = {job.client: job for job in jobs}

        def read(client: int, answer: Answer, groups: Groups) -> Reply:
            job = by_client[client]
            if answer.kind != "done":
                raise Refused(f"expected 'done', got '{answer.kind}'")
            if job.kind == "train" and self._task.wire is None and "delta" in groups:
                check_like(groups, self._delta)
            if job.kind == "personal":
                _check_score(groups)
            if not (math.isfinite(answer.weight) and answer.weight >= 0):
                raise Refused(f"a weight of {answer.weight:g}")
            return Reply(
                client, groups, weight=answer.weight, num_samples=answer.num_samples, num_steps=answer.num_steps,
                seconds=answer.seconds, diagnostics=answer.diagnostics, finite=True,
            )  # fmt: skip

        return read

    def _ask(self, requests: Mapping[int, bytes], read: Callable[[int, Answer, Groups], object]) -> dict[int, object]:
        """What sites answered, as it was read; a text says why one cannot be used."""
        asked = {client: hashlib.sha256(data).hexdigest() for client, data in requests.items()}
        found: dict[int, object] = {}
        for client, data in self._transport.exchange(requests):
            if client not in requests:
                log.warning("an answer from somebody who was not asked was dropped")
                continue
            if client in found and not isinstance(found[client], str):
                log.warning("%s: a second answer was dropped", self._names[client])
                continue
            try:
                if isinstance(data, str):
                    raise Refused(data)
                answer, groups = decode_answer(data, self._terms.limit)
                self._check_head(client, answer, asked[client])
                found[client] = read(client, answer, groups)
            except Refused as error:
                log.warning("%s: its answer was dropped: %s", self._names[client], error)
                found[client] = str(error)
        return found

    def _check_head(self, client: int, answer: Answer, asked: str) -> None:
        if answer.run != self._run or answer.asked != asked or answer.client != client:
            raise Refused(f"it answers another request (of round {answer.round})")
        if answer.kind == "failed":
            raise Refused(answer.reason or "it failed")


def _check_score(groups: Groups) -> None:
    score = groups.get("score", {})
    fits = score.keys() == {"right", "loss"} and all(value.dim() == 1 for value in score.values())
    if not fits or len(score["right"]) != len(score["loss"]) or score["right"].dtype.is_floating_point:
        raise Refused("its test gives no score")
