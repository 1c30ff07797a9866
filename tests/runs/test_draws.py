"""Who may draw from global generators, and that what is drawn does not depend on who works."""

import threading

import pytest
import torch
from torch import nn

import unskew
from plugin_files import write
from small_runs import EVEN, SKEWED, equal, make, play, register, weights
from unskew import Method, registries
from unskew.base.errors import InputError
from unskew.core import reducers
from unskew.terms.prox import Prox

pytestmark = pytest.mark.usefixtures("own_names")

FOUR = {"data": "digits", "model": "mlp", "clients": 4, "split": "iid", "rounds": 2, "epochs": 1, "lr": 0.1}


# ------------------------------------------------------------------------------------------- the same on every executor


class DrawnResult(reducers.mean):
    """Draws from torch's generator."""

    def result(self):
        return {name: value * torch.rand(()) for name, value in super().result().items()}


def weigh_by_chance(self, s, replies):
    return torch.rand(len(replies)).tolist()


@pytest.mark.parametrize(
    "slots", [{"weigh": weigh_by_chance}, {"reducers": {"delta": DrawnResult}}], ids=["weigh", "add"]
)
def test_what_the_server_draws_does_not_depend_on_who_works(slots):
    """Seeded for each call: in `serial` the clients' layers draw from the same generator in between."""
    kind = registries.methods.register("drawing")(type("Drawing", (Method,), {"__module__": "mine", **slots}))
    serial, pool, stacked = (unskew.run(kind(), executor=how, **FOUR) for how in ("serial", "pool", "stacked"))
    for name, value in serial.server["model"].items():
        assert torch.equal(pool.server["model"][name], value)
        torch.testing.assert_close(stacked.server["model"][name], value, rtol=1e-3, atol=1e-4)


def dropping():
    torch.manual_seed(0)
    layers = nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 10)
    return {"model": nn.Sequential(*layers), "head": "4", "lr": 0.1, "local_test": "holdout"}


@pytest.mark.parametrize("method", ["fedas", "flfa(fedas)", "features first"])
def test_masks_are_the_same_in_every_process(method, tmp_path):
    if method == "features first":
        method = make("methods", unskew.Method, start=lambda self, c: _look_at_features(c))
    net = dropping()
    serial = play(method=method, **net)
    assert equal(serial, play(method=method, executor="pool", workers=2, **net))

    def stop(row):
        if row["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(method=method, out=tmp_path / "run", checkpoint_every=1, watch=stop, **net)
    assert equal(serial, unskew.resume(tmp_path / "run", model=net["model"], head="4"))


def _look_at_features(c):
    for batch in c.batches():
        c.features(c.received["model"], batch.x)
    return c.received["model"]


# -------------------------------------------------------------------------------------------------------- other sources


def test_another_thread_that_seeds_torch_changes_nothing():
    known, stop = weights(unskew.run("fedavg", **SKEWED)), threading.Event()

    def seed():
        while not stop.is_set():
            torch.manual_seed(3)
            stop.wait(0.0005)

    thread = threading.Thread(target=seed)
    thread.start()
    try:
        found = [weights(unskew.run("fedavg", **SKEWED)) for _ in range(3)]
    finally:
        stop.set()
        thread.join()
    assert all(torch.equal(each, known) for each in found)


def test_a_network_may_still_seed_torch_itself(name):
    lines = ["from torch import nn", "def net(shape, num_classes):", "    torch.manual_seed(7)",
             "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))"]  # fmt: skip
    write(name, "\n".join(lines) + "\n")
    options = {**SKEWED, "model": f'python("{name}.py:net", head="1")', "rounds": 1, "lr": 1e-12}
    one, other = (weights(unskew.run("fedavg", seed=seed, **options)) for seed in (0, 1))
    assert torch.allclose(one, other, atol=1e-6)


def test_a_generator_without_a_seed_is_said(tmp_path, caplog):
    text = """import numpy as np
from unskew import Method, registries, tree

@registries.methods.register("unseeded")
class M(Method):
    '''x'''
    def train(self, c, params):
        return tree.scale(super().train(c, params), 1 + 0.001 * np.random.default_rng().random())
"""
    (tmp_path / "unseeded.py").write_text(text)
    unskew.run("unseeded", plugin=str(tmp_path / "unseeded.py"), **EVEN)
    assert "train (unseeded.py, line 7) makes a random generator without a seed" in caplog.text


# ---------------------------------------------------------------------------------------------------- before the rounds


@pytest.mark.parametrize("method", ["mine", "finetuned(mine)"])
def test_own_terms_do_not_draw(method):
    register("methods", "mine", Method, own_terms=lambda self: (Prox(mu=float(torch.rand(()))),))
    with pytest.raises(InputError, match=r"mine\.own_terms draws from the global generator of torch"):
        play(method=method)


def test_post_init_does_not_draw():
    def post_init(self):
        object.__setattr__(self, "_seen", torch.rand(()))

    register("methods", "mine", Method, __post_init__=post_init)
    with pytest.raises(InputError, match=r"mine\.__post_init__ draws from the global generator of torch"):
        play(method="mine")
