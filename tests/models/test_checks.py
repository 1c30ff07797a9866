"""Users' networks that cannot be trained: one line, whichever way they come; and odd ones that can."""

import itertools
import logging
import sys
from types import ModuleType

import pytest
import torch
from torch import nn

import unskew
from unskew import Method, registries
from unskew.base import once
from unskew.base.errors import InputError
from unskew.models.base import Architecture, Model, architectures, build
from unskew.models.user_module import GivenModule, PythonModule, split_head

SHAPE, CLASSES = (1, 4, 4), 3


class Net(nn.Module):
    """A small network whose forward pass, or a layer, a test replaces."""

    def __init__(self, classes=CLASSES, **layers):
        super().__init__()
        self.body, self.fc = nn.Linear(16, 8), nn.Linear(8, classes)
        self.norm = nn.BatchNorm1d(8)
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.fc(self.norm(self.body(x.flatten(1))))


def change(forward):
    """A network with another `forward(self, x)`."""
    return type("Changed", (Net,), {"forward": forward})()


def with_values(name, value):
    net = Net()
    with torch.no_grad():
        dict([*net.named_parameters(), *net.named_buffers()])[name].fill_(value)
    return net


def rewrite(self, x):
    with torch.no_grad():
        self.body.weight.mul_(0.5)
    return Net.forward(self, x)


def replace_parameter(self, x):
    self.body.weight = nn.Parameter(self.body.weight.detach() * 0.5)
    return Net.forward(self, x)


def reassign_buffer(self, x):
    self.norm.running_mean = self.norm.running_mean + 1
    return Net.forward(self, x)


class Detached(nn.Linear):
    def forward(self, x):
        return super().forward(x).detach()


def spoil_in_place(self, x):
    out = torch.sigmoid(self.body(x.flatten(1)))
    after = out.square()
    out.mul_(2)
    return self.fc(after)


class Looked(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.fc = nn.Embedding(2, 4, sparse=True), nn.Linear(64, 3)

    def forward(self, x):
        return self.fc(self.table((x.flatten(1) > 0.5).long()).flatten(1))


def with_extra(self, x):
    return (Net.forward(self, x), 1) if self.training else Net.forward(self, x)


class Quick(nn.Module):
    def forward(self, x):
        return x.flatten(1)[:, :3]


BAD = {
    "channels": (lambda: nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(8, 3)), "fails on inputs of shape"),
    "outputs": (lambda: Net(12), r"expected logits of shape \(2, 3\).*got \(2, 12\)"),
    "tuple": (lambda: change(lambda self, x: (Net.forward(self, x), 1)), "must return its logits, got tuple"),
    "none": (lambda: change(lambda self, x: None), "must return its logits, got NoneType"),
    "rank": (lambda: Net(fc=nn.Sequential(nn.Linear(8, 3), nn.Unflatten(1, (3, 1)))), "expected logits of shape"),
    "features": (lambda: nn.Sequential(nn.Conv2d(1, 2, 1), nn.Sequential(nn.Flatten(), nn.Linear(32, 3))),
                 "flat features"),
    "double": (lambda: Net().double(), r"fails on inputs of shape.*inputs are float32.*\.float"),
    "half": (lambda: Net().half(), "float32, got float16"),
    "complex": (lambda: Net(body=nn.Linear(16, 8, dtype=torch.complex64)), "float32, got complex64"),
    "integers": (lambda: Net(extra=nn.ParameterList([nn.Parameter(torch.ones(2).long(), requires_grad=False)])),
                 "float32, got int64"),
    "lazy": (lambda: Net(body=nn.LazyLinear(8)), "'body.weight' is lazy.*one batch"),
    "nan": (lambda: with_values("fc.weight", float("nan")), "'fc.weight' holds NaN or infinite"),
    "infinite": (lambda: with_values("body.bias", float("inf")), "body.bias' holds NaN or infinite"),
    "buffer": (lambda: with_values("norm.running_var", float("inf")), "running_var' holds NaN.*persistent"),
    "raises": (lambda: change(lambda self, x: 1 / 0), "ZeroDivisionError: division by zero"),
    "two": (lambda: change(lambda self, x: Net.forward(self, x.view(2, 16))), "fails on a batch of 3"),
    "single": (lambda: change(lambda self, x: self.fc(self.norm(self.body(x.squeeze().flatten(-2))))), "batch of 1"),
    "meta": (lambda: Net().to("meta"), "on device 'meta'.*on the CPU"),
    "changes itself": (lambda: change(rewrite), "changes its parameter 'body.body.weight' in forward"),
    "replaces itself": (lambda: change(replace_parameter), "changes its parameter 'body.body.weight'"),
    "buffer lost": (lambda: change(reassign_buffer), "buffer 'body.norm.running_mean'.*in place"),
    "no gradient": (lambda: Net(fc=Detached(8, 3)), "does not depend on its parameters"),
    "in place": (lambda: change(spoil_in_place), "cannot be differentiated"),
    "no parameters": (lambda: nn.Sequential(Quick(), nn.Identity()), "has no parameters"),
    "not last": (Net, "the head must be the last layer"),
    "no head": (Net, "needs its last layer's name"),
    "unknown head": (Net, "has no layer 'classifier'"),
    "scripted": (lambda: torch.jit.trace(Net().eval(), torch.rand(2, *SHAPE)), "compiled or scripted"),
    "compiled": (lambda: torch.compile(Net()), "compiled or scripted"),
    "quantised": (lambda: torch.ao.quantization.quantize_dynamic(Net()), "is quantised, so that it cannot be trained"),
    "sparse": (Looked, "the gradient of 'body.table.weight' is sparse.*sparse=False"),
    "tuple in training": (lambda: change(with_extra), r"its logits of shape \(2, 3\) in training, too, got tuple"),
}  # fmt: skip
HEADS = {
    "channels": "2", "features": "1", "no parameters": "1", "not last": "body", "no head": "",
    "unknown head": "classifier",
}  # fmt: skip


@architectures.register("test_checks_plugin")
class Plugin(Architecture):
    """Gives what a test says."""

    def build(self, shape, num_classes):
        return self.make()


def as_given(make, head, monkeypatch):
    return GivenModule.of(make(), head)


_numbers = itertools.count()


def as_python(make, head, monkeypatch):
    name = f"test_checks_net_{next(_numbers)}"
    module = ModuleType(name)
    module.make = lambda shape, num_classes: make()
    monkeypatch.setitem(sys.modules, name, module)
    return PythonModule(target=f"{name}:make", head=head)


def as_plugin(make, head, monkeypatch):
    monkeypatch.setattr(Plugin, "make", lambda self: split_head(make(), head, torch.rand(2, *SHAPE)), raising=False)
    return Plugin()


@pytest.mark.parametrize("way", [as_given, as_python, as_plugin])
@pytest.mark.parametrize("name", BAD)
@pytest.mark.filterwarnings("ignore")
def test_a_network_that_cannot_be_trained_is_one_line(name, way, monkeypatch):
    (make, line), head = BAD[name], HEADS.get(name, "fc")
    with pytest.raises(InputError, match=line if way is not as_plugin else None) as caught:
        build(way(make, head, monkeypatch), SHAPE, CLASSES)
    text = str(caught.value)
    assert "\n" not in text and len(text) < 500 and text.startswith("model ")


@pytest.mark.parametrize(("made", "line"), [
    (None, "expected an unskew.Model .*got NoneType"), (3, "got int"), (Net(), "got Net; split it with"),
    ("text", "got str"),
])  # fmt: skip
def test_an_architecture_of_a_plugin_gives_a_model(made, line, monkeypatch):
    monkeypatch.setattr(Plugin, "make", lambda self: made, raising=False)
    with pytest.raises(InputError, match=line):
        build(Plugin(), SHAPE, CLASSES)


def test_a_model_of_one_s_own_must_give_logits_and_features(monkeypatch):
    class Own(Model):
        def forward(self, x):
            return self.head(self.body(x))

    monkeypatch.setattr(Plugin, "make", lambda self: Own(nn.Flatten(), nn.Linear(16, 3)), raising=False)
    with pytest.raises(InputError, match=r"must return unskew's Output\(logits, features\), got Tensor"):
        build(Plugin(), SHAPE, CLASSES)


def test_nothing_is_written_for_a_network_that_is_refused(tmp_path):
    with pytest.raises(InputError, match="expected logits"):
        unskew.run(model=nn.Sequential(nn.Flatten(), nn.Linear(64, 12)), head="1", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_forward_that_draws_is_fine_and_leaves_the_generator_alone():
    noisy = change(lambda self, x: Net.forward(self, x + 0.1 * torch.rand_like(x)))
    before = torch.default_generator.get_state()
    build(GivenModule.of(noisy, "fc"), SHAPE, CLASSES)
    assert torch.equal(before, torch.default_generator.get_state())


def test_hooks_are_called_in_runs():
    seen = []
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    net[0].register_forward_hook(lambda module, inputs, out: seen.append(len(out)) or out * 0)
    result = unskew.run(model=net, head="1", clients=2, rounds=1)
    assert seen and torch.equal(result.server["model"]["head.weight"], net[1].weight)  # inputs of 0: no gradient


def test_double_precision_is_fine_if_the_network_converts_its_inputs():
    net = change(lambda self, x: Net.forward(self, x.double())).double()
    assert build(GivenModule.of(net, "fc"), SHAPE, CLASSES).head.weight.dtype == torch.float64


def test_a_mask_that_is_not_saved_may_be_infinite():
    net = Net()
    net.register_buffer("mask", torch.full((3,), float("-inf")), persistent=False)
    build(GivenModule.of(net, "fc"), SHAPE, CLASSES)


def test_parameters_without_a_gradient_are_named(caplog):
    class Idle(Net):
        def forward(self, x):
            with torch.no_grad():
                x = self.body(x.flatten(1))
            return self.fc(self.norm(x))

    build(GivenModule.of(Idle(), "fc"), SHAPE, CLASSES)
    assert "model Idle: its output does not depend on body.body.weight, body.body.bias, which" in caplog.text


def test_a_head_tied_to_the_body_is_said(caplog):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.fc = nn.Linear(64, 10), nn.Linear(10, 10), nn.Linear(10, 10)
            self.fc.weight = self.second.weight

        def forward(self, x):
            return self.fc(self.second(self.first(x.flatten(1))))

    with caplog.at_level(logging.WARNING):
        model = unskew.run("fedper", model=Tied(), head="fc", clients=2, rounds=1).client_model(0)
    assert "head.weight is tied to body.second.weight" in caplog.text
    assert model.head.weight is model.body.second.weight


# ------------------------------------------------------------------------- passes that remember one another


class Counting(Net):
    """Counts its passes in Python."""

    def __init__(self, factor, training=False):
        super().__init__()
        self.passes, self.factor, self.only = 0, factor, training

    def forward(self, x):
        self.passes += self.training or not self.only
        return self.fc(self.norm(self.body(x.flatten(1))) * (1 + self.factor * self.passes))


def test_an_output_that_depends_on_earlier_passes_is_refused():
    with pytest.raises(InputError, match="Counting gives another output for the same inputs when it is asked again"):
        build(GivenModule.of(Counting(0.1), "fc"), SHAPE, CLASSES)


@pytest.mark.parametrize("training", [False, True])
def test_a_count_in_python_is_said(training, caplog):
    once.warn_once.cache_clear()  # the same line is said once
    build(GivenModule.of(Counting(0.0, training), "fc"), SHAPE, CLASSES)
    assert "Counting changes its attribute 'body.passes' in forward" in caplog.text


def test_tensors_of_inference_mode():
    with torch.inference_mode():
        net = Net()
    with pytest.raises(InputError, match=r"was made in torch\.inference_mode"):
        GivenModule.of(net, "fc")


def test_a_model_that_does_not_fit_memory_is_one_line():
    for size in (10**10, 10**18):
        with pytest.raises(InputError, match=r"model mlp\(hidden=\[1000.*does not fit memory; make it smaller"):
            build(f"mlp(hidden=[{size}])", (1, 8, 8), 10)


# ------------------------------------------------------------------------------------- what a method makes of a network

FOUR = {"data": "digits", "model": "mlp", "clients": 4, "split": "iid", "rounds": 2, "epochs": 1, "lr": 0.1}


def with_head(head):
    return lambda self, model, classes: Model(model.body, head())


def spoil(self, model, classes):
    with torch.no_grad():
        model.head.weight.fill_(float("nan"))
    return model


NETWORKS = {
    "lazy": (with_head(lambda: nn.LazyLinear(10)), "'head.weight' is lazy and has no shape yet"),
    "seven outputs": (with_head(lambda: nn.Linear(64, 7)), r"expected logits of shape \(2, 10\)"),
    "twelve outputs": (with_head(lambda: nn.Linear(64, 12)), r"expected logits of shape \(2, 10\)"),
    "other inputs": (with_head(lambda: nn.Linear(63, 10)), r"fails on inputs of shape \(1, 8, 8\)"),
    "double": (lambda self, model, classes: model.double(), r"convert the network with .float\(\)"),
    "not a number": (spoil, "'head.weight' holds NaN or infinite values"),
}


@pytest.mark.parametrize("what", NETWORKS)
def test_what_remodel_gives_is_checked_as_a_network_is(what, own_names):
    remodel, said = NETWORKS[what]
    slots = {"__module__": "mine", "remodel": remodel}
    kind = registries.methods.register("remodelled")(type("Remodelled", (Method,), slots))
    with pytest.raises(InputError, match=rf"remodelled\.remodel.*{said}"):
        unskew.run(kind(), **FOUR)
