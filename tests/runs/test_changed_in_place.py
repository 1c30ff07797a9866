"""Values that slots change in place are named, and what a slot has put aside stays as it was."""

from pathlib import Path

import pytest
import torch

import unskew
from plugin_files import HEAD, write_part
from small_runs import EVEN, SKEWED, make, play, register, weights
from unskew import Method, Wrapper, registries
from unskew.base.errors import InputError, SlotError
from unskew.core.division import Division

pytestmark = pytest.mark.usefixtures("own_names")


# ------------------------------------------------------------------------------------------------- what a slot is given


def data_set():
    x = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
    y = x.argmax(1)
    train, test = unskew.Samples(x[:150], y[:150]), unskew.Samples(x[150:], y[150:])
    return unskew.Dataset("largest", train, test, classes=tuple("abcdef"), mean=(0.0,), std=(1.0,))


def predict_through_data(self, c, params, x):
    x.data.mul_(1.5)
    return Method.predict(self, c, params, x)


def predict_through_numpy(self, c, params, x):
    if not torch._C._functorch.is_batchedtensor(x):
        x.numpy()[:] = 0
    return Method.predict(self, c, params, x)


@pytest.mark.parametrize("executor", ["serial", "pool"])
@pytest.mark.parametrize("predict", [predict_through_data, predict_through_numpy])
def test_predict_does_not_reach_the_test_set(predict, executor):
    kind, data = register("methods", "mine", Method, predict=predict), data_set()
    before = data.test.x.clone()
    with pytest.raises(SlotError, match=r"mine\.predict changes x in place"):
        unskew.run(kind(), data=data, split="iid", clients=3, rounds=1, model="mlp", executor=executor)
    assert torch.equal(data.test.x, before)


@pytest.mark.parametrize("executor", ["serial", "stacked"])
def test_a_loss_that_writes_to_parameters_later_is_found(executor):
    def loss(self, c, params, batch):
        if c.step == 3:
            with torch.no_grad():
                params["head.bias"].mul_(0.5)
        return Method.loss(self, c, params, batch)

    name = make("methods", Method, loss=loss)
    with pytest.raises(SlotError, match=rf'{name}.loss changes params\["head.bias"\] in place'):
        play(method=name, batch=64, executor=executor)


@pytest.mark.parametrize("executor", ["serial", "pool", "stacked"])
def test_a_division_that_writes_is_one_line(executor):
    def shared(self, context, params):
        return {name: value.mul_(0.9) for name, value in params.items() if not name.startswith("head.")}

    register("divisions", "writing", Division, shared=shared, rows=lambda self, names, name, size, round_: size)
    with pytest.raises(SlotError, match=r"division writing.shared changes .* in place; let it return new values"):
        play(method=f"fedper(division={registries.divisions.build('writing')})", executor=executor)


@pytest.mark.parametrize("executor", ["serial", "pool"])
def test_weigh_that_changes_the_initial_model_is_named(name, executor):
    text = """
def weigh(self, s, replies):
    s.initial['model']['head.weight'].mul_(1.5)
    return [reply.weight for reply in replies]
"""
    plugin = write_part(name, "methods", "Method", text)
    with pytest.raises(SlotError, match=rf"{name}.weigh .*s.initial"):
        unskew.run(name, plugin=plugin, executor=executor, **SKEWED)


@pytest.mark.parametrize("slot", ["download(self, s, server, client)", "update(self, s, server, merged)"])
def test_the_servers_settings_stay(name, slot):
    call = slot.replace("self, ", "")
    text = f"def {slot}:\n    object.__setattr__(s.settings, 'lr', 0.0)\n    return super().{call}"
    with pytest.raises(SlotError, match=r"changes s.settings.lr in place"):
        unskew.run(name, plugin=write_part(name, "methods", "Method", text), **EVEN)


# -------------------------------------------------------------------------------------------------------------- methods


def test_a_wrapper_leaves_the_method_inside_as_it_is():
    def update(self, s, server, merged):
        object.__setattr__(self.inner, "server_lr", 0.001)
        return self.inner.update(s, server, merged)

    name = make("methods", Wrapper, update=update)
    with pytest.raises(SlotError, match=rf"{name}.update changes fedadam.server_lr in place"):
        play(method=f"{name}(fedadam)")


def test_remodel_leaves_the_method_as_it_is(name):
    text = """
mu: float = param(default=1.0, doc="a number")
def remodel(self, model, num_classes):
    object.__setattr__(self, "mu", 0.0)
    return model
"""
    with pytest.raises(InputError, match=rf"{name}.remodel changes {name}.mu; let it change nothing but the network"):
        unskew.run(name, plugin=write_part(name, "methods", "Method", text), **EVEN)


# ---------------------------------------------------------------------------------------------------- what is put aside


@pytest.mark.parametrize("executor", ["serial", "stacked"])
@pytest.mark.parametrize(
    "kept", ["seen[0]", "tree.lerp(seen[0], seen[-1], 0.5)", "{k: v.clone() for k, v in seen[-1].items()}"]
)
def test_a_gradient_may_put_the_parameters_aside(name, kept, executor):
    """Such as to average the iterates."""
    text = f"""
copies: bool = param(default=False, doc="whether it keeps copies")
def train(self, c, params):
    seen = []
    def gradient(c, params, batch):
        seen.append(tree.copy(params) if self.copies else params)
        return self.gradient(c, params, batch)
    trained = sgd(c, params, gradient)
    return tree.lerp(trained, {kept}, 0.5)
"""
    plugin = write_part(name, "methods", "Method", text)
    found = [weights(unskew.run(f"{name}(copies={own})", plugin=plugin, executor=executor, **EVEN))
             for own in ("true", "false")]  # fmt: skip
    assert torch.equal(*found)


KEEPING = {
    "loss": """
def loss(self, c, params, batch):
    SEEN.append(kept(self, params))
    return super().loss(c, params, batch)
def train(self, c, params):
    SEEN.clear()
    return tree.lerp(super().train(c, params), {k: v.detach() for k, v in SEEN[0].items()}, 0.5)
""",
    "the server's memory of clients": """
def update(self, s, server, merged):
    total = {"w": torch.zeros(2)}
    for client in range(s.num_clients):
        total["w"] += client
        s.per_client.put(client, {"own": kept(self, total)})
    return super().update(s, server, merged)
def download(self, s, server, client):
    held = s.per_client.get(client)
    return {**super().download(s, server, client), "own": held.get("own", {"w": torch.zeros(2)})}
def correction(self, c, params, batch):
    return tree.scale(tree.select(params, c.trainable), 0.01 * float(c.message["own"]["w"][0]))
""",
    "messages": """
def download(self, s, server, client):
    BUFFER.fill_(client)
    return {**super().download(s, server, client), "own": kept(self, {"w": BUFFER})}
def correction(self, c, params, batch):
    return tree.scale(tree.select(params, c.trainable), 0.01 * float(c.message["own"]["w"][0]))
""",
}
"""What is put aside, or used again: it must make no difference whether that is a copy."""
HELPERS = """SEEN, BUFFER = [], torch.zeros(2)
def kept(method, own):
    return tree.copy(own) if method.copies else own
"""


@pytest.mark.parametrize("how", KEEPING)
def test_what_is_put_aside_stays_as_it_was(name, how):
    text = "copies: bool = param(default=False, doc='whether it keeps copies')\n" + KEEPING[how]
    plugin = Path(write_part(name, "methods", "Method", text))
    plugin.write_text(plugin.read_text().replace(HEAD, HEAD + HELPERS))
    found = [
        weights(unskew.run(f"{name}(copies={own})", plugin=str(plugin), **{**EVEN, "rounds": 3}))
        for own in ("true", "false")
    ]
    assert torch.equal(*found)
