"""What a tenth trial found of handed-over networks, data and options: another network is another run; one line each."""

import functools
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

import unskew
from unskew.base.errors import InputError
from unskew.models.user_module import GivenModule

QUICK = {"data": "part(of=digits, train=60, test=20)", "split": "iid", "clients": 3, "rounds": 1}


def refused(line, call, *args, **options):
    with pytest.raises(InputError) as caught:
        call(*args, **options)
    assert line in str(caught.value) and "\n" not in str(caught.value), str(caught.value)


# ------------------------------------------------------------------------------- what another network is


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


def digits_net(activation):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), activation, nn.Linear(8, 10))


# ------------------------------------------------------------------------------------- options and data


def test_an_option_by_keyword_and_in_a_table():
    for options in (
        {"lr": 0.1, "local": {"lr": 0.5}},
        {"local": {"lr": 0.5}, "local.lr": 0.1},
        {"split.alpha": 0.5, "split": {"name": "dirichlet", "alpha": 1.0}},
    ):
        refused("is given twice, as '", unskew.run, **{**QUICK, **options})


def test_a_table_beside_an_option_hides_nothing():
    for options in ({"epochs": 2, "local": {"lr": 0.5}}, {"local": {"lr": 0.5}, "epochs": 2}):
        run = unskew.run(model="mlp", **QUICK, **options).run
        assert (run.local.epochs, run.local.lr) == (2, 0.5)
    split = {**QUICK, "split.alpha": 3.0}
    del split["split"]
    assert unskew.run(model="mlp", **split, split="dirichlet(alpha=1.0, min_size=1)").run.split.alpha == 3.0


def handed_over():
    x, y = (torch.arange(60 * 64) % 251).byte().reshape(60, 1, 8, 8), torch.arange(60) % 4
    parts = unskew.Samples(x[:40], y[:40]), unskew.Samples(x[40:], y[40:])
    return unskew.Dataset("mine", *parts, classes=tuple("abcdefghij"), mean=(0.2,), std=(0.9,))


def test_options_of_what_is_handed_over():
    given = {**QUICK, "data": handed_over()}
    line = "data.normalisation does nothing for a Dataset that is handed over; give it mean and std itself"
    refused(line, unskew.run, **given, **{"data.normalisation": "half"})
    refused("data.fingerprint does nothing", unskew.run, **given, **{"data.fingerprint": "x"})
    net = digits_net(nn.ReLU())
    refused("model.head does nothing for an nn.Module", unskew.run, **QUICK, model=net, **{"model.head": "3"})


# -------------------------------------------------------------------------------------- torch's defaults


def test_defaults_that_a_plugin_sets_do_not_reach_runs(tmp_path):
    expected = unskew.run(model="mlp", **QUICK).summary["loss"]
    for name, line in {"dtype": "torch.set_default_dtype(torch.float64)", "place": "torch.set_default_device('meta')",
                       "graph": "torch.set_grad_enabled(False)"}.items():  # fmt: skip
        plugin = tmp_path / f"sets_{name}.py"
        plugin.write_text(f"import torch\n{line}\n")
        assert unskew.run(model="mlp", plugin=plugin, **QUICK).summary["loss"] == expected
        assert torch.empty(1).dtype is torch.float32 and torch.empty(1).device.type == "cpu"


@pytest.mark.parametrize("set_device", [torch.set_default_device, lambda name: torch.device(name).__enter__()])
def test_a_default_device_that_the_program_has_set(tmp_path, set_device):
    expected = unskew.run(model="mlp", **QUICK).summary["loss"]
    net = digits_net(nn.ReLU())
    context = set_device("meta")
    try:
        assert unskew.run(model="mlp", **QUICK).summary["loss"] == expected
        unskew.compare(["fedavg"], seeds=1, out=tmp_path / "all", model=net, head="3", **QUICK)
        assert torch.empty(1).device.type == "meta"  # it is the program's again
    finally:
        torch.set_default_device(None) if context is None else torch.device("meta").__exit__(None, None, None)


# ------------------------------------------------------------------------------------------------- lines


def test_images_without_values(tmp_path):
    unskew.run(out=tmp_path / "run", model="mlp", **QUICK)
    run = unskew.open(tmp_path / "run")
    images = torch.empty(2, 1, 8, 8, device="meta", dtype=run.data.train.x.dtype)
    for who in (run, run.client(0)):
        refused("got a tensor on device 'meta', which holds no values", who.predict, images)


def test_a_head_that_is_not_there():
    refused("has no layer 'fc'; say head=\"3\" if that is", unskew.run, model=digits_net(nn.ReLU()), head="fc", **QUICK)


def test_a_client_that_there_is():
    result = unskew.run("fedper", model="mlp", **QUICK)
    refused("such as that of client 0: --client 0", result.model)


def test_what_an_opened_run_is_to_be_handed(tmp_path):
    unskew.run(out=tmp_path / "run", **{**QUICK, "data": handed_over()}, model=digits_net(nn.ReLU()), head="3")
    without_data = unskew.open(tmp_path / "run", model=digits_net(nn.ReLU()), head="3")
    refused("with data=... of unskew.resume or unskew.open", without_data.model)
    without_model = unskew.open(tmp_path / "run", data=handed_over())
    refused("with model=... and head=... of unskew.resume or unskew.open", without_model.model)
