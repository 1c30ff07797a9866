"""FLFA against numbers computed outside this project, against autograd, and where it must equal the method inside."""

import dataclasses
import itertools
from collections import OrderedDict
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from awkward import DATA, config, play
from support import FixedData, FixedFederation, PlannedTask, Recording, golden, golden_names, memory_store
from unskew.base import tree
from unskew.base.batch import Batch
from unskew.base.errors import InputError
from unskew.base.settings import LocalSettings
from unskew.core.jobs import Job, Reply
from unskew.core.method import Method, methods
from unskew.core.net import Names, Net
from unskew.core.observer import Observer
from unskew.core.reducers import concat
from unskew.core.round_loop import rounds
from unskew.core.schedule import Constant
from unskew.data.dataset import Samples
from unskew.executors.stacked.lanes import Lanes
from unskew.methods.flfa import feedback as fb
from unskew.methods.flfa.direct import draw_projection
from unskew.methods.flfa.feedback import Feedback
from unskew.methods.flfa.method import FLFA
from unskew.methods.flfa.selection import similarity, skewness
from unskew.models.base import Model
from unskew.runs import engine

# ------------------------------------------------------------------------------------------- golden files


def double(value):
    return torch.tensor(value, dtype=torch.float64)


class Given:
    """A golden file's network: its layers in the order of the parameters, the last one is the head."""

    def __init__(self, file):
        self.file, self.params = file, file.inputs["params_global"]
        self.layers = list(dict.fromkeys(name.rpartition(".")[0] for name in self.params))
        self.names = {layer: f"body.{layer}" for layer in self.layers[:-1]} | {self.layers[-1]: "head"}

    def rename(self, name):
        layer, _, kind = name.rpartition(".")
        return f"{self.names[layer]}.{kind}"

    def tree(self, params):
        return {self.rename(name): double(value) for name, value in params.items()}

    def close(self, actual, expected, what=""):
        torch.testing.assert_close(
            actual, double(expected), rtol=self.file.rtol, atol=self.file.atol, msg=lambda m: f"{what}: {m}"
        )

    def all_close(self, actual, expected):
        for name, value in expected.items():
            self.close(actual[self.rename(name)], value, name)

    def layer(self, name):
        shape = double(self.params[f"{name}.weight"]).shape
        if len(shape) == 2:
            return nn.Linear(shape[1], shape[0])
        own = self.file.hyper[name]
        return nn.Conv2d(
            shape[1] * own["groups"], shape[0], own["kernel"], own["stride"], own["padding"], groups=own["groups"]
        )

    def net(self):
        body = OrderedDict()
        for name in self.layers[:-1]:
            body[name] = self.layer(name)
            body[f"relu_{name}"] = nn.ReLU()
        if isinstance(body[self.layers[-2]], nn.Conv2d):
            body |= {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
        return Net(Model(nn.Sequential(body), self.layer(self.layers[-1])).double())

    @property
    def classes(self):
        return len(self.params[f"{self.layers[-1]}.bias"])

    def task(self, method, batches, **more):
        hyper = self.file.hyper
        net = more.pop("net", None) or self.net()
        return PlannedTask(
            method=method,
            federation=FixedFederation([FixedData(batches, self.classes)], SimpleNamespace(num_classes=self.classes)),
            net=net,
            initial={"model": self.tree(self.params), "buffers": {}},
            seed=0,
            local=LocalSettings(
                lr=hyper.get("lr", 0.1), batch=1, momentum=hyper.get("momentum", 0.0),
                weight_decay=hyper.get("weight_decay", 0.0),
            ),
            schedule=Constant(), buffer_policy="average", cohort_size=1, plan=[[0]], **more,
        )  # fmt: skip

    def method_for(self, case):
        """The method that a case's name stands for."""
        chosen = [self.names[word] for word in case.split("_") if word in self.names]
        if not chosen:
            return methods.build("fedavg")
        options = {"scaling": not case.startswith("no_scaling")}
        if case.startswith("random_B"):
            options["feedback"] = "random"
        return FLFA(select="fixed:" + "+".join(chosen), **options)


class Noting(Observer):
    """Gradients of each step, and the feedback weights that the step after it uses."""

    def __init__(self):
        self.grads, self.weights = [], []

    def look(self, c):
        for own in feedbacks(c):
            self.weights.append({layer: own.weight(layer) for layer in own._fixed})

    def step(self, c, params, batch, grads):
        self.grads.append(grads)
        self.look(c)

    def trained(self, c, params):
        for own in feedbacks(c):
            own.rescale(params)
        self.look(c)


def feedbacks(c):
    return [observer for observer in c.observers if isinstance(observer, Feedback)]


@pytest.mark.parametrize("name", golden_names("flfa_mlp*"))
def test_linear_layers(name, tmp_path):
    file = golden(name)
    given = Given(file)
    for case, expected in file.expected.items():
        net, noting = given.net(), Noting()
        drawn = {f"{given.names[layer]}.weight": double(value) for layer, value in file.inputs["random_B"].items()}
        net.fresh = lambda initial, seed, drawn=drawn: {**initial["model"], **drawn}
        task = given.task(given.method_for(case), file.inputs["batches"], net=net, observers=(noting,))
        server = task.method.init(task.server_context(0))
        (done,) = rounds(task, Recording(task), memory_store(tmp_path / case), server, 1, 1)
        given.all_close(done.server["model"], expected["params_after"])
        given.close(
            double(done.clients[0]["train_loss"]), sum(s["loss"] for s in expected["steps"]) / len(expected["steps"])
        )
        for number, step in enumerate(expected["steps"]):
            given.all_close(noting.grads[number], step["grads"])
            for layer, weight in step["B_after"].items():
                given.close(noting.weights[number + 1][given.names[layer]], weight, f"{case} B {number}")


def pass_of(given, method, received, params, batch):
    """The gradient of one pass at `params`, in a visit that received other parameters."""
    task = given.task(method, [batch])
    server = {**task.method.init(task.server_context(0)), "model": received}
    job = Job("train", 1, 0, task.method.download(task.server_context(1), server, 0))
    c = task.visit(job, task.federation.train(0))
    for own in feedbacks(c):
        own.rescale(params)
    (batch,) = c.batches()
    return task.method.gradient(c, params, batch), c


@pytest.mark.parametrize("name", golden_names("flfa_conv*"))
def test_convolutions(name):
    file = golden(name)
    given = Given(file)
    received, params = given.tree(file.inputs["params_global"]), given.tree(file.inputs["params_local"])
    for case, expected in file.expected.items():
        if case == "loss":
            continue
        grads, c = pass_of(given, given.method_for(case), received, params, file.inputs)
        given.all_close(grads, expected.get("grads", expected))
        given.close(double(c.diagnostics.means()["train_loss"]), file.expected["loss"])
        for layer, weight in expected.get("B", {}).items():
            given.close(feedbacks(c)[0].weight(given.names[layer]), weight, f"B of {layer}")


@pytest.mark.parametrize("name", golden_names("flfa_dfa_ablation*"))
def test_direct_feedback(name, monkeypatch):
    file = golden(name)
    given = Given(file)
    start = given.tree(file.inputs["params_global"])
    drawn = {given.names[layer]: double(file.inputs.get(f"R_{layer}", [])) for layer in given.layers}
    monkeypatch.setattr(
        "unskew.methods.flfa.method.draw_projection", lambda seed, layer, classes, outputs: drawn[layer]
    )
    for case, expected in file.expected.items():
        if case == "error_output":
            continue
        layer = case.partition("dfa_")[2]
        method = FLFA(select=f"fixed:{given.names[layer]}", dfa=True) if layer else methods.build("fedavg")
        grads, _ = pass_of(given, method, start, start, file.inputs["batch"])
        given.all_close(grads, expected.get("grads", expected))


def choosing(order, updates, **options):
    """The method's update on these updates (layer → one per client): the server's record."""
    names = tuple(f"{layer}.weight" for layer in order)
    s = SimpleNamespace(
        names=Names(params=names, norm=frozenset(), batchnorm=frozenset(), buffers=(), layers=tuple(order)),
        trainable=names, record={}, initial={"model": {name: torch.zeros(1) for name in names}, "buffers": {}},
    )  # fmt: skip
    method = FLFA(**options)
    values = dict(zip(names, updates, strict=True))
    one_by_one, at_once = similarity(s), similarity(s)
    clients = len(updates[0])
    for client in range(clients):
        one_by_one.add({name: each[client] for name, each in values.items()}, Reply(client, weight=client + 1.0))
    at_once.add_stack({name: torch.stack(list(each)) for name, each in values.items()}, [Reply(0)] * clients)
    for layer, value in one_by_one.result().items():
        torch.testing.assert_close(at_once.result()[layer], value, rtol=0, atol=1e-14)
    server = method.update(s, method.init(s), {"delta": {}, "similarity": one_by_one.result()})
    assert s.record["next_layers"] == [order[place] for place in server["feedback"]["layers"].tolist()]
    return s.record


@pytest.mark.parametrize("name", golden_names("flfa_layer_selection*"))
def test_layer_selection(name):
    file = golden(name)
    for case, given in file.inputs["cases"].items():
        order, expected = given["order"], file.expected[case]
        updates = [[double(update) for update in each] for each in given["updates"]]
        count = file.hyper["n_fa"]
        found = choosing(order, updates, n_layers=count)
        z = [found["similarity"][layer] for layer in order]
        torch.testing.assert_close(double(z), double(expected["z"]), rtol=file.rtol, atol=file.atol)
        assert found["skewness"] == pytest.approx(expected["skewness"], rel=file.rtol, abs=file.atol)
        assert (found["rule"], found["next_layers"]) == (expected["rule"], expected["selected"])
        for rule in ("lowest", "highest"):
            assert choosing(order, updates, select=rule, n_layers=count)["next_layers"] == expected[f"{rule}_n"]
            assert choosing(order, updates, select=rule)["next_layers"] == [expected[rule]]


# -------------------------------------------------------------------------- the layers against autograd

LAYERS = {
    "linear": (lambda: nn.Linear(5, 3), (4, 5)),
    "linear without bias": (lambda: nn.Linear(5, 3, bias=False), (4, 5)),
    "linear on tokens": (lambda: nn.Linear(5, 3), (4, 2, 5)),
    "plain": (lambda: nn.Conv2d(4, 6, 3, padding=1), (2, 4, 7, 6)),
    "strided, dilated": (lambda: nn.Conv2d(4, 6, (3, 2), stride=2, padding=(2, 0), dilation=(2, 1)), (2, 4, 9, 8)),
    "no bias": (lambda: nn.Conv2d(4, 6, 3, bias=False), (2, 4, 7, 6)),
    "grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2), (2, 4, 7, 6)),
    "depthwise": (lambda: nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=4), (2, 4, 7, 6)),
    "depthwise, twice the channels": (lambda: nn.Conv2d(4, 8, 3, padding=1, groups=4), (2, 4, 7, 6)),
    "pointwise": (lambda: nn.Conv2d(4, 6, 1), (2, 4, 7, 6)),
    "same": (lambda: nn.Conv2d(4, 6, 3, padding="same"), (2, 4, 7, 6)),
    "same, even": (lambda: nn.Conv2d(4, 6, (4, 3), padding="same", dilation=(1, 2)), (2, 4, 7, 6)),
    "valid": (lambda: nn.Conv2d(4, 6, 3, padding="valid"), (2, 4, 7, 6)),
    "circular": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), (2, 4, 7, 6)),
    "reflected, same": (lambda: nn.Conv2d(4, 6, 3, padding="same", padding_mode="reflect"), (2, 4, 7, 6)),
}
EACH_LAYER = pytest.mark.parametrize("kind", LAYERS)


def made(kind, dtype=torch.float64):
    torch.manual_seed(0)
    make, shape = LAYERS[kind]
    layer = make().to(dtype)
    return layer, torch.randn(shape, dtype=dtype).requires_grad_(), torch.randn_like(layer.weight)


def gradients(layer, x, out):
    params = [x, *layer.parameters()]
    return torch.autograd.grad(out.square().sum() / 2, params)


@EACH_LAYER
def test_a_layer_equals_the_composite_expression(kind):
    layer, x, fixed = made(kind)
    scale = torch.tensor(0.7, dtype=torch.float64)
    out = fb.apply_feedback(layer, x, fixed, scale)
    assert torch.equal(out, layer(x))
    found = gradients(layer, x, out)
    constants = {name: value.detach() for name, value in layer.named_parameters()} | {"weight": scale * fixed}
    carrier = torch.func.functional_call(layer, constants, (x,))
    wanted = gradients(layer, x, layer(x.detach()) + carrier - carrier.detach())
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs)


@EACH_LAYER
@pytest.mark.parametrize("channels_last", [False, True])
def test_a_layer_with_its_own_weight_as_feedback_is_backpropagation_bit_for_bit(kind, channels_last):
    layer, x, _ = made(kind, torch.float32)
    if channels_last and x.dim() == 4:
        layer = layer.to(memory_format=torch.channels_last)
        x = x.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    mine = gradients(layer, x, fb.apply_feedback(layer, x, layer.weight.detach().clone(), torch.ones(())))
    theirs = gradients(layer, x, layer(x))
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


@EACH_LAYER
@pytest.mark.parametrize("shared", [False, True])
def test_a_layer_of_many_clients_equals_each_client_alone(kind, shared):
    """`shared`: all clients have the same feedback weights, as they do after a download."""
    layer, x, fixed = made(kind)
    lanes = Lanes(3, torch.device("cpu"))
    xs = torch.randn(3, *x.shape, dtype=x.dtype)
    params = {name: torch.randn(3, *value.shape, dtype=x.dtype) for name, value in layer.named_parameters()}
    fixeds = fixed.expand(3, *fixed.shape) if shared else torch.randn(3, *fixed.shape, dtype=x.dtype)
    scales = torch.rand(3, dtype=x.dtype)

    def loss(layer, x, own, fixed, scale):
        for name, value in own.items():
            layer._parameters[name] = value
        x = x * own["weight"].sum()  # its gradient goes through the feedback
        return fb.apply_feedback(layer, x, fixed, scale).square().sum()

    with lanes:
        inside = {name: lanes.wrap(value) for name, value in params.items()}
        feedback = fixed if shared else lanes.wrap(fixeds)
        found, value = lanes.gradient(
            lambda p: loss(layer, lanes.wrap(xs), p, feedback, lanes.wrap(scales)), inside, list(params)
        )
        assert value.shape == ()
        below = {name: lanes.unwrap(grad) for name, grad in found.items()}
    for client in range(3):
        own = {name: each[client].clone().requires_grad_() for name, each in params.items()}
        alone = torch.autograd.grad(loss(layer, xs[client], own, fixeds[client], scales[client]), list(own.values()))
        for name, grad in zip(own, alone, strict=True):
            torch.testing.assert_close(below[name][client], grad)


@pytest.mark.parametrize("kind", ["linear", "depthwise"])
def test_a_layer_under_autocast(kind):
    layer, x, _ = made(kind, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        mine, theirs = fb.apply_feedback(layer, x, layer.weight.detach(), torch.ones(())), layer(x)
    assert mine.dtype == theirs.dtype == torch.bfloat16
    for a, b in zip(gradients(layer, x, mine.float()), gradients(layer, x, theirs.float()), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)


def test_a_layer_with_a_forward_pass_of_its_own_is_refused():
    class Scaled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    with pytest.raises(InputError, match="Scaled with a forward pass of its own"):
        fb.apply_feedback(Scaled(2, 2), torch.zeros(1, 2), torch.zeros(2, 2), torch.ones(()))


# ------------------------------------------------------------------------------------ by hand, identities


def test_by_hand():
    # W = [3, 4] (norm 5), w = [6, 8] (norm 10): B = 2 W = [6, 8]; w = [8, 6]: still 2 W, though w points elsewhere
    feedback = fb.Feedback({"fc": torch.tensor([[3.0, 4.0]])})
    assert feedback.weight("fc").tolist() == [[3.0, 4.0]]
    for weight in ([[6.0, 8.0]], [[8.0, 6.0]]):
        feedback.rescale({"fc.weight": torch.tensor(weight)})
        assert feedback.weight("fc").tolist() == [[6.0, 8.0]]
    fixed = fb.Feedback({"fc": torch.tensor([[3.0, 4.0]])}, scaling=False)
    fixed.rescale({"fc.weight": torch.tensor([[6.0, 8.0]])})
    assert fixed.weight("fc").tolist() == [[3.0, 4.0]]


def test_zero_received_weights_are_zero_feedback():
    feedback = fb.Feedback({"fc": torch.zeros(2, 2)})
    feedback.rescale({"fc.weight": torch.ones(2, 2)})
    assert torch.equal(feedback.weight("fc"), torch.zeros(2, 2))


def test_similarity_by_hand():
    # updates [1, 0], [0, 1] and zero: mean (1/3, 1/3), cosines 1/sqrt 2 twice and 0; opposite ones have mean zero
    updates = [
        [torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]), torch.zeros(1, 2)],
        [torch.tensor([[1.0]]), torch.tensor([[-1.0]]), torch.zeros(1, 1)],
    ]
    found = choosing(["a", "b"], updates, select="lowest")
    assert found["similarity"] == {"a": pytest.approx(2 / 3 / 2**0.5), "b": 0.0}
    assert found["next_layers"] == ["b"]


def test_of_a_single_client_all_layers_are_equal():
    torch.manual_seed(0)
    found = choosing(["a", "b", "c"], [[torch.randn(7, 11)], [torch.randn(40, 3)], [torch.randn(1, 1)]])
    assert (found["skewness"], found["rule"], found["next_layers"]) == (0.0, "highest", ["a"])


def same(a, b):
    return all(torch.equal(value, b.server["model"][name]) for name, value in a.server["model"].items())


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
@pytest.mark.parametrize("layer", ["body.3", "body.8", "head", "body.3+head"])
@pytest.mark.parametrize("inner", ["fedavg", "scaffold"])
def test_the_first_step_of_a_round_is_the_inner_methods_bit_for_bit(memory_format, layer, inner):
    once = {"batch": 8, "steps": 1, "lr": 0.05, "momentum": 0.5}
    execution = {"memory_format": memory_format}
    mine = play(f"flfa({inner}, select='fixed:{layer}')", rounds=3, local=once, execution=execution)
    theirs = play(inner, rounds=3, local=once, execution=execution)
    assert same(mine, theirs)
    twice = {**once, "steps": 3}
    mine = play(f"flfa({inner}, select='fixed:{layer}')", rounds=1, local=twice, execution=execution)
    assert not same(mine, play(inner, rounds=1, local=twice, execution=execution))


def test_feedback_in_the_first_layer_changes_nothing_and_is_counted():
    mine, theirs = play("flfa(select='fixed:body.0')", rounds=3), play("fedavg", rounds=3)
    assert same(mine, theirs)
    assert [row["method"]["feedback_no_op_rounds"] for row in mine.rounds[1:]] == [1, 2, 3]


def test_direct_feedback_to_the_last_layer_changes_nothing():
    mine, theirs = play("flfa(dfa=true, select='fixed:head')", rounds=2), play("fedavg", rounds=2)
    assert same(mine, theirs)
    assert mine.rounds[-1]["method"]["feedback_no_op_rounds"] == 2


def test_steps_on_something_else_than_the_model_are_let_pass():
    feedback = fb.Feedback({"fc": torch.ones(1, 2)})
    feedback.rescale({"noise": torch.zeros(3)})
    assert feedback.weight("fc").tolist() == [[1.0, 1.0]]


def test_who_takes_no_step_keeps_its_scale():
    # stacked, a client whose batches are used up sees empty ones; FedAS's Fisher trace uses its scale afterwards
    feedback = fb.Feedback({"fc": torch.tensor([[3.0, 4.0]])})
    batch = Batch(torch.zeros(2, 2), torch.zeros(2).long(), torch.arange(2), torch.tensor([True, False]))
    feedback.before_step(None, {"fc.weight": torch.tensor([[6.0, 8.0]])}, batch)
    assert feedback.weight("fc").tolist() == [[6.0, 8.0]]
    nothing = batch._replace(mask=torch.tensor([False, False]))
    feedback.before_step(None, {"fc.weight": torch.tensor([[9.0, 12.0]])}, nothing)
    assert feedback.weight("fc").tolist() == [[6.0, 8.0]]


def test_random_feedback_is_the_same_for_all_clients_and_rounds():
    assert torch.equal(draw_projection(1, "fc", 10, 7), draw_projection.__wrapped__(1, "fc", 10, 7))
    assert not torch.equal(draw_projection(1, "fc", 10, 7), draw_projection(2, "fc", 10, 7))
    drawn = draw_projection(0, "fc", 16, 4000)
    assert drawn.shape == (4000, 16) and float(drawn.std()) == pytest.approx(1 / 4, rel=0.02)


def test_the_text_of_a_method_builds_it_again():
    method = FLFA(inner=methods.build("fedprox(mu=0.1)"), select="fixed:body.3+head", feedback="random")
    assert methods.build(str(method)) == method


def test_the_first_round_is_the_inner_methods_and_the_second_is_not():
    for spec in ("flfa(select=lowest, exclude_first=true)", "flfa(select=highest, exclude_first=true)"):
        assert same(play(spec, rounds=1), play("fedavg", rounds=1))
        assert not same(play(spec, rounds=2), play("fedavg", rounds=2))


def test_layers_of_a_round_were_chosen_in_the_round_before_and_auto_keeps_its_rule():
    result = play("flfa(n_layers=2)", rounds=4)
    notes = [row["method"] for row in result.rounds[1:]]
    assert notes[0]["feedback_layers"] == []
    for before, after in itertools.pairwise(notes):
        assert after["feedback_layers"] == before["next_layers"] and len(before["next_layers"]) == 2
        assert after["rule"] == notes[0]["rule"]
    assert notes[0]["rule"] == ("lowest" if notes[0]["skewness"] > 0 else "highest")
    assert list(notes[0]["similarity"]) == ["body.0", "body.3", "body.8", "head"]


def test_bytes_are_four_for_each_layer():
    mine, theirs = play("flfa(n_layers=3)", rounds=2), play("fedavg", rounds=2)
    extra = [a["bytes_down"] - b["bytes_down"] for a, b in zip(mine.rounds[1:], theirs.rounds[1:], strict=True)]
    assert extra == [0, 5 * 4 * 3]
    assert mine.rounds[1]["bytes_up"] == theirs.rounds[1]["bytes_up"]


def test_ablations_differ_from_each_other():
    specs = ("", ", scaling=false", ", feedback=random", ", feedback=random, scaling=false", ", dfa=true")
    runs = [play(f"flfa(select='fixed:body.3'{more})", rounds=1) for more in specs]
    assert not any(same(a, b) for place, a in enumerate(runs) for b in runs[:place])


# ------------------------------------------------------------------------------------------- composition


@methods.register("test_two_passes")
class TwoPasses(Method):
    """A pass at the parameters, then one at perturbed ones, as SAM does."""

    def gradient(self, c, params, batch):
        first = super().gradient(c, params, batch)
        (watched,) = feedbacks(c)
        before = watched.weight("head")
        second = super().gradient(c, tree.add_scaled(params, {**tree.zeros_like(params), **first}, 0.1), batch)
        assert torch.equal(before, watched.weight("head"))
        return second


def test_perturbed_weights_do_not_enter_the_norm():
    result = play("flfa(test_two_passes, select='fixed:head')", rounds=2)
    assert tree.all_finite(result.server)


@methods.register("test_own_layers")
class OwnLayers(Method):
    """Replaces a layer itself; the wrapper must leave that alone, and do its own layers all the same."""

    def loss(self, c, params, batch):
        out = c.forward(params, batch.x, layers={"head": lambda layer, x: F.linear(x.detach(), layer.weight)})
        return batch.cross_entropy(out.logits)


def test_layers_that_a_method_replaces_stay_replaced():
    mine = play("flfa(test_own_layers, select='fixed:head+body.3')", rounds=1)
    assert same(mine, play("test_own_layers", rounds=1))


def test_depthwise_convolutions_of_a_mobilenet():
    small = Samples(
        *(part[:12] for part in (DATA.train.x.repeat_interleave(2, 2).repeat_interleave(2, 3), DATA.train.y))
    )
    data = dataclasses.replace(DATA, train=small, test=small, groups=torch.arange(12) % 2, group_names=("0", "1"))
    options = {"model": "mobilenetv2_flfa", "local": {"batch": 6, "steps": 2, "lr": 0.05}}
    depthwise = "body.stage2.1.branch.3"  # inside a residual

    def played(spec):
        return engine.run(config(spec, rounds=1, **options), dataset=data)

    # a first round in which nothing is measured yet is FedAvg's
    mine, theirs = played(f"flfa(select='fixed:{depthwise}')"), played("flfa(select=lowest)")
    moved = [key for key, value in mine.server["model"].items() if not torch.equal(value, theirs.server["model"][key])]
    assert tree.all_finite(mine.server)
    assert "body.stem.1.weight" in moved and "body.stage7.0.6.weight" not in moved
    assert len(theirs.rounds[-1]["method"]["similarity"]) == 54


# ------------------------------------------------------------------------------------------------ errors


@methods.register("test_no_model")
class NoModel(Method):
    """Sends data instead of a model."""

    reducers = {"data": concat}


@pytest.mark.parametrize(
    "spec, line",
    [
        ("flfa(select=middle)", "expected lowest, highest, auto or fixed:LAYER, got 'middle'"),
        ("flfa(select='fixed:')", "expected lowest, highest, auto or fixed:LAYER"),
        ("flfa(test_no_model)", "test_no_model does not, wrap another"),
        ("flfa(dfa=true, feedback=random)", "leave out feedback and scaling"),
        ("flfa(n_layers=0)", "greater than or equal to 1"),
    ],
)
def test_bad_options(spec, line):
    with pytest.raises(InputError, match=line):
        methods.build(spec)


@pytest.mark.parametrize(
    "spec, line",
    [
        (
            "flfa(select='fixed:tail')",
            "no layer tail that is trained and shared; candidates: body.0, body.3, body.8, head",
        ),
        (
            "flfa(select='fixed:body.0', exclude_first=true)",
            "no layer body.0 that is trained and shared; candidates: body.3",
        ),
        ("flfa(n_layers=5)", "the model has 4 candidate layers, got 5"),
    ],
)
def test_layers_that_are_not_there(spec, line):
    with pytest.raises(InputError, match=line):
        play(spec)


def test_only_layers_that_are_trained_and_sent_are_candidates():
    @methods.register("test_flfa_own_head")
    class OwnHead(Method):
        """The head stays at home, the first layer as it is."""

        personal, frozen = ("head.*",), ("body.0.*",)

    result = play("flfa(test_flfa_own_head)", rounds=1)
    assert list(result.rounds[1]["method"]["similarity"]) == ["body.3", "body.8"]
    idle = play("flfa(test_flfa_own_head, select='fixed:body.3')", rounds=1, model="cnn8").rounds[1]["method"]
    assert idle["feedback_no_op_rounds"] == 1  # nothing below is trained


def test_it_does_not_stand_inside_itself():
    with pytest.raises(InputError, match="flfa cannot stand inside flfa"):
        methods.build("flfa(finetuned(flfa(fedavg)))")


def test_two_layers_are_never_skewed_whatever_the_rounding():
    # g1 of two numbers is 0; in floating point it may come out as 1e-15, and `auto` must not turn on that
    for pair in ([0.1, 0.7], [0.30000000000000004, 0.9], [1 / 3, 2 / 7]):
        assert skewness(pair) == 0.0
