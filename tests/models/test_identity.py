"""Which network is another one: another run, and no figures of the one before."""

import functools
import subprocess
import sys
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

import unskew
from small_runs import FEW, digits_net, refused
from unskew.models.user_module import GivenModule


class Scaled(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.scale = scale

    def forward(self, x):
        return self.fc(x)


class Holder:
    def __init__(self, factor):
        self.factor = factor
        self.me = self


def with_layer(layer):
    return nn.Sequential(nn.Linear(4, 6), layer, nn.Linear(6, 3))


def with_hook(factor):
    net = with_layer(nn.ReLU())
    net.handle = net[0].register_forward_hook(lambda module, given, out: out * factor)
    return net


def with_patched_forward(factor):
    net = with_layer(nn.ReLU())
    net[0].forward = lambda x, own=net[0]: nn.functional.linear(x, own.weight, own.bias) * factor
    return net


def with_constant(number):
    net = with_layer(nn.ReLU())
    net.register_buffer("constant", torch.tensor(number), persistent=False)
    return net


def with_tied(tied):
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    net[1].load_state_dict(net[0].state_dict())
    if tied:
        net[1].weight = net[0].weight
    return net


def times(factor):
    return lambda value: value * factor


PAIRS = {
    "layer": (lambda: with_layer(nn.ReLU()), lambda: with_layer(nn.Tanh())),
    "dropout": (lambda: with_layer(nn.Dropout(0.1)), lambda: with_layer(nn.Dropout(0.8))),
    "slope": (lambda: with_layer(nn.LeakyReLU(0.1)), lambda: with_layer(nn.LeakyReLU(0.9))),
    "momentum": (lambda: with_layer(nn.BatchNorm1d(6)), lambda: with_layer(nn.BatchNorm1d(6, momentum=0.9))),
    "eps": (lambda: with_layer(nn.BatchNorm1d(6)), lambda: with_layer(nn.BatchNorm1d(6, eps=1.0))),
    "padding": (lambda: nn.Conv2d(1, 2, 3, padding=1), lambda: nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular")),
    "hook": (lambda: with_hook(1.0), lambda: with_hook(5.0)),
    "no hook": (lambda: with_hook(1.0), lambda: with_layer(nn.ReLU())),
    "forward": (lambda: with_patched_forward(1.0), lambda: with_patched_forward(5.0)),
    "constant": (lambda: with_constant(1.0), lambda: with_constant(5.0)),
    "tied": (lambda: with_tied(True), lambda: with_tied(False)),
    "code": (lambda: Scaled(lambda v: v * 1.0), lambda: Scaled(lambda v: v * 5.0)),
    "builtin": (lambda: Scaled(torch.relu), lambda: Scaled(torch.tanh)),
    "function": (lambda: Scaled(nn.functional.relu), lambda: Scaled(nn.functional.gelu)),
    **{
        kind: (lambda make=make: Scaled(make(1.0)), lambda make=make: Scaled(make(5.0)))
        for kind, make in {
            "number": float,
            "tensor": torch.tensor,
            "numpy": np.float64,
            "array": lambda f: np.array([[f, 2.0]]),
            "dict": lambda f: {"deep": [{"er": f}]},
            "ordered": lambda f: OrderedDict(a=f),
            "set": lambda f: {"a", "b", "c", f},
            "closure": times,
            "cached": lambda f: functools.lru_cache(times(f)),
            "partial": lambda f: functools.partial(torch.mul, f),
            "object": Holder,
            "method": lambda f: Holder(f).__init__,
            "generator": lambda f: torch.Generator().manual_seed(int(f)),
            "layers in a list": lambda f: [nn.Dropout(f / 10)],
        }.items()
    },
}  # fmt: skip


def identify(make):
    torch.manual_seed(0)
    return GivenModule.of(make()).fingerprint


@pytest.mark.parametrize("one, other", PAIRS.values(), ids=PAIRS)
def test_another_network_is_another_run_and_the_same_one_the_same(one, other):
    assert identify(one) == identify(one) != identify(other) == identify(other)


def test_what_does_not_matter_does_not_count():
    assert identify(lambda: with_layer(nn.ReLU()).eval()) == identify(lambda: with_layer(nn.ReLU()))


def test_the_same_network_in_another_process():
    code = (
        "import sys, importlib; sys.path.insert(0, sys.argv[1]); import torch; from torch import nn\n"
        "handle = nn.Linear(1, 1).register_forward_hook(print)\n"  # a process counts its hooks
        "tests = importlib.import_module('test_identity')\n"
        "print(*(tests.identify(make) for pair in tests.PAIRS.values() for make in pair))\n"
    )
    folder = __file__.rpartition("/")[0]
    env = {"PYTHONHASHSEED": "7", "PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1"}
    said = subprocess.run([sys.executable, "-c", code, folder], env=env, capture_output=True, text=True, check=True)
    assert said.stdout.split() == [identify(make) for pair in PAIRS.values() for make in pair]


def test_no_figures_of_another_network(tmp_path):
    relu, tanh = digits_net(nn.ReLU()), digits_net(nn.Tanh())
    for net, reused in ((relu, False), (relu, True), (tanh, False)):
        cell = unskew.compare(["fedavg"], seeds=1, out=tmp_path / "all", model=net, head="3", **FEW)[0]
        assert cell.reused == reused
    out = tmp_path / "one"
    unskew.run(out=out, model=relu, head="3", **FEW)
    unskew.open(out, model=digits_net(nn.ReLU()), head="3").model()
    for call in (unskew.resume, lambda *given, **more: unskew.open(*given, **more).model()):
        refused("hand over the module it began with", call, out, model=tanh, head="3")
