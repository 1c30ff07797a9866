"""The way to another device and back, tried on CPU tensors; precision."""

from dataclasses import dataclass, replace

import pytest
import torch

from unskew.base.errors import InputError
from unskew.core.device import Device
from unskew.core.round_loop import rounds
from unskew.executors.serial import Serial
from unskew.executors.stacked.executor import Stacked
from unskew.runs import building, engine
from unskew.runs.client_store import StateStore
from unskew.runs.config import from_table

TABLE = {"method": "scaffold", "clients": 4, "split": "iid", "rounds": 2, "model": "cnn8(norm=batch)"}


@dataclass(frozen=True)
class Elsewhere(Device):
    """A device that only looks like another one: everything is moved, and nothing of the CPU's may be left over."""

    is_cpu = False

    def move(self, value):
        return value.clone()


def played(task, executor, folder):
    server = task.method.init(task.server_context(0))
    for done in rounds(task, executor, StateStore(folder), server, 1, 2):
        server = done.server
    return server


@pytest.mark.parametrize("kind", [Serial, lambda task: Stacked(task, 3)])
def test_a_run_elsewhere_is_the_same_run(kind, tmp_path):
    here = building.prepare(from_table(TABLE)).task
    there = replace(here, device=Elsewhere())
    mine, theirs = played(there, kind(there), tmp_path / "there"), played(here, kind(here), tmp_path / "here")
    for group in theirs:
        for name, value in theirs[group].items():
            assert torch.equal(mine[group][name], value), (group, name)


@pytest.mark.parametrize("executor", ["serial", "stacked"])
def test_bfloat16_is_another_precision_of_the_same_run(executor):
    plain, half = (
        engine.run(from_table({**TABLE, "execution": {"executor": executor, "precision": precision}}))
        for precision in ("float32", "bfloat16")
    )
    assert plain.run.hash != half.run.hash
    for name, value in plain.server["model"].items():
        assert half.server["model"][name].dtype == torch.float32
        torch.testing.assert_close(half.server["model"][name], value, rtol=0.2, atol=0.05)
    assert any(not torch.equal(half.server["model"][name], value) for name, value in plain.server["model"].items())


def test_tf32_is_set_and_put_back():
    before = torch.backends.cuda.matmul.allow_tf32
    with Device(precision="tf32").set_tf32():
        assert torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32
    with Device().set_tf32():
        assert not torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cuda.matmul.allow_tf32 == before


@pytest.mark.parametrize("name", ["gpu", "mps", "", "cuda:99", "cpu:x"])
def test_a_device_that_is_not_there_is_refused(name):
    with pytest.raises(InputError, match=r"execution\.device: .*got"):
        Device.from_name(name)


def test_auto_takes_what_there_is():
    assert Device.from_name("auto").kind.type == ("cuda" if torch.cuda.is_available() else "cpu")
