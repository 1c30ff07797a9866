"""Passes through a part of the network, the received model's word, fresh parameters, steps aside, progress."""

import time
from dataclasses import replace

import pytest
import torch

from awkward import DATA, config
from unskew.base import progress
from unskew.core import local_loop
from unskew.core.jobs import Job
from unskew.core.method import Method, methods
from unskew.core.net import Net
from unskew.models.base import Model
from unskew.runs import building, engine


def visit(spec="fedavg", client=0, **options):
    task = building.prepare(config(spec, **options), dataset=DATA).task
    server = task.method.init(task.server_context(0))
    job = Job("train", 1, client, task.method.download(task.server_context(1), server, client))
    return task, task.visit(job, task.federation.train(client))


def test_body_and_head_one_after_the_other_are_the_whole():
    _, c = visit()
    params, x = c.received["model"], next(c.passes()).x
    whole = c.forward(params, x, mode="eval")
    features = c.features(params, x, mode="eval")
    assert torch.equal(features, whole.features)
    assert torch.equal(c.classify(params, features, mode="eval"), whole.logits)


def test_the_teacher_is_looked_up_where_that_is_the_same():
    _, c = visit()
    taught = c.with_seen("received")
    assert taught.made["seen by received"]["logits"].shape == (len(c.data), c.num_classes)
    for batch in c.batches():
        torch.testing.assert_close(taught.teacher(batch).logits, c.teacher(batch).logits)


def test_a_client_without_samples_has_nothing_to_look_up():
    task, c = visit()
    data = task.federation.train(0)
    nothing = type(data)(data.source, torch.empty(0, dtype=torch.int64), data.pipeline)
    assert not replace(c, data=nothing).with_seen("received").made


@pytest.mark.parametrize(
    "options", [{"augment": "flip"}, {"local": {"buffers": "reset"}}, {"local": {"steps": 1, "batch": 8}}]
)
def test_the_teacher_is_asked_each_time_where_it_is_not(options):
    _, c = visit(**options)
    assert not c.with_seen("received").made


def test_steps_aside_are_not_counted_and_have_their_own_settings():
    _, c = visit()
    aside = c.aside(lr=0.5, epochs=1, momentum=0.0)
    moved = local_loop.sgd(aside, c.received["model"], methods.build("fedavg").gradient, purpose="elsewhere")
    assert c.num_steps == 0 and aside.num_steps > 0 and c.settings.lr != 0.5
    assert any(not torch.equal(moved[name], value) for name, value in c.received["model"].items())


def test_fresh_parameters_are_the_initialisers_and_depend_on_the_seed_alone():
    task, c = visit()
    before = torch.default_generator.get_state()
    first, again, other = c.fresh(1), c.fresh(1), c.fresh(2)
    assert torch.equal(before, torch.default_generator.get_state())
    assert first.keys() == task.initial["model"].keys()
    weights = [name for name in first if name.endswith("weight") and first[name].dim() > 1]
    assert all(torch.equal(first[name], again[name]) for name in first)
    for name in weights:
        assert not torch.equal(first[name], other[name])
        assert not torch.equal(first[name], task.initial["model"][name])
        bound = task.initial["model"][name].abs().max()  # drawn from the same uniform distribution
        assert 0.8 < first[name].abs().max() / bound < 1.25
    assert torch.equal(c.forward(c.received["model"], next(c.passes()).x, "eval").logits,
                       task.net(c.received["model"], c.buffers, next(c.passes()).x, "eval").logits)  # fmt: skip


def test_a_constant_of_the_model_is_no_parameter_but_is_saved(tmp_path):
    @methods.register("test_constant_head")
    class ConstantHead(Method):
        """A head with a fixed factor."""

        def remodel(self, model, num_classes):
            model.head.register_buffer("factor", torch.full((2,), 3.0), persistent=False)
            return model

    task, c = visit("test_constant_head")
    assert c.constants.keys() == {"head.factor"}
    assert not any("factor" in name for tree in task.initial.values() for name in tree)
    engine.run(config("test_constant_head", rounds=1), tmp_path / "run", dataset=DATA)
    from safetensors.torch import load_file

    assert torch.equal(load_file(tmp_path / "run/model.safetensors")["constants/head.factor"], torch.full((2,), 3.0))


@pytest.mark.parametrize("executor", ["serial", "pool"])
def test_progress_inside_a_round_is_told(executor, monkeypatch):
    @methods.register(f"test_talking_{executor}")
    class Talking(Method):
        """Says how far it is."""

        def train(self, c, params):
            for step in range(4):
                progress.say("thinking", step, 4)
                time.sleep(0.02)
            return params

    monkeypatch.setattr(progress, "EVERY", 0.01)
    told = []
    monkeypatch.setattr(progress, "_listener", lambda *words: told.append(words))
    engine.run(config(f"test_talking_{executor}", execution={"executor": executor, "workers": 2}), dataset=DATA)
    assert ("thinking", 2, 4) in told


def test_a_network_of_its_own_kind_has_parts_too():
    class Doubled(Model):
        def forward(self, x):
            out = super().forward(x)
            return out._replace(logits=2 * out.logits)

    net = Net(Doubled(torch.nn.Flatten(), torch.nn.Linear(4, 2)))
    params, _ = net.trees()
    x = torch.rand(3, 4)
    assert torch.equal(net(params, {}, x, "eval", part="body").features, x)
    assert torch.equal(2 * net(params, {}, x, "eval", part="head").logits, net(params, {}, x, "eval").logits)
