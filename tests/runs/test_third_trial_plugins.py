"""What a third trial by a newcomer found: plugins that changed results without a word, or failed with a traceback."""

import pytest
import torch
from torch import nn

import unskew
from small_runs import equal, play, register
from unskew import Method
from unskew.base.errors import InputError, SlotError
from unskew.terms.prox import Prox

EXECUTORS = ["serial", "pool", "stacked"]


def are_near(one, other):
    return all(
        torch.allclose(v, other.server["model"][n], rtol=1e-3, atol=1e-4) for n, v in one.server["model"].items()
    )


# ------------------------------------------------------------------------------------------------- measures


def note_size(self, c, params, *more):
    x = more[0].x if more else next(iter(c.passes(16))).x
    for mode in ("train", "batch"):
        c.diagnostics.note("size", c.forward(params, x, mode).logits.detach().abs().mean())
    c.diagnostics.note("size", c.features(params, x).detach().abs().mean())


def draw(self, c, *more):
    c.diagnostics.note("drawn", torch.rand(()))


class Noisy(nn.Module):
    """Draws from torch's generator in training."""

    def __init__(self):
        super().__init__()
        self.hidden, self.norm, self.drop, self.fc = (
            nn.Linear(64, 8),
            nn.BatchNorm1d(8),
            nn.Dropout(0.5),
            nn.Linear(8, 10),
        )

    def forward(self, x):
        return self.fc(self.drop(torch.nn.functional.dropout(self.norm(self.hidden(x.flatten(1))), 0.2, self.training)))


def plain_dropout():
    torch.manual_seed(0)
    layers = nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 10)
    return {"model": nn.Sequential(*layers), "head": "5"}


def drawing():
    torch.manual_seed(0)
    return {"model": Noisy(), "head": "fc"}


def count_on_self(self, *given):
    object.__setattr__(self, "_n", getattr(self, "_n", 0) + 1)
    return {}


def write_server(self, look):
    for value in look.server["model"].values():
        value.data.mul_(0.5)
    return {}


def write_published(self, look):
    if look.round:
        look.published["model"]["head.bias"].numpy()[:] = 7
    return {}


def noting(name):
    return lambda self, c, *given: c.diagnostics.note(name, 100.0)


KEEPS = r"changes one\._n in place; it may only look"
MEASURES = {
    "state in figures": ([{"figures": count_on_self}], rf"measure one\.figures {KEEPS}"),
    "state in summarise": ([{"summarise": count_on_self}], rf"measure one\.summarise {KEEPS}"),
    "state in trained": ([{"trained": count_on_self}], rf"measure one\.trained {KEEPS}"),
    "state in step": ([{"step": count_on_self}], rf"measure one\.step {KEEPS}"),
    "writes server": ([{"figures": write_server}], r'measure one\.figures changes look\.server\["model"\].*in place'),
    "writes published": ([{"figures": write_published}], r'one\.figures changes look\.server\["model"\].*in place'),
    "train_loss": ([{"trained": noting("train_loss")}],
                   r"measure one\.trained notes something under 'train_loss' .*as the method \(or a term\) does"),
    "train_loss before": ([{"before_step": noting("train_loss")}],
                          r"measure one\.before_step notes something under 'train_loss' .*as the method"),
    "one note": ([{"trained": noting("mine")}, {"step": noting("mine")}],
                 r"measure one\.trained notes something under 'mine' .*as measure two\.step does; choose another"),
    "a note of ours": ([{"trained": noting("fisher_trace")}],
                       r"under 'fisher_trace' .*as measure fisher\.trained does"),
    "one figure": ([{"figures": lambda self, look: {"a": 1}}, {"figures": lambda self, look: {"a": 2}}],
                   r"measure two\.figures gives the figure 'a', as measure one\.figures does"),
    "a figure of ours": ([{"figures": lambda self, look: {"drift": 1}}], r"gives the figure 'drift'|drift\.figures"),
}  # fmt: skip


# ----------------------------------------------------------------------------------------------------- wire


def add_noise(groups):
    return {g: {n: v + 0.01 * torch.rand(v.shape) for n, v in own.items()} for g, own in groups.items()}


def write_data(groups):
    for own in groups.values():
        for value in own.values():
            value.data.mul_(2)
    return groups


def send(self, c, groups, memory, stream):
    return groups, {}


def fail(self, groups):
    raise ValueError("mine")


def fail_later(self, groups, seen=[]):  # noqa: B006 - the first reply is asked for twice, at the client and at the server
    seen.append(1)
    return groups if len(seen) < 3 else fail(self, groups)


DECODE = {
    "writes through data": (lambda self, groups: write_data(groups), r"decode changes groups\[.*in place"),
    "fails": (fail, r"client \d failed in round 1: ValueError: mine, in wire processor noisy\.decode \(.*line \d"),
    "gives nothing": (lambda self, groups: None, "decode must return groups .* got None"),
    "loses": (lambda self, groups: {}, "decode must give back what encode got"),
}


# ---------------------------------------------------------------------------------------------------- slots


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
def test_predict_does_not_reach_the_test_set(predict, executor, own_names):
    kind, data = register("methods", "mine", Method, predict=predict), data_set()
    before = data.test.x.clone()
    with pytest.raises(SlotError, match=r"mine\.predict changes x in place"):
        unskew.run(kind(), data=data, split="iid", clients=3, rounds=1, model="mlp", executor=executor)
    assert torch.equal(data.test.x, before)


def leave_autocast(*given):
    torch.autocast("cpu", dtype=torch.bfloat16).__enter__()


def leave_double(*given):
    torch.set_default_dtype(torch.float64)


def leave_without_gradients(*given):
    torch.set_grad_enabled(False)


def leave_deterministic(*given):
    torch.use_deterministic_algorithms(True, warn_only=True)


LEFT = [leave_autocast, leave_double, leave_without_gradients, leave_deterministic]


@pytest.mark.parametrize("leave", LEFT)
@pytest.mark.parametrize("slot", ["weight", "update"])
def test_what_a_slot_leaves_set_in_torch_is_put_back(slot, leave, own_names):
    def own(self, *given):
        found = getattr(Method, slot)(self, *given)
        leave()
        return found

    kind, nesting = register("methods", "mine", Method, **{slot: own}), torch.autocast_increment_nesting()
    plain = play()
    for executor in EXECUTORS[:2]:
        assert equal(plain, play(method=kind(), executor=executor))
    assert not torch.is_autocast_enabled("cpu") and not torch.are_deterministic_algorithms_enabled()
    assert torch.is_grad_enabled() and torch.get_default_dtype() is torch.float32
    assert torch.autocast_decrement_nesting() == nesting - 1


@pytest.mark.parametrize("leave", LEFT)
def test_what_watch_leaves_set_in_torch_is_put_back(leave):
    plain, watched = play(), play(watch=leave)
    assert equal(plain, watched) and plain.rounds[-1]["loss"] == watched.rounds[-1]["loss"]
    assert not torch.is_autocast_enabled("cpu") and not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("method", ["mine", "finetuned(mine)"])
def test_own_terms_do_not_draw(method, own_names):
    register("methods", "mine", Method, own_terms=lambda self: (Prox(mu=float(torch.rand(()))),))
    with pytest.raises(InputError, match=r"mine\.own_terms draws from the global generator of torch"):
        play(method=method)


def test_post_init_does_not_draw(own_names):
    def post_init(self):
        object.__setattr__(self, "_seen", torch.rand(()))

    register("methods", "mine", Method, __post_init__=post_init)
    with pytest.raises(InputError, match=r"mine\.__post_init__ draws from the global generator of torch"):
        play(method="mine")


def refuse(self, *given):
    raise InputError("not so")


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("slot", ["upload", "criterion", "update", "weigh"])
def test_an_input_error_in_a_round_is_the_slot_s(slot, executor, own_names):
    kind = register("methods", "mine", Method, **{slot: refuse})
    with pytest.raises(SlotError, match=rf"InputError: not so, in mine\.{slot} \(.*line"):
        play(method=kind(), executor=executor)


def test_an_input_error_in_init_refuses_the_run(own_names):
    with pytest.raises(InputError, match="not so"):
        play(method=register("methods", "mine", Method, init=refuse)())


@pytest.mark.parametrize("groups", [3, {"a": torch.ones(1)}, {"a": {"b": 1.0}}])
def test_what_the_server_puts_is_groups(groups, own_names):
    def update(self, s, server, merged):
        s.per_client.put(0, groups)
        return server

    with pytest.raises(SlotError, match=r"s\.per_client\.put takes groups .*, in mine\.update"):
        play(method=register("methods", "mine", Method, update=update)())


def test_a_watch_of_two_arguments_is_refused():
    with pytest.raises(InputError, match=r"watch: .*<lambda> must take one argument, a round's row, got \(row, more\)"):
        play(watch=lambda row, more: None)


# ------------------------------------------------------------------------------------------------- networks


class Net(nn.Module):
    """A small network."""

    def __init__(self):
        super().__init__()
        self.hidden, self.fc, self.scale, self.seen = nn.Linear(64, 8), nn.Linear(8, 10), torch.ones(8), []

    def forward(self, x):
        return self.fc(self.look(x.flatten(1)) * self.scale)

    def look(self, x):
        return self.hidden(x).relu()


class Scales(Net):
    def look(self, x):
        if self.training:
            self.scale = self.scale * 0.9
        return super().look(x)


class ScalesInPlace(Net):
    def look(self, x):
        if self.training:
            self.scale.mul_(0.9)
        return super().look(x)


class Remembers(Net):
    def look(self, x):
        self.seen.append(len(x))
        return super().look(x)


class MakesCache(Net):
    def look(self, x):
        if not hasattr(self, "cache"):
            self.cache = torch.zeros(8)
        return super().look(x) + self.cache


class MakesParameter(Net):
    def look(self, x):
        if not hasattr(self, "gain"):
            self.gain = nn.Parameter(torch.ones(8))
        return super().look(x) * self.gain


class MakesBuffer(Net):
    def look(self, x):
        if not hasattr(self, "mean"):
            self.register_buffer("mean", torch.zeros(8))
        return super().look(x) - self.mean


class ChangesMany(Net):
    def forward(self, x):
        return super().forward(x.mul_(0.5) if len(x) > 3 else x)


class ChangesInTraining(Net):
    def forward(self, x):
        return super().forward(x.mul_(0.5) if self.training else x)


# -------------------------------------------------------------------------------------------------- plugins

HEAD = "from __future__ import annotations\nimport abc, sys\nfrom unskew import Method, param, registries\n"
CLASS = '@registries.methods.register("mine")\nclass Mine(Method{}):\n    "Mine."\n    {}\n'
FILES = {
    "annotation": (CLASS.format("", 'kind: Literal["a", "b"] = param(default="a", doc="kind")'),
                   r"Mine\.kind: its annotation \(Literal.*\) has the unknown name 'Literal'; import it"),
    "abstract": (CLASS.format(", abc.ABC", "@abc.abstractmethod\n    def _x(self): ..."), "Mine leaves _x abstract"),
    "exception of its own": ("class Mine(BaseException): pass\nraise Mine('no')",
                             r"cannot be imported: Mine: no \(line 5\)"),
    "no output": ("sys.stdout = None", r"sets sys\.stdout to None"),
    "no errors": ("sys.stderr = None", r"sets sys\.stderr to None"),
}  # fmt: skip
