"""Rounds one can check with a pencil: one weight, loss w * x, so that the gradient is the mean of x.

The model is logits = [w * x, 0] with labels 0; its cross-entropy has gradient -x * sigmoid(-w x): at w = 0 and
x = 2 that is -1. Two clients, lr 1, one step each: w_1 = 1 (x = 2), w_2 = 2 (x = 4).
"""

import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from support import FixedData, FixedFederation, PlannedTask, Recording, memory_store
from unskew.base.errors import SlotError
from unskew.base.settings import LocalSettings
from unskew.core.net import Net
from unskew.core.round_loop import rounds
from unskew.core.schedule import Constant
from unskew.methods.fedavg import FedAvg
from unskew.methods.fedprox import FedProx
from unskew.methods.scaffold import Scaffold
from unskew.models.base import Model


class Slope(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x):
        return torch.cat([self.w * x, torch.zeros_like(x)], 1)


def play(method, plan, clients, lr=1.0):
    net = Net(Model(nn.Identity(), Slope()))
    params, buffers = net.trees()
    task = PlannedTask(
        method=method, federation=FixedFederation(clients, SimpleNamespace(num_classes=2)), net=net,
        initial={"model": params, "buffers": buffers}, seed=0, local=LocalSettings(lr=lr, batch=1), schedule=Constant(),
        buffer_policy="average", cohort_size=2, plan=plan,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        executor = Recording(task)
        server = method.init(task.server_context(0))
        yield from rounds(task, executor, memory_store(Path(folder)), server, 1, len(plan))


def client(x, samples=1):
    return FixedData([{"x": [[x]], "y": [0]}], 2, samples)


def w(done):
    return float(done.server["model"]["head.w"])


def test_fedavg_weights_by_samples():
    # (1 * 1 + 3 * 2) / 4
    (done,) = play(FedAvg(), [[0, 1]], [client(2.0, 1), client(4.0, 3)])
    assert w(done) == 7 / 4


def test_fedprox_first_step_is_fedavg_and_the_second_is_pulled_back():
    # from w = 1 (x = 2): gradient -2 sigmoid(-2) + mu (1 - 0)
    twice = [client(2.0)]
    twice[0].given = twice[0].given * 2
    (done,) = play(FedProx(mu=0.5), [[0]], twice)
    expected = 1 + 2 * torch.sigmoid(torch.tensor(-2.0, dtype=torch.float64)) - 0.5
    assert abs(w(done) - float(expected)) < 1e-12


def test_scaffold_controls():
    # round 1: c_i = (w - w_i) / (K lr) = -1 and -2; the server's c = mean over all 2 clients = -1.5
    first, second = play(Scaffold(), [[0, 1], [0]], [client(2.0), client(4.0)])
    assert w(first) == 1.5
    assert float(first.server["control"]["head.w"]) == -1.5
    # round 2, client 0 from w = 1.5: step -(g - c_0 + c) = 2 sigmoid(-3) - 1 + 1.5
    sigmoid = float(torch.sigmoid(torch.tensor(-3.0, dtype=torch.float64)))
    assert abs(w(second) - (1.5 + 2 * sigmoid - 1 + 1.5)) < 1e-12


def test_a_client_with_nan_is_left_out_and_the_rest_renormalised():
    (done,) = play(FedAvg(), [[0, 1]], [client(2.0, 1), client(float("nan"), 9)])
    assert w(done) == 1.0
    assert done.record["excluded"] == [1] and not done.record["diverged"]


def test_only_nan_keeps_the_model_and_marks_the_run():
    (done,) = play(Scaffold(), [[0]], [client(float("nan"))])
    assert w(done) == 0.0 and done.record["diverged"]


class Weighs(FedAvg):
    name = "weighs"

    def weight(self, c, params):
        return float("inf") if c.client else 1.0


def test_a_weight_that_is_no_number_leaves_the_client_out():
    (done,) = play(Weighs(), [[0, 1]], [client(2.0), client(4.0)])
    assert w(done) == 1.0 and done.record["excluded"] == [1]


class Silent(FedAvg):
    name = "silent"

    def upload(self, c, params):
        return {**super().upload(c, params), "extra": {"x": torch.ones(1)}}


def test_a_group_that_nobody_reads_is_an_error():
    with pytest.raises(SlotError, match="no reducer"):
        list(play(Silent(), [[0]], [client(2.0)]))
