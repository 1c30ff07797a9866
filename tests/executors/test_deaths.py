"""Workers that die: an error that names worker, client and round, or another try. No end of a run leaves anything."""

import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from unskew.base import storage
from unskew.base.errors import ClientError
from unskew.core.method import Method
from unskew.runs import engine
from unskew.runs.config import from_table
from unskew.runs.folder import RunFolder

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs prctl and /proc")
DEATH = r"worker \d \(process \d+\) died with signal SIGKILL \(out of memory\?\)"


def killed(folder, times):
    """Ends this process at once, unless that happened `times` times before."""
    for number in range(times):
        try:
            os.close(os.open(f"{folder}/{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        os.kill(os.getpid(), signal.SIGKILL)


class Dies(Method):
    """Kills the worker of client 3 in round 2, a few times."""

    name = "dies"
    folder: str = ""
    times: int = 0
    slot: str = "train"

    def train(self, c, params):
        if self.slot == "train" and (c.client, c.round) == (3, 2):
            killed(self.folder, self.times)
        return super().train(c, params)

    def predict(self, c, params, x):
        if self.slot == "predict" and c.round == 2:
            killed(self.folder, self.times)
        return super().predict(c, params, x)


def dies(folder, times, slot="train"):
    method = Dies()
    for name, value in (("folder", str(folder)), ("times", times), ("slot", slot)):
        object.__setattr__(method, name, value)
    return method


def play(method, retries=0, watch=None, executor="pool"):
    execution = {"executor": executor, "workers": 2, "retries": retries}
    run = from_table({"rounds": 3, "clients": 6, "split": "dirichlet:0.5", "model": "mlp", "execution": execution})
    return engine.run(replace(run, method=method), watch=watch)


def children():
    return [p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(scope="module")
def whole():
    return bits(play(Dies(), executor="serial"))


def bits(result):
    return storage.encode(result.server), [{**row, "seconds": 0} for row in result.rounds]


def test_a_dead_worker_names_worker_client_and_round(tmp_path):
    with pytest.raises(ClientError, match=rf"client 3 failed in round 2: {DEATH} during its train job$"):
        play(dies(tmp_path, 1))
    assert not children()


@pytest.mark.parametrize(("slot", "kind"), [("train", "train"), ("predict", "test")])
def test_a_job_is_tried_again_if_asked_and_gives_the_same_bits(tmp_path, whole, caplog, slot, kind):
    with caplog.at_level(logging.WARNING):
        assert bits(play(dies(tmp_path, 2, slot), retries=2)) == whole
    assert caplog.text.count(f"during its {kind} job; a new worker tries again") == 2
    assert not children()


def test_a_job_that_always_kills_its_worker_ends_the_run(tmp_path):
    with pytest.raises(ClientError, match=rf"client 3 failed in round 2: {DEATH} during its train job \(3 times now\)"):
        play(dies(tmp_path, 9), retries=2)
    assert len(list(tmp_path.iterdir())) == 3 and not children()


def kill_all_after_round_one(row):
    if row["round"] == 1:
        for child in children():
            child.kill()
            while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.01)


def test_a_worker_that_died_while_idle_is_noticed(whole):
    with pytest.raises(ClientError, match=rf"client \d failed in round 2: {DEATH} before its train job"):
        play(Dies(), watch=kill_all_after_round_one)
    assert not children()
    assert bits(play(Dies(), retries=1, watch=kill_all_after_round_one)) == whole


def python(script, *arguments, **options):
    """A process of its own session, so that what it leaves behind can be found."""
    return subprocess.Popen([sys.executable, "-c", script, *arguments], start_new_session=True, **options)


def session(process):
    """The processes that began in this one's session and are still alive."""
    found = []
    for other in psutil.process_iter():
        try:
            if os.getsid(other.pid) == process.pid and other.status() != psutil.STATUS_ZOMBIE:
                found.append(other.pid)
        except (OSError, psutil.Error):
            continue
    return found


def gone(process):
    deadline = time.monotonic() + 10
    while session(process) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not session(process)


def test_a_worker_may_be_replaced_after_the_parent_used_threads(tmp_path):
    """OpenMP's threads do not survive a fork: a worker that entered a parallel region would wait for ever."""
    script = """
import sys, torch
sys.path[:0] = [sys.argv[2]]
import test_deaths
torch.set_num_threads(4)
(torch.randn(800, 800) @ torch.randn(800, 800)).exp().sum()
net = torch.nn.Conv2d(3, 8, 3)
def threads(row):
    torch.set_num_threads(4)
    net(torch.randn(64, 3, 32, 32)).sum().backward()  # in the parent, between the rounds
    torch.set_num_threads(1)
assert test_deaths.play(test_deaths.dies(sys.argv[1], 1), retries=1, watch=threads).accuracy > 0
"""
    process = python(script, str(tmp_path), str(Path(__file__).parent))
    assert process.wait(timeout=120) == 0


@linux
def test_workers_end_with_their_parent(tmp_path):
    script = """
import os, sys, time
from unskew.runs import engine
from unskew.runs.config import from_table
from unskew.core.method import Method
class Waits(Method):
    name = "waits"
    def train(self, c, params):
        open(f"{sys.argv[1]}/{os.getpid()}", "w")
        time.sleep(60)
run = from_table({"clients": 4, "split": "iid", "model": "mlp", "execution": {"executor": "pool", "workers": 2}})
engine.run(__import__("dataclasses").replace(run, method=Waits()))
"""
    parent = python(script, str(tmp_path))
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
    parent.kill()
    parent.wait()
    assert gone(parent)


def wait_until(what):
    deadline = time.monotonic() + 120
    while not what() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert what()


PLUGIN = """
import os, signal
from unskew.core.method import Method, methods

@methods.register("test_dies")
class Dies(Method):
    def train(self, c, params):
        if (c.client, c.round) == (3, 2) and not os.path.exists({mark!r}):
            open({mark!r}, "w")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().train(c, params)
"""


class Command:
    """`unskew` in a session and with a folder for temporary files of its own."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "tmp").mkdir()
        (folder / "dies.py").write_text(PLUGIN.format(mark=str(folder / "mark")))

    def start(self, text):
        environment = {**os.environ, "TMPDIR": str(self.folder / "tmp")}
        return subprocess.Popen(
            [sys.executable, "-m", "unskew", *text.split()], cwd=self.folder, env=environment, start_new_session=True,
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
        )  # fmt: skip

    def ended(self, process):
        _, said = process.communicate(timeout=120)
        assert gone(process) and not list((self.folder / "tmp").iterdir())
        return process.returncode, said.strip().splitlines()


def goes_on_to(folder, result):
    """The interrupted run, resumed, ends with the bits of this uninterrupted one."""
    assert storage.encode(engine.resume(folder).server) == storage.encode(result.server)


def test_on_the_command_line_a_dead_worker_is_one_line_and_the_run_can_go_on(tmp_path, monkeypatch):
    command = Command(tmp_path)
    run = (
        "run --plugin dies.py --method test_dies --clients 6 --rounds 3 --model mlp --quiet --executor pool --workers 2"
    )
    code, said = command.ended(command.start(f"{run} --out cut"))
    assert code == 1 and len(said) == 1
    assert said[0].startswith("error: client 3 failed in round 2: worker ") and "unskew resume" in said[0]
    (tmp_path / "mark").unlink()
    code, said = command.ended(command.start(f"{run} --retries 1 --out retried"))
    assert code == 0 and len(said) == 1 and said[0].startswith("warning: client 3 in round 2: worker ")
    monkeypatch.chdir(tmp_path)  # where run.toml's plugin lies
    goes_on_to(tmp_path / "cut", engine.resume(tmp_path / "retried"))


def test_ctrl_c_leaves_a_run_that_can_go_on_and_nothing_else(tmp_path):
    command = Command(tmp_path)
    run = "run --method scaffold --clients 8 --sample 0.5 --rounds 60 --model mlp --quiet"
    process = command.start(f"{run} --executor pool --workers 2 --out cut")
    rows = tmp_path / "cut/rounds.jsonl"
    wait_until(lambda: rows.exists() and rows.read_bytes().count(b"\n") > 5)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the workers get it, too
    code, said = command.ended(process)
    assert code == 130 and len(said) == 1 and "interrupted" in said[0]
    goes_on_to(tmp_path / "cut", engine.run(RunFolder.open(tmp_path / "cut")[1]))
