"""Actors on Ray clusters of this machine: the bits of `serial`, whoever dies meanwhile."""

import builtins
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import unskew
from small_runs import equal
from unskew import Method, registries
from unskew.base.errors import ClientError, InputError
from unskew.cli import main
from unskew.executors.ray import executor as on_ray

pytest.importorskip("ray", reason="Ray is an extra: pip install 'unskew[ray]'")

SMALL = {"data": "digits", "model": "mlp(hidden=[8])", "clients": 6, "sample": 0.5, "rounds": 2, "batch": 64,
         "split": "dirichlet:0.5"}  # fmt: skip
SEVEN = ["fedavg", "scaffold", "fedas", "fedblade", "flfa(fedprox)", "fedsol",
         "fedaf(ipc=2, steps=3, server_epochs=2)"]  # fmt: skip


@registries.methods.register("test_ray_dies")
class Dies(Method):
    """The process of client 2 ends in round 2, so many times."""

    mark: str = ""
    times: int = 1

    def train(self, c, params):
        seen = Path(self.mark)
        if c.round == 2 and c.client == 2 and len(seen.read_bytes()) < self.times:
            with seen.open("ab") as file:
                file.write(b".")
            os._exit(7)
        return super().train(c, params)


@registries.methods.register("test_ray_slow")
class Slow(Method):
    """Says where it is at work, and takes its time."""

    mark: str = ""

    def train(self, c, params):
        if self.mark:
            (Path(self.mark) / f"{c.round}-{c.client}-{os.getppid()}").touch()
            time.sleep(0.5)
        return super().train(c, params)


@registries.methods.register("test_ray_fails")
class Fails(Method):
    """Client 1 fails."""

    def upload(self, c, params):
        if c.client == 1:
            raise ZeroDivisionError("by hand")
        return super().upload(c, params)


@pytest.fixture(scope="module")
def cluster():
    """A cluster of two actors, started once for all tests."""
    ray = on_ray.import_ray()
    on_ray.connect(cores=2)
    yield ray
    ray.shutdown()


def play(executor, **options):
    return unskew.run(**{**SMALL, "executor": executor, **options})


def same(one, other):
    return equal(one, other) and [row.get("accuracy") for row in one.rounds] == [
        row.get("accuracy") for row in other.rounds
    ]


@pytest.mark.parametrize(
    "method", [each if each == "scaffold" else pytest.param(each, marks=pytest.mark.slow) for each in SEVEN]
)
def test_the_bits_of_serial(cluster, method):
    assert same(play("serial", method=method), play("ray", method=method))


@pytest.mark.slow
def test_measures_wires_and_augmentation_go_along(cluster):
    options = {"measure": "drift", "wire": "topk(0.5)", "augment": "augment(crop=1)", "clients_every": 1}
    serial, other = play("serial", **options), play("ray", **options)
    assert same(serial, other)
    assert [row.get("drift") for row in serial.rounds] == [row.get("drift") for row in other.rounds]


@pytest.mark.slow
def test_a_dead_actor_is_replaced_and_its_client_runs_again(cluster, tmp_path, caplog):
    whole = tmp_path / "whole"
    whole.write_bytes(b"..")
    died = tmp_path / "died"
    died.touch()
    serial = play("serial", method=f"test_ray_dies(mark='{whole}')", sample=1.0)
    assert same(serial, play("ray", method=f"test_ray_dies(mark='{died}', times=2)", sample=1.0))
    assert len(died.read_bytes()) == 2
    assert sum("client 2 in round 2: a Ray actor died" in line.message for line in caplog.records) == 2


@pytest.mark.slow
def test_a_client_that_kills_every_actor_ends_the_run(cluster, tmp_path):
    died = tmp_path / "died"
    died.touch()
    with pytest.raises(ClientError, match="client 2 failed in round 2: its Ray actor died 4 times"):
        play("ray", method=f"test_ray_dies(mark='{died}', times=99)", sample=1.0)


@pytest.mark.slow
def test_what_fails_in_a_slot_is_one_line(cluster):
    with pytest.raises(
        ClientError, match=r"client 1 failed in round \d: ZeroDivisionError: by hand, in test_ray_fails"
    ):
        play("ray", method="test_ray_fails", sample=1.0)


@pytest.mark.slow
def test_a_run_goes_on_with_another_executor(cluster, tmp_path):
    whole = play("serial", method="scaffold", rounds=3)

    def stop(row):
        if row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play("ray", method="scaffold", rounds=3, out=tmp_path / "run", watch=stop, checkpoint_every=1)
    assert same(whole, unskew.resume(tmp_path / "run", executor="ray"))


def test_without_ray_one_line_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def refuse(name, *rest, **more):
        if name == "ray":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(InputError, match=r"executor 'ray' needs Ray; install it with: pip install 'unskew\[ray\]'"):
        play("ray")


@pytest.mark.slow
def test_a_node_that_is_killed_in_a_round_costs_nothing_but_time(tmp_path):
    """Two raylets; the one that does not have the driver is killed while its clients train."""
    ray = on_ray.import_ray()
    ray.shutdown()
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    other = nodes.add_node(num_cpus=1)
    options = {"rounds": 3, "sample": 1.0}
    serial = play("serial", method="test_ray_slow", **options)
    killed = []

    def kill(row):
        if row["round"] == 1 and not killed:
            [raylet] = [info[0].process.pid for kind, info in other.all_processes.items() if kind == "raylet"]
            assert any(path.name.endswith(f"-{raylet}") for path in tmp_path.iterdir()), "it had no client"
            os.kill(raylet, signal.SIGKILL)
            killed.append(psutil.pid_exists(raylet))

    try:
        method = f"test_ray_slow(mark='{tmp_path}')"
        assert same(serial, play("ray", method=method, watch=kill, address=nodes.address, **options))
        assert killed
    finally:
        ray.shutdown()
        nodes.shutdown()


@pytest.mark.slow
def test_without_an_address_it_is_a_cluster_of_its_own_beside_others(monkeypatch):
    ray = on_ray.import_ray()
    ray.shutdown()
    from ray.cluster_utils import Cluster

    others = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "resources": {"others": 1}})
    try:
        assert on_ray.connect(cores=2)
        assert "others" not in ray.cluster_resources() and ray.cluster_resources()["CPU"] == 2
        ray.shutdown()
        monkeypatch.setenv("RAY_ADDRESS", others.address)
        assert on_ray.connect()
        assert "others" in ray.cluster_resources()
    finally:
        ray.shutdown()
        others.shutdown()


def read_cells(folder):
    """What the runs of a comparison say, times aside."""
    found = {}
    for path in sorted((folder / "runs").iterdir()):
        rows = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
        for row in rows:
            row.pop("seconds", None)
        found[path.name] = (path / "model.safetensors").read_bytes(), rows
    return found


@pytest.mark.slow
def test_a_comparison_spread_over_two_nodes_of_which_one_dies_is_the_local_one(tmp_path):
    ray = on_ray.import_ray()
    ray.shutdown()
    from ray.cluster_utils import Cluster

    words = ["compare", "--methods", "fedavg,scaffold,fedper", "--seeds", "2", "--rounds", "40", "--clients", "5",
             "--model", "mlp", "--checkpoint-every", "1", "-q", "--format", "csv"]  # fmt: skip
    call = [sys.executable, "-m", "unskew", *words]
    here = subprocess.run([*call, "--out", str(tmp_path / "here")], capture_output=True, text=True, check=True)
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    other = nodes.add_node(num_cpus=1)
    try:
        there = subprocess.Popen(
            [*call, "--out", str(tmp_path / "there"), "--cells-on", f"ray={nodes.address}"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        [raylet] = [info[0].process.pid for kind, info in other.all_processes.items() if kind == "raylet"]
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not any(
            "Host" in " ".join(child.cmdline()) for child in psutil.Process(raylet).children()
        ):
            time.sleep(0.2)
        os.kill(raylet, signal.SIGKILL)
        said, errors = there.communicate(timeout=400)
        assert there.returncode == 0, errors
        assert "its process on the cluster died" in errors
    finally:
        nodes.shutdown()
    assert read_cells(tmp_path / "there") == read_cells(tmp_path / "here")
    timeless = [[line.split(",")[:9] for line in text.splitlines()] for text in (said, here.stdout)]
    assert timeless[0] == timeless[1]


def test_where_cells_may_run_is_said_in_one_line(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["compare", "--methods", "fedavg", "--cells-on", "kubernetes"])
    assert ended.value.code == 2 and "--cells-on expects ray, or ray=ADDRESS" in capsys.readouterr().err
