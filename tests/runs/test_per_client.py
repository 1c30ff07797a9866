"""What the server remembers of each client: the same on every executor and after a stop, in bounded memory."""

import json
import sqlite3
import subprocess
import sys

import pytest
import torch

import unskew
from small_runs import SMALL, register
from support import STACKED_TOLERANCE, gap, initial_model
from unskew.base import storage
from unskew.base.errors import ClientError, InputError, SlotError
from unskew.core.method import Method, methods
from unskew.core.per_client import PerClient
from unskew.core.reducers import mean, per_client, total
from unskew.core.task import Task
from unskew.runs import building, calibration, checkpoint, engine
from unskew.runs.config import from_table
from unskew.runs.state_file import SERVER_NAME

TABLE = {
    "method": "test_remembers", "clients": 8, "sample": 0.5, "rounds": 6, "split": "dirichlet:0.5", "model": "mlp",
    "local": {"lr": 0.05, "momentum": 0.5}, "execution": {"checkpoint_every": 2},
    "evaluation": {"clients_every": 1},
}  # fmt: skip


@methods.register("test_remembers")
class Remembers(Method):
    """The server adds up how each client's head moved, and sends it back at the next visit (as FedPAC's server)."""

    output = "both"
    reducers = {"delta": mean, "every": ("delta", per_client)}
    survey_reducers = {"counts": total}

    def init(self, s):
        s.per_client.put(0, {"sum": {"bias": torch.full((s.num_classes,), 0.01)}, "visits": {"": torch.tensor(0)}})
        return super().init(s)

    def download(self, s, server, client):
        known = s.per_client.get(client).get("sum", {"bias": torch.zeros(s.num_classes)})
        return {**super().download(s, server, client), "sum": known}

    def survey(self, c):
        return {"counts": {"": c.counts.float()}}

    def digest(self, s, server, surveyed):
        for client in s.cohort:
            known = s.per_client.get(client)
            visits = known.get("visits", {"": torch.tensor(0)})[""] + 1
            s.per_client.put(client, {**known, "visits": {"": visits}})
        return server

    def brief(self, s, server, client):
        return {"visits": {"": s.per_client.get(client)["visits"][""].float()}}

    def loss(self, c, params, batch):
        pull = (params["head.bias"] * c.message["sum"]["bias"]).sum() / c.message["visits"][""]
        return super().loss(c, params, batch) - pull

    def update(self, s, server, merged):
        for client, (delta, _) in merged["every"].items():
            known = s.per_client.get(client)
            old = known.get("sum", {"bias": torch.zeros(s.num_classes)})["bias"]
            s.per_client.put(client, {**known, "sum": {"bias": old + delta["head.bias"]}})
        return super().update(s, server, merged)


@methods.register("test_writes_while_reading")
class WritesWhileReading(Method):
    """Puts where the server only reads."""

    def download(self, s, server, client):
        s.per_client.put(client, {"sum": {"": torch.ones(1)}})
        return super().download(s, server, client)


@pytest.fixture(autouse=True, scope="module")
def only_here():
    yield
    del methods._classes["test_remembers"], methods._classes["test_writes_while_reading"]


def play(out=None, watch=None, **options):
    execution = {**TABLE["execution"], **options.pop("execution", {})}
    return engine.run(from_table({**TABLE, **options, "execution": execution}), out, watch=watch)


def without_times(row):
    return {key: value for key, value in row.items() if key != "seconds"}


def assert_equal(one, other):
    for group, tree in one.server.items():
        assert all(torch.equal(value, other.server[group][name]) for name, value in tree.items())
    assert list(map(without_times, one.rounds)) == list(map(without_times, other.rounds))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    return play(path)


def test_it_reaches_the_clients(whole):
    plain = play(method="fedavg")
    assert any(not torch.equal(v, plain.server["model"][n]) for n, v in whole.server["model"].items())


def test_pool_gives_the_bits_of_serial_and_stacked_nearly(whole, caplog):
    assert_equal(play(execution={"executor": "pool", "workers": 2}), whole)
    stacked = play(execution={"executor": "stacked", "chunk": 3})
    assert "one by one" not in caplog.text
    assert gap(stacked, whole, initial_model(whole.run)) < STACKED_TOLERANCE


@pytest.mark.parametrize("after", [1, 2, 3, 4])
def test_a_stopped_run_resumes_bit_for_bit(tmp_path, whole, after):
    def stop(row):
        if row["round"] == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(tmp_path / "run", stop)
    assert_equal(engine.resume(tmp_path / "run"), whole)


@pytest.mark.parametrize("slot", ["brief", "work", "update"])
def test_a_half_done_round_leaves_nothing_in_a_checkpoint(tmp_path, whole, monkeypatch, slot):
    holder = Task if slot == "work" else Remembers
    plain, round_ = getattr(holder, slot), 4

    def fails(self, about, *rest):
        done = plain(self, about, *rest)
        if about.round == round_ and getattr(about, "kind", "train") == "train":
            raise KeyboardInterrupt  # after digest has put, and update too
        return done

    monkeypatch.setattr(holder, slot, fails)
    with pytest.raises((KeyboardInterrupt, ClientError)):
        play(tmp_path / "run")
    monkeypatch.undo()
    found = checkpoint.load_newest(tmp_path / "run" / "checkpoint", checkpoint.Identity(whole.run.hash), 9)
    assert found.round == 2 and found.remembered[1] > 0
    assert_equal(engine.resume(tmp_path / "run"), whole)


def test_on_disk_it_is_the_same_and_memory_is_bounded(tmp_path, whole, monkeypatch):
    monkeypatch.setattr("unskew.runs.client_store._OVERHEAD", 1 << 30)  # nothing fits beside another
    assert_equal(play(), whole)
    assert_equal(play(tmp_path / "run"), whole)


def test_a_damaged_file_falls_back_to_the_checkpoint_before(tmp_path, whole, caplog):
    def stop(row):
        if row["round"] == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(tmp_path / "run", stop, execution={"checkpoint_every": 1})
    with sqlite3.connect(tmp_path / "run" / "checkpoint" / SERVER_NAME) as file:
        row, client, data = file.execute("SELECT id, client, data FROM states ORDER BY id DESC").fetchone()
        file.execute("UPDATE states SET data = ? WHERE id = ?", (data[:-1] + bytes([data[-1] ^ 1]), row))
    file.close()
    assert_equal(engine.resume(tmp_path / "run"), whole)
    assert f"{SERVER_NAME} is damaged: the state of client {client}" in caplog.text


def test_runs_that_put_nothing_have_the_checkpoints_they_had(tmp_path):
    play(tmp_path / "run", method="scaffold")
    folder = tmp_path / "run" / "checkpoint"
    assert not (folder / SERVER_NAME).exists()
    found = storage.decode(storage.read_certified(sorted(folder.glob("round-*"))[-1]))
    assert set(found) == {"model", "buffers", "control", "client states"}


@pytest.mark.parametrize("executor", ["serial", "pool", "stacked"])
def test_putting_where_the_server_only_reads_is_an_error(executor):
    with pytest.raises(SlotError, match="download, brief and publish only read"):
        play(method="test_writes_while_reading", execution={"executor": executor, "workers": 2})


def test_publish_only_reads_too(monkeypatch):
    monkeypatch.setattr(Remembers, "publish", lambda self, s, server: s.per_client.put(0, {}))
    with pytest.raises(SlotError, match="only read"):
        play()


def test_without_a_run_memory_serves():
    task = building.prepare(from_table(TABLE)).task
    task.method.init(task.server_context(0))
    assert task.server_context(1).per_client.get(0)["sum"]["bias"][0] == 0.01
    assert "sum" in calibration._make_job(task).message


def test_a_view_does_not_keep_its_base_in_memory():
    memory, base = PerClient(), torch.zeros(1000, 10, requires_grad=True)
    memory.put(3, {"own": {"row": base[3], "whole": base}})
    kept = memory.get(3)["own"]
    assert kept["row"].untyped_storage().nbytes() == 40 and not kept["row"].requires_grad
    assert kept["whole"].data_ptr() == base.data_ptr() and memory.get(4) == {}


def test_a_method_that_refuses_leaves_no_folder(tmp_path, monkeypatch):
    def refuse(self, s):
        s.per_client.put(0, {"a": {"b": torch.ones(1)}})
        raise InputError("not today")

    monkeypatch.setattr(Remembers, "init", refuse)
    with pytest.raises(InputError, match="not today"):
        play(tmp_path / "run")
    assert not (tmp_path / "run").exists()


MANY = """
import json, resource, sys, torch
from unskew.core.method import Method, methods
from unskew.runs import engine
from unskew.runs.client_store import StateStore
from unskew.runs.config import from_table

@methods.register("test_many")
class Many(Method):
    def init(self, s):
        for client in range(int(sys.argv[2])):
            s.per_client.put(client, {"own": {"a": torch.full((250,), float(client))}})
        return super().init(s)

    def download(self, s, server, client):
        known = s.per_client.get(client)
        assert (client < int(sys.argv[2])) <= bool(known) and (not known or known["own"]["a"][0] >= client)
        return super().download(s, server, client)

    def update(self, s, server, merged):
        for client in s.cohort if sys.argv[2] != "0" else ():
            known = s.per_client.get(client) or {"own": {"a": torch.full((250,), float(client))}}
            s.per_client.put(client, {"own": {"a": known["own"]["a"] + 1}})
        return super().update(s, server, merged)

held, plain = [0], StateStore._remember

def watch(self, client, state):
    plain(self, client, state)
    held[0] = max(held[0], self._held)

StateStore._remember = watch
table = {"method": "test_many", "clients": 100_000, "sample": 1e-4, "rounds": 2, "split": "virtual", "model": "mlp",
         "evaluation": {"local_test": "none"}, "execution": {"state_memory": int(sys.argv[3]), "executor": "serial"}}
engine.run(from_table(table), sys.argv[1])
print(json.dumps([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, held[0] / 2**20]))
"""


def measure_many(folder, states, state_memory):
    """Peak memory in MB of a run that puts so many states in `init`, and the largest MiB that its store held."""
    command = [sys.executable, "-c", MANY, str(folder), str(states), str(state_memory)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_the_limit_of_states_in_memory_is_honoured(tmp_path):
    _, held = measure_many(tmp_path / "run", 5000, 1)
    assert 0.9 < held <= 1.01


@pytest.mark.slow
def test_a_hundred_thousand_clients_take_bounded_memory(tmp_path):
    (few, _), (many, held) = (measure_many(tmp_path / str(states), states, 4) for states in (0, 100_000))
    assert 3.9 < held <= 4.01 and many - few < 50  # 100 MB of numbers in 100,000 states


@pytest.mark.parametrize("groups", [3, {"a": torch.ones(1)}, {"a": {"b": 1.0}}])
def test_what_the_server_puts_is_groups(groups, own_names):
    def update(self, s, server, merged):
        s.per_client.put(0, groups)
        return server

    with pytest.raises(SlotError, match=r"s\.per_client\.put takes groups .*, in mine\.update"):
        unskew.run(**SMALL, method=register("methods", "mine", Method, update=update)())
