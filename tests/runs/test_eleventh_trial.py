"""What the ninth trial by a new user found in schedules, optimisers, measures, forks and threads, each as a test."""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path

import pytest
import torch

import unskew
from unskew.base.errors import InputError, SlotError
from unskew.runs import api

TINY = {
    "clients": 4,
    "rounds": 2,
    "steps": 2,
    "model": "mlp",
    "split": "dirichlet:0.5",
    "local_test": "none",
    "lr": 0.1,
}
HEAD = (
    "import dataclasses, random, time, torch\nimport numpy as np\nfrom unskew import *\nfrom unskew import registries\n"
)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch, own_names):
    monkeypatch.chdir(tmp_path)


def write(name, text):
    """A plugin file; its name."""
    Path(f"{name}.py").write_text(HEAD + text)
    return f"{name}.py"


_numbers = itertools.count()


@pytest.fixture
def name():
    """A new one, as a process knows each plugin once."""
    return f"eleven_{next(_numbers)}"


def schedule(name, *lines):
    """A plugin with a schedule of this name."""
    body = "\n".join(f"    {line}" for line in lines)
    return write(name, f"@registries.schedules.register('{name}')\nclass Mine(Schedule):\n    '''Mine.'''\n{body}\n")


def method(name, *lines):
    body = "\n".join(f"    {line}" for line in lines)
    return write(name, f"@registries.methods.register('{name}')\nclass Mine(Method):\n    '''Mine.'''\n{body}\n")


def weights(result):
    return torch.cat([value.flatten() for value in result.server["model"].values()])


def test_another_thread_that_seeds_torch_changes_nothing():
    known, stop = weights(unskew.run("fedavg", **TINY)), threading.Event()

    def seed():
        while not stop.is_set():
            torch.manual_seed(3)
            stop.wait(0.0005)

    thread = threading.Thread(target=seed)
    thread.start()
    try:
        found = [weights(unskew.run("fedavg", **TINY)) for _ in range(3)]
    finally:
        stop.set()
        thread.join()
    assert all(torch.equal(each, known) for each in found)


def test_a_network_may_still_seed_torch_itself(name):
    lines = ["from torch import nn", "def net(shape, num_classes):", "    torch.manual_seed(7)",
             "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))"]  # fmt: skip
    write(name, "\n".join(lines) + "\n")
    options = {**TINY, "model": f'python("{name}.py:net", head="1")', "rounds": 1, "lr": 1e-12}
    one, other = (weights(unskew.run("fedavg", seed=seed, **options)) for seed in (0, 1))
    assert torch.allclose(one, other, atol=1e-6)


def test_an_edited_measure_makes_a_new_cell_and_is_not_mixed_with_the_old_one(name):
    def put(value):
        return write(name, f"@registries.measures.register('{name}')\nclass Mine(Measure):\n    '''x'''\n"
                     f"    def figures(self, look): return {{'eleven': {value}}}\n")  # fmt: skip

    options = {**TINY, "plugin": put(1.0), "measure": name}
    unskew.run(out="a", **options)
    assert unskew.compare("fedavg", seeds=1, out="c", **options)[0].summary["measures"] == {"eleven": 1.0}
    put(2.0)
    cell = unskew.compare("fedavg", seeds=1, out="c", **options)[0]
    assert (cell.summary["measures"], cell.reused) == ({"eleven": 2.0}, False)
    with pytest.raises(InputError, match=rf"the code in {name}.py changed since the run was begun"):
        unskew.extend("a", 4)


@pytest.mark.parametrize("executor", ["serial", "pool"])
def test_a_forked_child_cannot_go_on_with_the_run(executor, capfd):
    options = {**TINY, "rounds": 3, "executor": executor}
    known, parent, forked = weights(unskew.run("scaffold", **options)), os.getpid(), []

    def watch(row):
        if row["round"] == 1 and not forked:
            forked.append(os.fork())

    code = 0
    try:
        found = unskew.run("scaffold", watch=watch, out="forked", **options)
    except SlotError as error:
        code = 7 if "this process was forked in round 1" in str(error) else 8
    finally:
        if os.getpid() != parent:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(forked[0], 0)[1]) == 7
    assert torch.equal(weights(found), known)
    assert [row["round"] for row in unskew.open("forked").rounds] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["remodel = lambda self, model, num_classes: 1 / 0"], "ZeroDivisionError: division by zero .*{name}.py"),
        (["@property", "def output(self): raise ValueError('boom')"], "ValueError: boom, in {name}.output"),
        (["def code_used(self): raise ValueError('boom')"], "ValueError: boom, in {name}.code_used"),
    ],
)
def test_what_fails_before_the_rounds_is_one_line_too(lines, says, name):
    with pytest.raises(SlotError, match="your own code failed: " + says.format(name=name)):
        unskew.run(name, plugin=method(name, *lines), **TINY)


def test_code_used_that_gives_no_tuple_is_refused(name):
    plugin = method(name, "def code_used(self): return 3")
    with pytest.raises(InputError, match=rf"{name}.code_used must return a tuple of modules, classes and functions"):
        unskew.run(name, plugin=plugin, **TINY)


def test_an_unknown_metric_of_tune_is_named():
    with pytest.raises(InputError, match=r"there is no metric 'x'; known: last, last_k"):
        api.tune("fedavg", {"lr": [0.1, 0.2]}, metric="x", out="t", seeds=1, **TINY)


@pytest.mark.parametrize("executor", ["serial", "pool"])
def test_weigh_that_changes_the_initial_model_is_named(name, executor):
    plugin = method(name, "def weigh(self, s, replies):", "    s.initial['model']['head.weight'].mul_(1.5)",
                    "    return [reply.weight for reply in replies]")  # fmt: skip
    with pytest.raises(SlotError, match=rf"{name}.weigh .*s.initial"):
        unskew.run(name, plugin=plugin, executor=executor, **TINY)


def test_an_unfinished_run_that_was_edited_says_so_when_it_is_shown():
    unskew.run(out="a", **TINY)
    Path("a/summary.json").unlink()
    text = Path("a/run.toml").read_text()
    Path("a/run.toml").write_text(text.replace("lr = 0.1", "lr = 0.2"))
    with pytest.raises(InputError, match=r"run.toml was edited"):
        _ = unskew.open("a").about
