"""The seams that later methods need: each is carried by a small method made for the test."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from support import STACKED_TOLERANCE, gap, initial_model
from unskew.base import tree
from unskew.base.registry import param
from unskew.core import local_loop
from unskew.core.jobs import Reply
from unskew.core.method import Method, methods
from unskew.core.reducers import concat, mean, per_client, total
from unskew.core.term import terms
from unskew.core.wrapper import Wrapper
from unskew.runs import building, engine
from unskew.runs.config import from_table, override
from unskew.terms.prox import Prox


@methods.register("test_two_phase")
class TwoPhase(Method):
    """Class means are exchanged before training: survey, digest, brief (as FedFM and FedAF do)."""

    survey_reducers = {"sums": total}

    def init(self, s):
        return {**super().init(s), "anchors": {"mean": torch.zeros(s.num_classes, 64)}}

    def survey(self, c):
        sums = torch.zeros(c.num_classes, 64)
        counts = torch.zeros(c.num_classes)
        with torch.no_grad():
            for batch in c.passes():
                features = c.forward(c.message["model"], batch.x, mode="eval").features
                members = batch.one_hot(c.num_classes)
                sums, counts = sums + members.T @ features, counts + members.sum(0)
        return {"sums": {"features": sums, "counts": counts}}

    def digest(self, s, server, surveyed):
        counts = surveyed["sums"]["counts"].clamp(min=1).unsqueeze(1)
        return {**server, "anchors": {"mean": surveyed["sums"]["features"] / counts}}

    def brief(self, s, server, client):
        return {"anchors": server["anchors"]}

    def loss(self, c, params, batch):
        out = c.forward(params, batch.x)
        pull = batch.mean((out.features - c.message["anchors"]["mean"][batch.y]).square().mean(1))
        return batch.cross_entropy(out.logits) + 0.1 * pull


@methods.register("test_personal_head")
class PersonalHead(Method):
    """The head never leaves the client (as FedPer)."""

    personal = ("head.*",)
    output = "personal"


@methods.register("test_frozen_head")
class FrozenHead(Method):
    """The head is never trained (as FedBABU)."""

    frozen = ("head.*",)


@methods.register("test_aggregation_free")
class AggregationFree(Method):
    """Clients send data of different size, the server trains on their union; models are never averaged (as FedAF)."""

    stackable = False
    reducers = {"data": concat}

    def train(self, c, params):
        return params

    def upload(self, c, params):
        batch = next(iter(c.passes(5)))
        return {"data": {"x": batch.x, "y": batch.y}}

    def update(self, s, server, merged):
        x, y = merged["data"]["x"], merged["data"]["y"]
        assert len(x) == len(y)
        params = server["model"]
        for _ in range(20):
            grads = s.grad(lambda p: F.cross_entropy(s.forward(p, x).logits, y), params)
            params = tree.add_scaled(params, grads, -0.02)
        return {**server, "model": params}


@methods.register("test_scaled_backward")
class ScaledBackward(Wrapper):
    """Changes the backward pass of a chosen layer and nothing else (as FLFA): what it hands down is scaled."""

    factor: float = param(default=0.5, doc="scale of what flows below the layer")
    _reducers_seen = {"every": ("delta", per_client)}

    @property
    def reducers(self):
        return {**self.inner.reducers, **self._reducers_seen}

    def prepare(self, c):
        plain = c.forward

        def scaled(layer, z):
            return type(layer).forward(layer, z * self.factor + (z * (1 - self.factor)).detach())

        chosen = {c.names.layers[1]: scaled}  # the second convolution

        def forward(params, x, mode="train", **options):
            return plain(params, x, mode, **{**options, "layers": {**chosen, **(options.get("layers") or {})}})

        return self.inner.prepare(c.with_forward(forward))

    def update(self, s, server, merged):
        assert set(merged["every"]) == set(s.cohort)  # the wrapper sees each client's update beside their mean
        return self.inner.update(s, server, merged)


@methods.register("test_two_loops")
class TwoLoops(Method):
    """Head first, then body, over batches of their own (as FedRep)."""

    def train(self, c, params):
        def part(prefix):
            names = tuple(name for name in c.trainable if name.startswith(prefix))
            return lambda c, p, batch: c.grad(lambda q: self.loss(c, q, batch), p, names)

        params = local_loop.sgd(c, params, part("head."), epochs=1, purpose="head")
        return local_loop.sgd(c, params, part("body."))


@methods.register("test_draws")
class Draws(Method):
    """Each client adds noise of its own to what it received (as methods with private perturbations)."""

    def start(self, c):
        received = super().start(c)
        return {
            name: value
            + 0.01 * c.draw(f"noise/{name}", lambda rng, value=value: torch.randn(value.shape, generator=rng))
            for name, value in received.items()
        }


@methods.register("test_draws_from_a_generator")
class DrawsFromGenerator(Method):
    """The same in a way that only one client can do at a time."""

    def start(self, c):
        rng = c.rng("noise")
        return {
            name: value + 0.01 * torch.randn(value.shape, generator=rng) for name, value in super().start(c).items()
        }


TEST_METHODS = [name for name in methods if methods.get(name).__module__ == __name__]


def play(spec, **options):
    table = {"method": spec, "rounds": 2, "clients": 6, "split": "dirichlet:0.5", "local": {"lr": 0.05}, **options}
    return engine.run(from_table(table))


@pytest.fixture(autouse=True, scope="module")
def only_here():
    yield
    for name in TEST_METHODS:
        del methods._classes[name]


@pytest.mark.parametrize("name", [n for n in TEST_METHODS if n != "test_scaled_backward"])
def test_pool_equals_serial(name):
    serial = play(name, execution={"executor": "serial"})
    pool = play(name, execution={"executor": "pool", "workers": 2})
    for group in serial.server:
        for key, value in serial.server[group].items():
            assert torch.equal(value, pool.server[group][key]), (group, key)


@pytest.mark.parametrize("name", TEST_METHODS)
def test_stacked_equals_serial(name, caplog):
    spec = f"{name}(fedprox(mu=0.5))" if name == "test_scaled_backward" else name
    serial = play(spec, model="cnn8", execution={"memory_format": "contiguous"})
    stacked = play(spec, model="cnn8", execution={"executor": "stacked", "chunk": 4})
    assert ("one by one" in caplog.text) == (name in ("test_aggregation_free", "test_draws_from_a_generator"))
    assert gap(stacked, serial, initial_model(serial.run)) < STACKED_TOLERANCE
    assert stacked.summary["personal"] == pytest.approx(serial.summary["personal"], abs=0.02)


def test_two_phase_bytes_count_the_extra_exchange_once():
    plain, extra = play("fedavg").rounds[1], play("test_two_phase").rounds[1]
    clients = len(plain["clients"])
    assert extra["bytes_down"] - plain["bytes_down"] == clients * 4 * 10 * 64
    assert extra["bytes_up"] - plain["bytes_up"] == clients * 4 * 10 * (64 + 1)


def test_a_personal_head_stays_with_the_client():
    result = play("test_personal_head", rounds=3, local={"lr": 0.2, "epochs": 3})
    start = building.prepare(result.run).task
    for name, value in result.server["model"].items():
        assert torch.equal(value, start.initial["model"][name]) == name.startswith("head."), name
    head = 4 * (64 * 10 + 10)
    assert play("fedavg").rounds[1]["bytes_up"] - result.rounds[1]["bytes_up"] == 6 * head
    assert "accuracy" not in result.rounds[-1] and result.rounds[-1]["personal"]["pooled"] > 0.3
    assert result.accuracy == result.rounds[-1]["personal"]["pooled"]


def test_a_frozen_head_does_not_move():
    result = play("test_frozen_head")
    start = initial_model(result.run)
    for name, value in result.server["model"].items():
        assert torch.equal(value, start[name]) == name.startswith("head."), name


def test_aggregation_free_learns_on_the_server_and_sends_what_it_says():
    result = play("test_aggregation_free", rounds=3, split="iid")
    assert result.rounds[-1]["loss"] < result.rounds[0]["loss"]
    assert result.rounds[1]["bytes_up"] == 6 * 5 * (64 * 4 + 8)


def test_a_wrapper_changes_the_backward_pass_of_whatever_is_inside():
    inner = play("fedprox(mu=0.5)", rounds=1).server["model"]
    same = play("test_scaled_backward(fedprox(mu=0.5), factor=1.0)", rounds=1).server["model"]
    other = play("test_scaled_backward(fedprox(mu=0.5))", rounds=1).server["model"]
    assert all(torch.allclose(inner[n], same[n], atol=1e-6) for n in inner)
    first = sorted(inner)[0]
    assert first.startswith("body.") and not torch.allclose(inner[first], other[first], atol=1e-5)


def test_a_wrapper_forwards_what_it_does_not_change():
    wrapped = methods.build("test_scaled_backward(test_personal_head)")
    assert wrapped.personal == ("head.*",) and wrapped.output == "personal"
    nested = methods.build("test_scaled_backward(test_scaled_backward(scaffold, factor=0.1), factor=0.2)")
    assert set(nested.reducers) == {"delta", "buffers", "control", "every"}


def test_a_wrapper_may_not_define_what_is_never_called():
    with pytest.raises(TypeError, match="never calls"):

        class Dead(Wrapper):
            def loss(self, c, params, batch):
                return 0


def test_options_of_the_method_inside_are_set_by_path():
    table = override({"method": "test_scaled_backward(fedprox(mu=0.3), factor=0.2)"}, "method.inner.mu", 0.7)
    assert from_table(table).method == methods.build("test_scaled_backward(fedprox(mu=0.7), factor=0.2)")


def test_a_client_with_a_broken_survey_does_not_train():
    class Broken(TwoPhase):
        name = "broken"

        def survey(self, c):
            groups = super().survey(c)
            return groups if c.client else {"sums": tree.scale(groups["sums"], float("nan"))}

    run = from_table({"rounds": 1, "clients": 6, "split": "iid"})
    row = engine.run(replace(run, method=Broken())).rounds[1]
    assert row["excluded"] == [0] and not row["diverged"]


def test_a_wrappers_terms_reach_the_inner_loss():
    outside = play("test_scaled_backward(fedavg, factor=1.0, terms=[prox(mu=1.0)])", rounds=1).server["model"]
    inside = play("test_scaled_backward(fedprox(mu=1.0), factor=1.0)", rounds=1).server["model"]
    assert all(torch.equal(outside[n], inside[n]) for n in outside)


def test_a_term_on_fedavg_is_fedprox():
    with_term, named = play("fedavg(terms=[prox(mu=0.3)])"), play("fedprox(mu=0.3)")
    assert all(torch.equal(v, named.server["model"][n]) for n, v in with_term.server["model"].items())
    assert terms.build("prox(0.3)") == Prox(mu=0.3)


def test_names_missing_in_a_reply_are_averaged_over_those_who_sent_them():
    merge = mean(None)
    merge.add({"a": torch.tensor(2.0)}, Reply(0, {}, weight=1.0))
    merge.add({"a": torch.tensor(4.0), "b": torch.tensor(1.0)}, Reply(1, {}, weight=3.0))
    assert {k: float(v) for k, v in merge.result().items()} == {"a": 3.5, "b": 1.0}
