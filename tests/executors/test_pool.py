"""The pool: a dead worker is an error and not a hang, nothing is left behind, tensors arrive whole."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import psutil
import pytest
import torch

from unskew import engine, parts
from unskew.config import from_table
from unskew.core.jobs import Job
from unskew.core.method import Method, methods
from unskew.errors import ClientError
from unskew.executors.arena import Arena
from unskew.executors.pool import Pool


def play(method, **options):
    table = {"rounds": 2, "clients": 6, "split": "iid", "execution": {"executor": "pool", "workers": 2}, **options}
    return engine.run(replace(from_table(table), method=method))


class Fails(Method):
    name = "fails"

    def train(self, c, params):
        if c.round == 2:
            raise ValueError("no such luck")
        return super().train(c, params)


class Dies(Method):
    name = "dies"

    def train(self, c, params):
        if c.client == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().train(c, params)


def children():
    return [p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("executor", ["serial", "pool"])
def test_a_clients_exception_names_client_and_round_and_keeps_the_traceback(executor):
    with pytest.raises(ClientError, match=r"client \d failed in round 2: ValueError: no such luck") as caught:
        play(Fails(), execution={"executor": executor, "workers": 2})
    assert "no such luck" in caught.value.details and "in train" in caught.value.details
    assert not children()


def test_a_dead_worker_names_client_and_round():
    began = time.monotonic()
    with pytest.raises(ClientError, match=r"client 3 failed in round 1: worker \d .* died with signal SIGKILL"):
        play(Dies())
    assert time.monotonic() - began < 30
    assert not children()


def test_workers_end_with_their_parent(tmp_path):
    script = """
import sys, time
from unskew.core.method import Method
from unskew import engine, parts
from unskew.config import from_table
class Waits(Method):
    name = "waits"
    def train(self, c, params):
        open(sys.argv[1] + f"/{__import__('os').getpid()}", "w")
        time.sleep(60)
run = from_table({"clients": 4, "split": "iid", "execution": {"executor": "pool", "workers": 2}})
engine.run(__import__("dataclasses").replace(run, method=Waits()))
"""
    parent = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)])
    deadline = time.monotonic() + 60
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    workers = [int(path.name) for path in tmp_path.iterdir()]
    assert len(workers) == 2
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 10
    while any(psutil.pid_exists(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in workers)


def test_replies_come_in_order_whoever_is_first():
    class Uneven(Method):
        name = "uneven"

        def train(self, c, params):
            time.sleep(0.2 if c.client % 2 else 0.0)
            return params

    result = play(Uneven())
    assert [row["clients"] for row in result.rounds[1:]]
    assert not children()


def test_a_run_that_ended_early_does_not_answer_the_next_one():
    run = from_table({"clients": 6, "split": "iid"})
    data = parts.prepare_data(run)
    task = parts.make_task(run, data, parts.cut(run, data))
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
    run = from_table({"clients": 20, "split": "iid", "model": "mlp"})
    data = parts.prepare_data(run)
    task = parts.make_task(run, data, parts.cut(run, data))
    before = psutil.Process().num_fds()
    for workers in (1, 2, 3):
        pool = Pool(task, workers)
        replies = pool.run(Job("train", 1, client, task.initial) for client in range(20))
        assert [reply.client for reply in replies] == list(range(20))
        pool.close()
    assert psutil.Process().num_fds() <= before + 1


def test_arena_keeps_types_shapes_and_writes_a_tensor_once():
    arena = Arena()
    shared = torch.randn(300, 1000)
    groups = {
        "a": {"x": shared, "same": shared, "t": shared.t(), "n": torch.tensor(5), "e": torch.empty(0, 3)},
        "b": {"flag": torch.tensor([True, False]), "h": torch.ones(3, dtype=torch.bfloat16)},
    }
    layout = arena.write(groups)
    assert layout["a"]["x"] == layout["a"]["same"] != layout["a"]["t"]
    for copy in (False, True):
        back = arena.read(layout, copy=copy)
        for group, tree in groups.items():
            assert list(back[group]) == list(tree)
            for name, value in tree.items():
                assert torch.equal(back[group][name], value) and back[group][name].dtype == value.dtype


def test_arena_grows_and_old_views_stay_valid():
    arena = Arena()
    first = arena.read(arena.write({"a": {"x": torch.arange(4)}}), copy=False)["a"]["x"]
    arena.write({"b": {"big": torch.zeros(2_000_000)}})
    assert first.tolist() == [0, 1, 2, 3]


def test_methods_registry_is_untouched():
    assert "fails" not in methods
