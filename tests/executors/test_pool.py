"""The pool: the bits of serial in any order of work, bounded memory, evaluation on all workers, nothing left over."""

import gc
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from unskew.base import process, tree
from unskew.base.errors import ClientError, InputError
from unskew.core.jobs import Job, Reply
from unskew.core.method import Method, methods
from unskew.executors.pool.executor import Pool
from unskew.executors.pool.worker import Worker
from unskew.executors.serial import Serial
from unskew.runs import building, engine
from unskew.runs.config import from_table
from unskew.runs.evaluation import evaluate_global


def play(method, **options):
    table = {"rounds": 2, "clients": 6, "split": "iid", "model": "mlp", "execution": {"executor": "pool", "workers": 2}}
    return engine.run(replace(from_table({**table, **options}), method=method))


def task_of(**table):
    run = from_table({"clients": 20, "split": "iid", "model": "mlp", **table})
    return building.prepare(run).task


class Fails(Method):
    name = "fails"

    def train(self, c, params):
        if c.round == 2:
            raise ValueError("no such luck")
        return super().train(c, params)


def children():
    return [p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("executor", ["serial", "pool"])
def test_a_clients_exception_names_client_and_round_and_keeps_the_traceback(executor):
    with pytest.raises(ClientError, match=r"client \d failed in round 2: ValueError: no such luck") as caught:
        play(Fails(), execution={"executor": executor, "workers": 2, "retries": 3})
    assert "no such luck" in caught.value.details and "in train" in caught.value.details
    assert not children()


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_uneven_clients_give_the_bits_of_serial(workers):
    table = {
        "method": "scaffold", "clients": 25, "rounds": 2, "split": "dirichlet(alpha=0.1, min_size=1)", "model": "mlp",
        "local": {"momentum": 0.5},
    }  # fmt: skip
    serial = engine.run(from_table(table))
    pool = engine.run(from_table({**table, "execution": {"executor": "pool", "workers": workers}}))
    assert all(torch.equal(pool.server[g][n], v) for g, t in serial.server.items() for n, v in t.items())
    assert [row["accuracy"] for row in pool.rounds] == [row["accuracy"] for row in serial.rounds]


def test_replies_come_in_order_whoever_is_first():
    class Uneven(Method):
        name = "uneven"

        def train(self, c, params):
            time.sleep(0.2 if c.client % 2 else 0.0)
            return params

    result = play(Uneven())
    assert [row["clients"] for row in result.rounds[1:]]
    assert not children()


def test_the_longest_client_is_handed_out_first(monkeypatch):
    given, give = [], Worker.give
    monkeypatch.setattr(Worker, "give", lambda self, *job: (given.append(job[1].client), give(self, *job))[1])
    task = task_of()
    pool = Pool(task, 2)
    try:
        jobs = [Job("train", 1, client, task.initial, size=size) for client, size in enumerate([5, 1, 9, 7])]
        assert [reply.client for reply in pool.run(jobs)] == [0, 1, 2, 3]
    finally:
        pool.close()
    assert given == [2, 3, 0, 1]


def test_jobs_are_made_with_their_sizes():
    task, made = task_of(split="dirichlet:0.1", evaluation={"local_test": "none"}), []

    class Watching(Serial):
        longest_first = True

        def run(self, jobs):
            def watched():
                for job in jobs:
                    made.append(job)
                    yield job

            return super().run(watched())

    from unskew.core.round_loop import rounds
    from unskew.runs.client_store import StateStore

    server = task.method.init(task.server_context(0))
    list(rounds(task, Watching(task), StateStore(Path()), server, 1, 1))
    assert [job.size for job in made] == [len(task.federation.train(job.client)) for job in made]
    made.clear()
    evaluate_global(task, Watching(task), server, 1)
    assert [job.size for job in made] == [360]


def test_a_run_that_ended_early_does_not_answer_the_next_one():
    task = task_of()
    pool = Pool(task, 2)
    try:
        jobs = [Job("train", 1, client, task.initial) for client in range(6)]
        first = pool.run(jobs)
        assert next(first).client == 0
        first.close()
        assert [reply.client for reply in pool.run(reversed(jobs))] == [5, 4, 3, 2, 1, 0]
    finally:
        pool.close()


def test_many_more_jobs_than_workers_and_no_descriptor_is_left_open():
    task = task_of()
    before = psutil.Process().num_fds()
    for workers in (1, 2, 3):
        pool = Pool(task, workers)
        replies = pool.run(Job("train", 1, client, task.initial) for client in range(20))
        assert [reply.client for reply in replies] == list(range(20))
        pool.close()
    assert psutil.Process().num_fds() <= before + 1


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_shared_memory_stays_mapped_or_open():
    before = memfds()
    result = play(methods.build("scaffold"))
    gc.collect()
    assert memfds() == before and result.accuracy > 0


def memfds():
    """The shared memory that this process has mapped or open."""
    mapped = [line.split()[0] for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:unskew" in line]
    handles = [path.name for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return mapped, [handle for handle in handles if "memfd:unskew" in str(Path(f"/proc/self/fd/{handle}").readlink())]


class Stub:
    """A task that answers with what it was sent."""

    profile = None

    def work(self, job):
        return Reply(job.client, {"got": {**job.message["model"], **job.message.get("own", {})}}, job.state)


def test_what_all_clients_are_sent_is_written_once_and_what_one_is_sent_does_not_add_up():
    model = {"w": torch.randn(1000), "b": torch.randn(10)}
    jobs = (
        Job("train", 1, k, {"model": model, "own": {"o": torch.full((5000,), k)}}, {"s": {"v": torch.tensor(k)}})
        for k in range(100)
    )
    pool = Pool(Stub(), 2)
    try:
        for client, reply in enumerate(pool.run(jobs)):
            assert torch.equal(reply.groups["got"]["w"], model["w"]) and reply.state["s"]["v"] == client
            assert reply.groups["got"]["o"].tolist() == [client] * 5000
            assert pool._shared_inputs.used == 4032 + 64
            assert all(worker.inputs.used <= 40_000 + 64 for worker in pool._workers)
        kept = reply.groups["got"]["w"]
        assert [r.client for r in pool.run(Job("train", 2, k, {"model": tree.scale(model, 2.0)}) for k in (3, 4))]
        assert torch.equal(kept, model["w"])  # a reply is its reader's own
    finally:
        pool.close()


@pytest.mark.parametrize("batch", [1, 7, 120, 359, 360, 1000])
def test_evaluation_in_parts_loses_no_sample_and_every_worker_takes_part(batch, monkeypatch):
    monkeypatch.setattr("unskew.core.task._TEST_PART", 100)
    busy, give = set(), Worker.give
    monkeypatch.setattr(Worker, "give", lambda self, *job: (busy.add(self.number), give(self, *job))[1])
    task = task_of(evaluation={"batch": batch})
    pool = Pool(task, 2)
    try:
        with process.prepare_process(threads=1):
            scores = [evaluate_global(task, executor, task.initial, 1)[1] for executor in (Serial(task), pool)]
    finally:
        pool.close()
    assert len(scores[0]["right"]) == len(scores[0]["loss"]) == len(task.federation.dataset.test) == 360
    assert all(torch.equal(scores[0][key], scores[1][key]) for key in ("right", "loss"))
    assert busy == ({0, 1} if batch < 359 else {0})


@pytest.mark.parametrize(("batch", "workers"), [(100, 3), (200, 2), (1000, 1)])
def test_there_are_workers_for_the_parts_of_the_test_set(batch, workers, monkeypatch):
    monkeypatch.setattr("unskew.core.task._TEST_PART", 100)
    table = {"clients": 4, "sample": 0.25, "evaluation": {"batch": batch}}
    run = from_table({**table, "execution": {"executor": "pool", "workers": 3}})
    assert building._workers(run, task_of(**table)) == workers


def test_methods_registry_is_untouched():
    assert "fails" not in methods


def test_a_worker_that_cannot_be_started_is_an_error_and_the_others_end(monkeypatch):
    task, forks, fork = task_of(), [], os.fork

    def fails_later():
        forks.append(0)
        if len(forks) == 3:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return fork()

    monkeypatch.setattr(os, "fork", fails_later)
    with pytest.raises(InputError, match="cannot start worker 2: Resource temporarily unavailable; take fewer"):
        Pool(task, 4)
    assert not children()
