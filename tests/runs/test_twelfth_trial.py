"""What the tenth trial by a new user found in optimisers, augmentations, settings and scores, each as a test."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import unskew
from unskew.base.errors import InputError, SlotError
from unskew.cli import main

TINY = {"clients": 4, "rounds": 2, "steps": 5, "batch": 16, "model": "mlp(hidden=[8])", "split": "iid", "lr": 0.05}
HEAD = "import time, torch\nimport numpy as np\nfrom unskew import *\nfrom unskew import registries, tree\n"
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch, own_names):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def name():
    """A new one, as a process knows each plugin once."""
    return f"twelve_{next(_numbers)}"


def write(name, registry, kind, text):
    """A plugin file with one component of this name; the file's name."""
    body = "\n".join(f"    {line}" for line in text.strip().splitlines())
    head = f"{HEAD}@registries.{registry}.register('{name}')\nclass Mine({kind}):\n    '''Mine.'''\n"
    Path(f"{name}.py").write_text(head + body + "\n")
    return f"{name}.py"


def weights(result):
    return torch.cat([value.flatten() for value in result.server["model"].values()])


HEAVY = """
copies: bool = param(default=False, doc="whether it remembers copies")
def init(self, params):
    return tree.copy(params) if self.copies else params
def step(self, params, grads, memory, settings):
    moved = {k: params[k] - settings.lr * grads[k] + 0.9 * (params[k] - memory[k]) for k in grads}
    return moved, tree.copy(params) if self.copies else params
"""
ANCHORED = """
copies: bool = param(default=False, doc="whether it remembers copies")
def init(self, params):
    return {k: v.clone() if self.copies else v.view(v.shape) for k, v in params.items()}
def step(self, params, grads, memory, settings):
    return {k: params[k] - settings.lr * (grads[k] + params[k] - memory[k]) for k in grads}, memory
"""
AHEAD = """
copies: bool = param(default=False, doc="whether it remembers copies")
def init(self, params):
    return tree.zeros_like(params)
def step(self, params, grads, memory, settings):
    moved = {k: params[k] - settings.lr * (grads[k] + 0.1 * (params[k] - memory[k])) for k in grads}
    return moved, tree.copy(moved) if self.copies else moved
"""


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
    plugin = write(name, "methods", "Method", text)
    found = [weights(unskew.run(f"{name}(copies={own})", plugin=plugin, executor=executor, **TINY))
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
    plugin = Path(write(name, "methods", "Method", text))
    plugin.write_text(plugin.read_text().replace(HEAD, HEAD + HELPERS))
    found = [
        weights(unskew.run(f"{name}(copies={own})", plugin=str(plugin), **{**TINY, "rounds": 3}))
        for own in ("true", "false")
    ]
    assert torch.equal(*found)


@pytest.mark.parametrize(
    "numbers",
    [
        "torch.from_numpy(np.random.default_rng().random((n, 1, 1, 1)))",
        "torch.full((n, 1, 1, 1), float(time.perf_counter_ns() % 1000))",
    ],
    ids=["its own generator", "the clock"],
)
def test_an_augmentation_that_draws_elsewhere_is_refused(name, numbers):
    text = f"""
def draw(self, n, shape, rng):
    return Draws({numbers}.float())
def apply(self, x, draws, mean, std):
    return (x.float() / 255 - mean) / std + 0.01 * draws.numbers
"""
    plugin = write(name, "transforms", "Transform", text)
    with pytest.raises((InputError, SlotError), match="gives other numbers for the same rng"):
        unskew.run(augment=name, plugin=plugin, **TINY)


@pytest.mark.parametrize("slot", ["download(self, s, server, client)", "update(self, s, server, merged)"])
def test_the_servers_settings_stay(name, slot):
    call = slot.replace("self, ", "")
    text = f"def {slot}:\n    object.__setattr__(s.settings, 'lr', 0.0)\n    return super().{call}"
    with pytest.raises(SlotError, match=r"changes s.settings.lr in place"):
        unskew.run(name, plugin=write(name, "methods", "Method", text), **TINY)


def test_remodel_leaves_the_method_as_it_is(name):
    text = """
mu: float = param(default=1.0, doc="a number")
def remodel(self, model, num_classes):
    object.__setattr__(self, "mu", 0.0)
    return model
"""
    with pytest.raises(InputError, match=rf"{name}.remodel changes {name}.mu; let it change nothing but the network"):
        unskew.run(name, plugin=write(name, "methods", "Method", text), **TINY)


SCRIPT = """
import collections, dataclasses, enum, functools, threading, types, torch
from torch import nn

@dataclasses.dataclass
class Options:
    rate: float = VALUE
    rates: list = dataclasses.field(default_factory=lambda: [VALUE])
class Lazy:
    @functools.cached_property
    def value(self): return VALUE
class Locked:
    def __init__(self):
        self.function, self.lock = (lambda: VALUE), threading.Lock()
class Listed(list): pass

class Plain:
    def f(self): return VALUE
class Heir(Plain): pass
class Called:
    def __call__(self): return VALUE
class Kind(enum.Enum):
    ONE = VALUE
class Held:
    inner = Plain()
class Holding:
    def __init__(self): self.own = Plain()
class Meta(type):
    @property
    def value(cls): return VALUE
class Made(metaclass=Meta): pass
class Net(nn.Module):
    def forward(self, x): return VALUE * x
class Words(dict):
    def __getitem__(self, key): return VALUE
@functools.lru_cache
def cached(): return VALUE
@torch.no_grad()
def without(): return VALUE
def make(value):
    def inner(): return value
    return inner
def wrap(function):
    @functools.wraps(function)
    def inner(): return VALUE * function()
    return inner
@wrap
def wrapped(): return 1.0
one = functools.singledispatch(lambda x: VALUE)
plain, heir, called, holding, net, words, closure, bound = (
    Plain(), Heir(), Called(), Holding(), Net(), Words(), make(VALUE), Plain().f)
layers, listed, space = nn.Sequential(Net()), [1.0, lambda: VALUE], types.SimpleNamespace(f=lambda: VALUE)
lazy, locked, marked = Lazy(), Locked(), Listed()
marked.value = VALUE
made = collections.defaultdict(lambda: VALUE)
sparse = torch.tensor([VALUE, 0.0]).to_sparse()
first, second = [1.5], [2.5]
trio = (first, second, first if VALUE == 1.5 else second)
pair = collections.namedtuple("pair", "value")(VALUE)

class Used:
    def slot(self): return NAMED
"""
NAMED = [
    "plain.f()", "heir.f()", "called()", "Kind.ONE.value", "Held.inner.f()", "holding.own.f()", "Made.value",
    "net(1.0)", "layers(1.0)", "words['a']", "cached()", "without()", "closure()", "bound()", "wrapped()", "one(1)",
    "listed[1]()", "space.f()", "pair.value", "Options().rate", "Options().rates[0]", "lazy.value",
    "locked.function()", "marked.value", "made['a']", "float(sparse.to_dense()[0])", "trio[2][0]",
]  # fmt: skip


# ------------------------------------------------------------------------------ folders that were edited


@pytest.fixture
def done():
    """A finished run of four rounds, with checkpoints of rounds 2 and 4."""
    unskew.run("fedavg", out="done", **{**TINY, "rounds": 4, "checkpoint_every": 2})
    return Path("done")


def edit_last(file, **values):
    """Changes values of a file's last line."""
    *lines, last = file.read_text().splitlines()
    file.write_text("\n".join([*lines, json.dumps({**json.loads(last), **values})]) + "\n")


def call(*words):
    """The exit code and what a command says."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main([str(word) for word in words])
        except SystemExit as end:
            return int(end.code or 0), said.getvalue()
    return 0, said.getvalue()


BAD = {
    "seconds": [None, "x"], "accuracy": ["x", [1]], "personal": ["x"], "round": [10**30, -1], "bytes_up": ["x"],
    "measures": ["x"], "class_accuracy": ["x"], "clients": [None], "diverged": ["x"],
}  # fmt: skip


def test_images_that_are_none(done):
    run, images = unskew.open("done"), unskew.load("digits").test.x[:4]
    for given in (
        images > 3, np.ma.masked_less(images.numpy(), 3), np.array(images.tolist(), dtype=object), images.to_sparse(),
    ):  # fmt: skip
        with pytest.raises(InputError, match="predict: "):
            run.predict(given)
    pixels = images.float().numpy() if images.is_floating_point() else images.numpy().astype(">u2")
    assert torch.equal(run.predict(pixels.astype(pixels.dtype.newbyteorder(">"))), run.predict(images))
    with pytest.raises(InputError, match="title: expected a text"):
        run.plot(title=3)
