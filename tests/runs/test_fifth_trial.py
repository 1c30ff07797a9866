"""What a fifth trial by a newcomer found: how data are read, options that do nothing, code that is loaded by name."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import unskew
from small_runs import SMALL, play, said
from unskew.base import once
from unskew.base.errors import InputError
from unskew.cli import main


def call(capsys, *words):
    """Exit code, standard output, standard error."""
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


# ---------------------------------------------------------------------------------------------- data

RNG = np.random.RandomState(0)
FLAT, LABELS = RNG.randint(256, size=(60, 64)).astype(np.uint8), np.arange(60) % 3


def make(x):
    parts = unskew.Samples(x[:40], LABELS[:40]), unskew.Samples(x[40:], LABELS[40:])
    return unskew.Dataset("mine", *parts, classes=("a", "b", "c"), mean=(0.5,), std=(0.5,))


# ------------------------------------------------------------------------------- options that do nothing


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"method": "fedaf(ipc=1, steps=1, server_epochs=1)", "lr": 0.3, "momentum": 0.9},
         "fedaf does not use local.batch, local.lr, local.momentum, which the run sets"),
        ({"method": "local(epochs=1)", "epochs": 3}, "local does not use local.epochs"),
        ({"method": "fedbn", "model": "cnn8(norm=batch)", "buffers": "reset"}, "local.buffers = reset does nothing"),
        ({"buffers": "local"}, "local.buffers = local does nothing: the network keeps no statistics"),
        ({"clients_every": 1, "local_test": "none"}, "evaluation.clients_every does nothing with local_test = none"),
    ],
)  # fmt: skip
def test_an_option_that_does_nothing_is_said(options, line, caplog):
    once.warn_once.cache_clear()  # said once in a process
    play(**{**options, "seed": 77})
    assert line in said(caplog)


def test_what_a_method_ignores_must_be_a_setting():
    @unskew.registries.methods.register("test_fifth_ignores")
    class Ignores(unskew.Method):
        """Names what no run has."""

        ignores = ("local.rate",)

    with pytest.raises(InputError, match=r"ignores names 'local.rate', which no run has"):
        play(method="test_fifth_ignores")


def test_a_wire_of_a_method_that_sends_nothing_is_refused():
    with pytest.raises(InputError, match="local sends nothing that clip could touch"):
        play(method="local(epochs=1)", wire="clip(norm=0.001)")


# ----------------------------------------------------------------------------------- code loaded by name

PLUGIN = """
import importlib
from unskew import Method, registries, tree

@registries.methods.register("test_fifth_{name}")
class ByName(Method):
    "Loads a helper by a name made up at run time."
    def {slot}:
        factor = importlib.import_module("fifth" + "_helper_{name}").factor()
        return {result}
"""
SLOTS = {
    "server": ("update(self, s, server, merged)",
               'super().update(s, server, {**merged, "delta": tree.scale(merged["delta"], factor)})'),
    "client": ("train(self, c, params)", "tree.scale(super().train(c, params), factor)"),
}  # fmt: skip


@pytest.mark.parametrize("executor", ["serial", "pool"])
@pytest.mark.parametrize("side", SLOTS)
def test_a_module_that_is_loaded_by_name_is_said(tmp_path, monkeypatch, caplog, side, executor):
    name = f"{side}_{executor}"
    slot, result = SLOTS[side]
    (tmp_path / "plug.py").write_text(
        PLUGIN.replace("{name}", name).replace("{slot}", slot).replace("{result}", result)
    )
    (tmp_path / f"fifth_helper_{name}.py").write_text("def factor():\n    return 0.5\n")
    monkeypatch.syspath_prepend(tmp_path)
    unskew.run(
        **{**SMALL, "plugins": [str(tmp_path / "plug.py")], "method": f"test_fifth_{name}", "executor": executor}
    )
    assert f"fifth_helper_{name}.py was loaded during the run and is no part of its recorded code" in said(caplog)


# ------------------------------------------------------------------------------------------- networks


class StochasticDepth(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.fc = nn.Linear(64, 8), nn.Linear(8, 8), nn.Linear(8, 10)

    def forward(self, x):
        hidden = self.first(x.flatten(1)).relu()
        if not self.training or torch.rand(()) < 0.3:
            hidden = hidden + self.second(hidden).relu()
        return self.fc(hidden)


class Unused(StochasticDepth):
    def forward(self, x):
        return self.fc(self.first(x.flatten(1)).relu())


# --------------------------------------------------------------------------------- files and reproductions


@pytest.mark.parametrize(("key", "value"), [("method", "fedavg"), ("seed", 5), ("model", "cnn8")])
def test_a_summary_that_was_edited_is_refused(tmp_path, key, value):
    play(method="scaffold", out=tmp_path / "run")
    path = tmp_path / "run/summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(InputError, match=f"says {key} {value}, but run.toml|summary.json was edited"):
        unskew.resume(tmp_path / "run")


@pytest.fixture
def queue(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UNSKEW_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "queue.txt"
