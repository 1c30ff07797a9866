"""Networks beside the model and pure steps of optimisers: against torch's own, and in a method that has a generator."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from awkward import DATA, config
from support import STACKED_TOLERANCE, gap, initial_model
from unskew.base import seeds
from unskew.base.batch import cross_entropy
from unskew.base.errors import InputError
from unskew.base.torch_private import add_batch_dim, close_vmap, open_vmap, remove_batch_dim
from unskew.core import optimisers
from unskew.core.auxiliary import Auxiliary, _share
from unskew.core.method import Method, methods
from unskew.runs import engine

NOISE = 4


def make_generator(noise, classes, dim):
    """From noise and a label to features."""
    # no bias before BatchNorm: its gradient is rounding noise, of which Adam would make full steps
    first = nn.Linear(noise + classes, 16, bias=False)
    return nn.Sequential(first, nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, dim))


@methods.register("test_generator")
class WithGenerator(Method):
    """A generator of features, trained at the server against the averaged head, teaches the clients' heads (FedGen)."""

    def _generator(self, s):
        return Auxiliary(make_generator, NOISE, s.num_classes, s.initial["model"]["head.weight"].shape[1])

    def init(self, s):
        params = self._generator(s).init(seeds.derive(s.seed, "generator"))
        return {**super().init(s), "generator": params, "moments": {}}

    def download(self, s, server, client):
        return {**super().download(s, server, client), "generator": server["generator"]}

    def loss(self, c, params, batch):
        noise = c.draw("noise", lambda rng: torch.randn(8, NOISE, generator=rng))
        y = c.draw("labels", lambda rng: torch.randint(c.num_classes, (8,), generator=rng))
        x = torch.cat([noise, F.one_hot(y, c.num_classes).float()], 1)
        features = self._generator(c)(c.message["generator"], x, training=False)
        return super().loss(c, params, batch) + 0.3 * cross_entropy(c.classify(params, features), y).mean()

    def update(self, s, server, merged):
        server, generator = super().update(s, server, merged), self._generator(s)
        params, moments, rng = server["generator"], server["moments"], s.rng("generator")
        losses = []
        for _ in range(5):
            y = torch.randint(s.num_classes, (16,), generator=rng)
            x = torch.cat([torch.randn(16, NOISE, generator=rng), F.one_hot(y, s.num_classes).float()], 1)

            def loss(p, x=x, y=y):
                return cross_entropy(s.classify(server["model"], generator(p, x)), y).mean()

            grads, value = s.grad_and_value(loss, params, generator.trainable)
            params, moments = optimisers.adam(params, grads, moments, lr=0.01)
            params = generator.track(params, x)
            losses.append(float(value))
        s.record.update(first=losses[0], last=losses[-1])
        return {**server, "generator": params, "moments": moments}


@pytest.fixture(autouse=True, scope="module")
def only_here():
    yield
    del methods._classes["test_generator"]


def play(executor="serial", out=None, watch=None, **options):
    execution = {"executor": executor, "memory_format": "contiguous", "checkpoint_every": 1}
    execution |= options.pop("execution", {})
    return engine.run(config("test_generator", execution=execution, **options), out, dataset=DATA, watch=watch)


def assert_equal(one, other):
    assert one.server.keys() == other.server.keys()
    for group, tree in one.server.items():
        assert tree.keys() == other.server[group].keys()
        assert all(torch.equal(value, other.server[group][name]) for name, value in tree.items()), group


def test_a_generator_gives_the_same_on_every_executor(caplog):
    serial = play()
    assert_equal(serial, play("pool", execution={"workers": 2}))
    stacked = play("stacked", execution={"chunk": 3})
    assert "one by one" not in caplog.text
    assert gap(stacked, serial, initial_model(serial.run, DATA)) < STACKED_TOLERANCE
    for group in ("generator", "moments"):
        torch.testing.assert_close(stacked.server[group], serial.server[group], rtol=1e-3, atol=1e-3)
    assert serial.server["generator"]["1.num_batches_tracked"] == serial.server["moments"]["step"] == 10
    assert serial.rounds[-1]["method"]["last"] < serial.rounds[1]["method"]["first"]


def test_a_resumed_run_continues_the_optimiser_exactly(tmp_path):
    def stop(row):
        if row["round"] == 2:
            raise KeyboardInterrupt

    whole = play(rounds=4)
    with pytest.raises(KeyboardInterrupt):
        play(rounds=4, out=tmp_path / "run", watch=stop)
    assert_equal(engine.resume(tmp_path / "run", dataset=DATA), whole)


def test_the_seed_alone_decides_the_parameters():
    generator = Auxiliary(make_generator, 2, 3, 5)
    before = torch.default_generator.get_state()
    first, again, other = generator.init(1), generator.init(1), generator.init(2)
    assert torch.equal(before, torch.default_generator.get_state())
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["0.weight"], other["0.weight"])
    torch.manual_seed(1)
    module = make_generator(2, 3, 5)
    assert first.keys() == module.state_dict().keys()
    assert all(torch.equal(first[name], value) for name, value in module.state_dict().items())
    assert generator.trainable == tuple(name for name, _ in module.named_parameters())


def test_a_call_is_the_modules_own_and_changes_nothing():
    generator, module = Auxiliary(make_generator, 2, 3, 5), make_generator(2, 3, 5)
    params, x = generator.init(1), torch.randn(7, 5)
    module.load_state_dict(params)
    kept = {name: value.clone() for name, value in params.items()}
    assert torch.equal(generator(params, x, training=False), module.eval()(x))
    torch.testing.assert_close(generator(params, x), module.train()(x))
    assert all(torch.equal(value, kept[name]) for name, value in params.items())
    tracked = generator.track(params, x)
    torch.testing.assert_close(tracked, dict(module.state_dict()))
    assert all(torch.equal(value, kept[name]) for name, value in params.items())
    assert torch.equal(generator(tracked, x, training=False), module.eval()(x))


def test_one_module_serves_a_process():
    first, second = (Auxiliary(make_generator, 2, 3, 5) for _ in range(2))
    first(first.init(0), torch.randn(4, 5))  # makes it, unless another test of this process has
    made = _share.cache_info().misses
    second(second.init(0), torch.randn(4, 5))
    assert _share.cache_info().misses == made


@pytest.mark.parametrize("training", [True, False])
def test_many_clients_at_once_have_trees_of_their_own(training):
    generator = Auxiliary(make_generator, 2, 3, 5)
    trees, x = [generator.init(seed) for seed in range(3)], torch.randn(3, 7, 5)
    level = open_vmap(3)
    try:
        params = {name: add_batch_dim(torch.stack([own[name] for own in trees]), 0, level) for name in trees[0]}
        out = remove_batch_dim(generator(params, add_batch_dim(x, 0, level), training=training), level, 3, 0)
    finally:
        close_vmap()
    alone = torch.stack([generator(own, one, training=training) for own, one in zip(trees, x, strict=True)])
    torch.testing.assert_close(out, alone)


def test_tied_weights_are_one_parameter():
    def tied():
        module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        module[1].weight = module[0].weight
        return module

    auxiliary, x = Auxiliary(tied), torch.randn(2, 3)
    params = auxiliary.init(0)
    assert params.keys() == {"0.weight", "0.bias", "1.bias"}
    inner = F.linear(x, params["0.weight"], params["0.bias"])
    torch.testing.assert_close(auxiliary(params, x), F.linear(inner, params["0.weight"], params["1.bias"]))


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.InstanceNorm1d(3, track_running_stats=True)])
def test_layers_that_a_tree_cannot_hold_are_refused(layer):
    with pytest.raises(InputError, match=f"cannot hold {type(layer).__name__}"):
        Auxiliary(lambda: nn.Sequential(nn.Linear(3, 3), layer)).init(0)


def descend(step, make, dtype=torch.float32, count=20):
    """The parameters after some steps: ours, and those of torch's optimiser."""
    rng = torch.Generator().manual_seed(0)
    params = {"a": torch.randn(4, 3, generator=rng).to(dtype), "b": torch.randn((), generator=rng).to(dtype)}
    params["still"] = torch.ones(2, dtype=dtype)
    theirs = {name: value.clone().requires_grad_() for name, value in params.items() if name != "still"}
    optimiser, remembered = make(list(theirs.values())), {}
    for _ in range(count):
        grads = {name: torch.randn(value.shape, generator=rng).to(dtype) for name, value in theirs.items()}
        before = {name: value.clone() for name, value in {**params, **remembered}.items()}
        new, kept = step(params, grads, remembered)
        assert all(torch.equal(value, before[name]) for name, value in {**params, **remembered}.items())
        params, remembered = new, kept
        for name, value in theirs.items():
            value.grad = grads[name]
        optimiser.step()
    assert torch.equal(params.pop("still"), torch.ones(2, dtype=dtype))
    return params, {name: value.detach() for name, value in theirs.items()}, remembered


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adam_is_torchs(decay, dtype):
    ours, theirs, moments = descend(
        lambda p, g, m: optimisers.adam(p, g, m, lr=0.03, betas=(0.8, 0.99), eps=1e-6, weight_decay=decay),
        lambda p: torch.optim.Adam(p, lr=0.03, betas=(0.8, 0.99), eps=1e-6, weight_decay=decay),
        dtype,
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    assert moments.keys() == {"step", "first/a", "second/a", "first/b", "second/b"} and moments["step"] == 20
    assert moments["first/b"].dtype == dtype


@pytest.mark.parametrize("momentum, decay", [(0.0, 0.0), (0.9, 0.0), (0.5, 0.1)])
def test_sgd_is_torchs(momentum, decay):
    ours, theirs, velocity = descend(
        lambda p, g, v: optimisers.sgd(p, g, v, lr=0.03, momentum=momentum, weight_decay=decay),
        lambda p: torch.optim.SGD(p, lr=0.03, momentum=momentum, weight_decay=decay),
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    assert velocity.keys() == ({"a", "b"} if momentum else set())
