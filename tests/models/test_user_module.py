"""A user's own network: split at its head, or built by a function in a user's file."""

import sys

import pytest
import torch
from torch import nn

import unskew
from unskew.base.errors import InputError
from unskew.models.base import Model, architectures, build
from unskew.models.user_module import split_head

NET = """
from torch import nn
from sizes import HIDDEN
from unskew.models import Model

class Net(nn.Module):
    def __init__(self, shape, num_classes):
        super().__init__()
        self.conv = nn.Conv2d(shape[0], 4, 3)
        self.drop = nn.Dropout()
        self.fc = nn.Linear(4 * (shape[1] - 2) * (shape[2] - 2), num_classes)

    def forward(self, x):
        return self.fc(self.drop(self.conv(x).relu().flatten(1)))

def make(shape, num_classes):
    return Net(shape, num_classes)

def ready(shape, num_classes):
    return Model(nn.Flatten(), nn.Linear(64, num_classes))

def broken(shape, num_classes):
    return 1 / 0

def wrong_classes(shape, num_classes):
    return Net(shape, num_classes + 1)

def text(shape, num_classes):
    return "net"

number = 3

def few(shape):
    return Net(shape, 5)

def confused(shape, num_classes):
    return shape + num_classes
"""


class Classifier(nn.Module):
    def __init__(self, last=None):
        super().__init__()
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.BatchNorm1d(8))
        self.classifier = nn.Sequential(nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
        self.last = last or nn.Identity()

    def forward(self, x):
        return self.last(self.classifier(self.features(x)))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "sizes.py").write_text("HIDDEN = 4")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("net", "sizes"):
        sys.modules.pop(name, None)


def test_split_head_takes_the_named_layer():
    module, x = Classifier(), torch.rand(5, 2, 2)
    model = split_head(module, "classifier.2", example=x)
    assert {name.split(".")[0] for name in model.state_dict()} == {"body", "head"}
    assert [name for name, _ in model.head.named_parameters()] == ["weight", "bias"]
    logits, features = model.eval()(x)
    assert features.shape == (5, 8)
    torch.testing.assert_close(logits, module.eval()(x))


def test_split_head_leaves_the_module_alone():
    module = Classifier()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    model = split_head(module, "classifier", example=torch.rand(5, 4))
    with torch.no_grad():
        model.head[2].weight.zero_()
    assert module.training
    assert all(torch.equal(before[key], value) for key, value in module.state_dict().items())


def test_a_model_is_returned_as_it_is():
    model = build("mlp", (4,), 2)
    assert split_head(model, "") is model


@pytest.mark.parametrize(("head", "last"), [
    ("classifier", nn.Softmax(dim=1)), ("features.1", None), ("classifier", nn.Unflatten(1, (3, 1))),
])  # fmt: skip
def test_the_head_must_be_the_last_layer(head, last):
    with pytest.raises(InputError, match="the head must be the last layer"):
        split_head(Classifier(last), head, example=torch.rand(5, 4))


@pytest.mark.parametrize(("head", "problem"), [("fc", "has no layer 'fc'"), ("", "needs its"), (None, "needs its")])
def test_an_unknown_head_lists_the_layers(head, problem):
    with pytest.raises(InputError, match=problem + r'.*head="classifier.2".*features, classifier, last'):
        split_head(Classifier(), head)


@pytest.mark.parametrize("spec", [
    'python("net.py:make", head=fc)', 'python("net.py:Net", head=fc)', 'python("net:make", head="fc")',
    "python:net.py:ready", {"name": "python", "target": "net.py:make", "head": "fc"},
])  # fmt: skip
def test_python_builds_the_function_s_network(folder, spec):
    torch.manual_seed(0)
    model = build(spec, (1, 8, 8), 5)
    assert isinstance(model, Model)
    assert model.training
    assert model(torch.rand(2, 1, 8, 8)).logits.shape == (2, 5)
    torch.manual_seed(0)
    again = build(architectures.build(spec), (1, 8, 8), 5)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize(("spec", "message"), [
    ("python:net.py:make", r"model net.py:make: Net needs its last layer.*head=\"fc\".*conv, drop, fc"),
    ('python("net.py:make", head=conv)', r"model net.py:make: Net: the head must be the last layer"),
    ("python:net.py:nothing", r"no 'nothing' in net.py; it has: Net, make"),
    ("python:net.py:broken", r"net.py:broken failed: ZeroDivisionError: division by zero \(line 23\)"),
    ("python:net.py:confused", r"net.py:confused failed: TypeError: .*\(line 37\)$"),
    ("python:net.py:text", r"net.py:text: expected an nn.Module, got str"),
    ("python:net.py:number", r"net.py:number: expected a function or class, got int"),
    ('python("net.py:wrong_classes", head=fc)', r"expected logits of shape \(2, 5\).*got \(2, 6\)"),
    ("python:net.py:few", r"net.py:few failed: TypeError.*1 positional.*; it is called with \(shape, num_classes\)$"),
    ("python:absent.py:make", r"absent.py: there is no such file"),
    ("python:absent:make", r"absent cannot be imported: ModuleNotFoundError"),
    ("python:net.py", r"expected file.py:function or package.module:function"),
    ("python", r"python.target is missing"),
])  # fmt: skip
def test_mistakes_are_one_line(folder, spec, message):
    with pytest.raises(InputError, match=message) as caught:
        build(spec, (1, 8, 8), 5)
    assert "\n" not in str(caught.value)


def test_an_input_the_network_cannot_take_is_an_input_error(folder):
    with pytest.raises(InputError, match=r"net.py:ready fails on inputs of shape \(1, 4, 4\)"):
        build("python:net.py:ready", (1, 4, 4), 5)


class Positions(nn.Module):
    """All of its buffers are integers or booleans."""

    def __init__(self, *kinds):
        super().__init__()
        torch.manual_seed(0)
        self.flat, self.fc = nn.Flatten(), nn.Linear(64, 10)
        if "int" in kinds:
            self.register_buffer("positions", torch.arange(64))
            self.register_buffer("seen", torch.zeros((), dtype=torch.int32))
        if "bool" in kinds:
            self.register_buffer("mask", torch.arange(64) % 7 != 0)
            self.register_buffer("met", torch.zeros(10, dtype=torch.bool))

    def forward(self, x):
        x = self.flat(x)
        if hasattr(self, "seen") and self.training:
            self.seen.add_(1)
        x = x[:, self.positions] if hasattr(self, "positions") else x
        return self.fc(x * self.mask if hasattr(self, "mask") else x)


@pytest.mark.parametrize("buffers", ["average", "local", "reset"])
@pytest.mark.parametrize("kinds", [("int",), ("bool",), ("int", "bool")])
def test_buffers_that_have_no_mean(kinds, buffers):
    options = {"model": Positions(*kinds), "head": "fc", "clients": 4, "rounds": 2, "split": "iid", "buffers": buffers}
    alone, pool, many = (unskew.run(**options, executor=executor) for executor in ("serial", "pool", "stacked"))
    assert alone.accuracy == pool.accuracy and abs(alone.accuracy - many.accuracy) < 0.02
    for name, value in alone.server["buffers"].items():
        assert torch.equal(value, many.server["buffers"][name]) and value.dtype == many.server["buffers"][name].dtype
        assert "seen" in name or torch.equal(value, dict(options["model"].named_buffers())[name.partition(".")[2]])
