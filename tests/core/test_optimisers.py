"""Optimisers of local training: against torch's own through the real loop, on every executor, and who refuses them."""

import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

import unskew
from awkward import DATA, QUICK, config, in_double, play, rows_without_times
from plugin_files import write, write_part
from small_runs import EVEN, SKEWED, equal, register, said, weights
from support import FixedData, gap, golden_task, initial_model, mark_slow, tiny_mlp
from unskew import tree
from unskew.base.errors import InputError, SlotError
from unskew.core.jobs import Job
from unskew.core.method import methods
from unskew.core.optimisers import Adam, Optimiser, optimisers
from unskew.core.tolerance import USUAL, find_tolerance
from unskew.executors.compiled import steps
from unskew.methods.catalogue import at_defaults
from unskew.methods.fedavg import FedAvg
from unskew.methods.momentum_steps import count_plain_steps
from unskew.runs import engine
from unskew.runs.config import Run, from_table, read_file

BATCHES = [{"x": [[1.0, -2.0, 0.5], [0.3, 0.1, 2.0]], "y": [0, 1]}, {"x": [[0.2, 1.5, -1.0]], "y": [1]}]
KINDS = {
    "sgd": ({"momentum": 0.9}, lambda p: torch.optim.SGD(p, lr=0.03, momentum=0.9)),
    "nesterov": ({"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
                 lambda p: torch.optim.SGD(p, lr=0.03, momentum=0.9, nesterov=True, weight_decay=0.1)),
    "adam": ({"optimiser": "adam(beta1=0.8, beta2=0.99, eps=1e-6)", "weight_decay": 0.1},
             lambda p: torch.optim.Adam(p, lr=0.03, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.1)),
    "adamw": ({"optimiser": "adamw(weight_decay=0.1)"}, lambda p: torch.optim.AdamW(p, lr=0.03, weight_decay=0.1)),
}  # fmt: skip
LOCAL = {"batch": 8, "epochs": 2, "lr": 0.01}


def local(**options):
    return from_table({"local": {"lr": 0.03, **options}}).local.settings()


def train_ours(steps, settings):
    """The parameters that a client sends after so many steps of the real local loop, and those it began with."""
    torch.manual_seed(0)
    dims = {"i": 3, "h": 4, "c": 2}
    names = {"body.fc1": "fc1", "head": "classifier"}
    first = {f"{names[n.rpartition('.')[0]]}.{n.rpartition('.')[2]}": v.tolist()
             for n, v in tiny_mlp(**dims).state_dict().items()}  # fmt: skip
    file = SimpleNamespace(inputs={"dims": dims, "params_global": first}, hyper={"lr": 0.03})
    data = FixedData((BATCHES * steps)[:steps], 2)
    task = replace(golden_task(FedAvg(), file, [data], [[0]]), local=settings)
    start = task.initial["model"]
    reply = task.work(Job("train", 1, 0, {"model": start, "buffers": {}}))
    return tree.add(start, reply.groups["delta"]), start


def train_torch(steps, start, make, norm):
    model = tiny_mlp(3, 4, 2)
    model.load_state_dict(start)
    optimiser = make(model.parameters())
    for batch in (BATCHES * steps)[:steps]:
        optimiser.zero_grad()
        x, y = torch.tensor(batch["x"], dtype=torch.float64), torch.tensor(batch["y"])
        F.cross_entropy(model.head(model.body(x)), y).backward()
        if norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), norm)
        optimiser.step()
    return model.state_dict()


@pytest.mark.parametrize("norm", [None, 0.2, 100.0])  # gradients are longer than 0.2, and shorter than 100
@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_torchs(kind, steps, norm):
    options, make = KINDS[kind]
    ours, start = train_ours(steps, local(**options, **({} if norm is None else {"clip": norm})))
    theirs = train_torch(steps, start, make, norm)
    torch.testing.assert_close(ours, dict(theirs), rtol=1e-9, atol=1e-9)


def test_a_long_gradient_is_clipped_and_a_short_one_is_not():
    plain, clipped, far = (train_ours(1, local(**more))[0] for more in ({}, {"clip": 0.2}, {"clip": 100.0}))
    start = train_ours(1, local())[1]
    assert tree.norm(tree.sub(clipped, start)).item() == pytest.approx(0.03 * 0.2, rel=1e-5)
    assert tree.norm(tree.sub(plain, start)) > 0.03 * 0.2 * 1.5
    assert all(torch.equal(plain[name], value) for name, value in far.items())


def test_a_clipped_gradient_that_overflows_in_single_precision_is_not_lost():
    from unskew.core.optimisers import clip

    assert clip({"a": torch.tensor([3e30, 4e30])}, 5.0)["a"].tolist() == pytest.approx([3, 4])
    assert clip({"a": torch.tensor([float("inf"), 1.0])}, 5.0)["a"].isnan().any()  # found as a client that diverged


# ------------------------------------------------------------------------------------------------ on every executor

MIXED = {**LOCAL, "lr": "cosine(0.01, warmup=1)", "optimiser": "adamw", "clip": 0.5}


def test_same_bits_on_serial_and_pool_and_after_resume(tmp_path):
    options = {"local": MIXED, "rounds": 3, "sample": 0.8}
    whole = play("fedavg", tmp_path / "whole", **options)
    pool = play("fedavg", execution={"executor": "pool", "workers": 2}, **options)
    assert equal(whole, pool) and rows_without_times(whole) == rows_without_times(pool)

    def stop(row):
        if row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.run(config("fedavg", **options), tmp_path / "stopped", watch=stop, dataset=DATA)
    resumed = engine.resume(tmp_path / "stopped", dataset=DATA)
    assert equal(whole, resumed) and rows_without_times(whole) == rows_without_times(resumed)


@pytest.mark.parametrize("more", [{"optimiser": "adam"}, {"momentum": 0.9, "nesterov": True}, {"clip": 0.1}])
def test_stacked_is_serial_up_to_rounding(more):
    """In double precision, where a fault would stay: clients of unequal length, each clipped by its own norm."""
    options = {"model": in_double("mlp"), "local": {**LOCAL, **more}}
    serial = play("fedavg", execution={"memory_format": "contiguous"}, **options)
    stacked = play("fedavg", execution={"executor": "stacked"}, **options)
    assert gap(stacked, serial, initial_model(serial.run, DATA)) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("more", [{"optimiser": "adam", "clip": 0.1}, {"momentum": 0.9, "nesterov": True}])
def test_compiled_steps_are_serial_up_to_rounding(more, caplog, monkeypatch):
    monkeypatch.setattr(steps, "UNROLL", 1)  # what takes long is to compile
    options = {"model": "mlp(hidden=[8])", "local": {**LOCAL, **more}, "rounds": 3}
    serial = play("fedavg", execution={"memory_format": "contiguous"}, **options)
    compiled = play("fedavg", execution={"executor": "stacked", "compile": True}, **options)
    assert gap(compiled, serial, initial_model(serial.run, DATA)) < USUAL
    assert "not compiled" not in said(caplog)


def test_auto_keeps_away_from_stacked_with_adam():
    assert find_tolerance(FedAvg(), (optimisers.build("adam"),)) == Adam.stacked_tolerance > USUAL
    assert find_tolerance(FedAvg(), (optimisers.build("sgd"),)) == USUAL


# ----------------------------------------------------------------------------------------- methods adapt or refuse


@pytest.mark.parametrize(
    ("method", "more", "line"),
    [
        ("scaffold", {"optimiser": "adam"}, r"scaffold does not go with local.optimiser = adam: its control is what"),
        ("scaffold", {"clip": 1.0}, r"scaffold does not go with local.clip = 1.0"),
        ("flfa(scaffold)", {"optimiser": "adamw"}, r"^scaffold does not go with local.optimiser = adamw"),
        ("ditto(fednova)", {"optimiser": "adam"}, r"^fednova does not go with local.optimiser = adam: a_k is"),
        ("perfedavg", {"optimiser": "adam"}, r"perfedavg does not go with local.optimiser = adam"),
        ("perfedavg", {"momentum": 0.5, "nesterov": True}, r"perfedavg does not go with local.nesterov = true"),
        ("perfedavg", {"clip": 1.0}, r"perfedavg does not go with local.clip"),
        ("fedavg", {"nesterov": True}, r"local.nesterov \(--nesterov\) changes momentum, and local.momentum"),
        ("fedavg", {"optimiser": "adam", "momentum": 0.9}, r"local.momentum \(--momentum\) = 0.9 belongs to sgd"),
        ("fedavg", {"optimiser": "adamw", "weight_decay": 0.1}, r"means nothing to adamw, whose own options are beta1"),
        ("fedavg", {"optimiser": "adma"}, r"unknown optimiser 'adma'; did you mean adam"),
        ("fedavg", {"optimiser": "adam(beta1=1)"}, r"adam.beta1: input should be less than 1, got 1"),
        ("fedavg", {"optimiser": "adam(eps=0)"}, r"adam.eps: input should be greater than 0, got 0"),
        ("fedavg", {"clip": -1}, r"local.clip: input should be greater than 0, got -1"),
    ],
)  # fmt: skip
def test_refused_in_one_line_before_the_run(method, more, line):
    with pytest.raises(InputError, match=line) as error:
        play(method, local={**LOCAL, **more})
    assert "\n" not in str(error.value)


def test_nesterovs_steps_by_hand():
    # m = 0.5, gradients of 1: v = 1, 1.5, 1.75; steps 1 + m v = 1.5, 1.75, 1.875
    counted = [count_plain_steps(torch.tensor(float(k), dtype=torch.float64), 0.5, True).item() for k in range(4)]
    assert counted == [0, 1.5, 3.25, 5.125]


@pytest.mark.parametrize("method", ["scaffold", "fednova"])
def test_methods_that_count_steps_adapt_to_nesterovs(method):
    """Under equal numbers of steps FedNova is FedAvg, and a first round of SCAFFOLD, too, whatever the momentum."""
    options = {"local": {"batch": 8, "steps": 3, "lr": 0.01, "momentum": 0.5, "nesterov": True}, "rounds": 1}
    ours, plain = (play(each, model="mlp", **options) for each in (method, "fedavg"))
    torch.testing.assert_close(ours.server["model"], plain.server["model"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", mark_slow(methods))
def test_no_method_ignores_the_optimiser_in_silence(method):
    made = QUICK.get(method) or str(at_defaults(method))
    if "local.optimiser" in methods.build(made).ignores:  # of which a line is said
        return
    results = []
    for more in ({}, {"optimiser": "adam"}):
        try:
            results.append(play(made, model="mlp(hidden=[4])", rounds=1, local={**LOCAL, **more}))
        except InputError as error:
            assert "local.optimiser = adam" in str(error)
            return
    assert not equal(*results) or rows_without_times(results[0]) != rows_without_times(results[1])


# ------------------------------------------------------------------------------------------- files, hashes, plugins


def test_text_and_toml_round_trip(tmp_path):
    run = from_table({"local": {"optimiser": "adam(beta1=0.8)", "clip": 2, "lr": "cosine(0.1, warmup=3)"}})
    (tmp_path / "run.toml").write_text(run.to_toml())
    again = from_table(read_file(tmp_path / "run.toml"))
    assert again == run and again.hash == run.hash
    assert (str(run.local.optimiser), run.local.clip) == ("adam(beta1=0.8)", 2.0)


def test_defaults_are_no_part_of_the_hash():
    given = {"optimiser": "sgd", "nesterov": False, "schedule": "constant"}
    assert from_table({"local": given}).hash == Run().hash == "9b8ab3473227"
    assert from_table({"evaluation": {"batch": 1000}}).hash == "c9677cc45591"  # as it was before a rule chose the batch
    others = [{"optimiser": "adam"}, {"optimiser": "adamw"}, {"nesterov": True}, {"clip": 1.0}]
    assert len({from_table({"local": other}).hash for other in others} | {Run().hash}) == 5


def test_a_plugins_optimiser_runs_everywhere(caplog):
    def step(self, params, grads, memory, settings):  # as long as a client's whole model is, so that lanes must not mix
        share = settings.lr / (tree.norm(grads) + 1e-6)
        return {name: params[name] - share * grad for name, grad in grads.items()}, memory

    register("optimisers", "test_unit", Optimiser, step=step)
    options = {"model": in_double("mlp"), "local": {**LOCAL, "optimiser": "test_unit"}}
    serial = play("fedavg", execution={"memory_format": "contiguous"}, **options)
    stacked = play("fedavg", execution={"executor": "stacked"}, **options)
    assert gap(stacked, serial, initial_model(serial.run, DATA)) < 1e-9
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_plugins_optimiser_that_returns_nonsense_is_one_line():
    register("optimisers", "test_none", Optimiser, step=lambda self, params, grads, memory, settings: params)
    with pytest.raises(SlotError, match=r"optimiser test_none.step must return two trees"):
        play("fedavg", local={**LOCAL, "optimiser": "test_none"})


@pytest.mark.parametrize("spoil", [lambda value: value.to("meta"), lambda value: value.to_sparse()])
def test_a_plugins_optimiser_that_returns_no_numbers_is_named(spoil):
    def step(self, params, grads, memory, settings):
        return {name: spoil(value) for name, value in params.items()}, memory

    register("optimisers", "test_no_numbers", Optimiser, step=step)
    with pytest.raises(SlotError, match=r"optimiser test_no_numbers.step must return '.*' as a tensor of shape"):
        play("fedavg", local={**LOCAL, "optimiser": "test_no_numbers"})


# ----------------------------------------------------------------------------- what a user's own remembers and declares

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
@pytest.mark.parametrize("rule", [HEAVY, ANCHORED, AHEAD], ids=["heavy ball", "anchored", "remembers its answer"])
def test_an_optimiser_remembers_the_parameters_of_then(name, rule, executor):
    plugin = write_part(name, "optimisers", "Optimiser", rule)
    found = [
        weights(unskew.run(optimiser=f"{name}(copies={kept})", plugin=plugin, executor=executor, **EVEN))
        for kept in ("true", "false")
    ]
    assert torch.equal(*found)


@pytest.mark.parametrize("executor", ["serial", "stacked"])
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("[p.mul_(1.5) for p in params.values()]; return {}", "must not change what it is given, and changed params"),
        ("return 3", "must return a tree, what it remembers, got"),
    ],
)
def test_what_an_optimiser_s_init_does_wrong_is_named(line, says, executor, name):
    plugin = write(name, f"@registries.optimisers.register('{name}')\nclass Mine(Optimiser):\n    '''x'''\n"
                   f"    def init(self, params):\n        {line}\n"
                   "    def step(self, params, grads, memory, settings):\n"
                   "        return {n: params[n] - settings.lr * g for n, g in grads.items()}, memory\n")  # fmt: skip
    with pytest.raises(SlotError, match=f"optimiser {name}.init {says}"):
        unskew.run(plugin=plugin, optimiser=name, executor=executor, **SKEWED)


@pytest.mark.parametrize("line", ["uses = ('momentun',)", "uses = 'momentum'", "stacked_tolerance = 'x'"])
def test_declarations_of_an_optimiser_that_do_nothing_are_refused(name, line):
    text = f"@registries.optimisers.register('{name}')\nclass Mine(Optimiser):\n    '''x'''\n    {line}\n"
    with pytest.raises(InputError, match=r"optimiser Mine: (uses must be a tuple|stacked_tolerance must be a number)"):
        unskew.run(plugin=write(name, text), optimiser=name, **SKEWED)
