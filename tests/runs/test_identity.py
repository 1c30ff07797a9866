"""What makes another run of the same options: values in modules, imports made late, data changed unseen."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

import unskew
from small_runs import SMALL, said

SCRIPT = """
import json, sys
import torch, unskew
from torch import nn
{imports}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.flat, self.hidden, self.fc = nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 10)

    def forward(self, x):
        {inside}
        return self.fc(torch.relu(self.hidden(self.flat(x)) * {factor}))

{before}
cell = unskew.compare(["fedavg"], model=Net(), head="fc", out="out", seeds=1, data="part(of=digits,train=200,test=50)",
                      clients=4, rounds=1, split="iid", local_test="none")[0]
print(json.dumps([cell.reused, cell.summary["loss"]]))
"""


def compare(folder, **parts):
    """Whether the cell was reused, its loss, and what was said."""
    (folder / "script.py").write_text(SCRIPT.format(**{"imports": "", "inside": "pass", "before": "", **parts}))
    done = subprocess.run([sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, check=True)
    reused, loss = json.loads(done.stdout.splitlines()[-1])
    return reused, loss, done.stderr


def test_a_value_that_a_script_sets_in_a_module_counts(tmp_path):
    (tmp_path / "config.py").write_text("ALPHA = 1.0\n")
    first = compare(tmp_path, imports="import config", factor="config.ALPHA")
    assert compare(tmp_path, imports="import config", factor="config.ALPHA")[:2] == (True, first[1])
    set_there = compare(tmp_path, imports="import config", factor="config.ALPHA", before="config.ALPHA = 3.0")
    assert not set_there[0] and set_there[1] != first[1]


def test_a_file_that_a_scripts_forward_imports_counts(tmp_path):
    (tmp_path / "own.py").write_text("def gain():\n    return 1.0\n")
    given = {"inside": "from own import gain", "factor": "gain()"}
    first = compare(tmp_path, **given)
    assert compare(tmp_path, **given)[:2] == (True, first[1])
    (tmp_path / "own.py").write_text("def gain():\n    return 3.0\n")
    edited = compare(tmp_path, **given)
    assert not edited[0] and edited[1] != first[1]


def test_a_file_that_forward_imports_by_a_made_up_name_is_said(tmp_path):
    (tmp_path / "own.py").write_text("def gain():\n    return 1.0\n")
    name = "__import__('o' + 'wn')"
    _, _, said = compare(tmp_path, factor=f"{name}.gain()")
    assert "own.py was loaded during the run and is no part of its recorded code" in said


def test_a_default_of_a_pydantic_model_counts(tmp_path):
    given = "import pydantic\nclass Settings(pydantic.BaseModel):\n    k: float = {}"
    first = compare(tmp_path, imports=given.format(1.0), factor="Settings().k")
    assert compare(tmp_path, imports=given.format(1.0), factor="Settings().k")[:2] == (True, first[1])
    assert not compare(tmp_path, imports=given.format(3.0), factor="Settings().k")[0]


# -------------------------------------------------------------------------------------------------- code loaded by name

PLUGIN = """
import importlib
from unskew import Method, registries, tree

@registries.methods.register("test_by_name_{name}")
class ByName(Method):
    "Loads a helper by a name made up at run time."
    def {slot}:
        factor = importlib.import_module("loaded" + "_helper_{name}").factor()
        return {result}
"""
SLOTS = {
    "server": ("update(self, s, server, merged)",
               'super().update(s, server, {**merged, "delta": tree.scale(merged["delta"], factor)})'),
    "client": ("train(self, c, params)", "tree.scale(super().train(c, params), factor)"),
}  # fmt: skip


@pytest.mark.parametrize("executor", ["serial", "pool"])
@pytest.mark.parametrize("side", SLOTS)
def test_a_module_that_is_loaded_by_name_is_said(tmp_path, monkeypatch, caplog, side, executor, own_names):
    name = f"{side}_{executor}"
    slot, result = SLOTS[side]
    (tmp_path / "plug.py").write_text(
        PLUGIN.replace("{name}", name).replace("{slot}", slot).replace("{result}", result)
    )
    (tmp_path / f"loaded_helper_{name}.py").write_text("def factor():\n    return 0.5\n")
    monkeypatch.syspath_prepend(tmp_path)
    unskew.run(
        **{**SMALL, "plugins": [str(tmp_path / "plug.py")], "method": f"test_by_name_{name}", "executor": executor}
    )
    assert f"loaded_helper_{name}.py was loaded during the run and is no part of its recorded code" in said(caplog)


# ----------------------------------------------------------------------------------------------------------------- data

PLAIN = {"clients": 4, "rounds": 2, "split": "iid", "local_test": "none", "model": "mlp(hidden=[8])"}


@pytest.mark.parametrize("how", ["data", "numpy", "inference mode", "torch"])
def test_data_that_were_changed_in_any_way_are_other_data(tmp_path, how):
    array = np.random.default_rng(0).normal(size=(300, 6)).astype(np.float32)
    x = torch.from_numpy(array)
    y = x.argmax(1)
    parts = unskew.Samples(x[:240], y[:240]), unskew.Samples(x[240:], y[240:])
    data = unskew.Dataset("made", *parts, classes=tuple("abcdef"), mean=(0.0,), std=(1.0,))

    def compare_cell():
        return unskew.compare(["fedavg"], seeds=1, out=tmp_path, data=data, **PLAIN)[0]

    first = compare_cell()
    assert compare_cell().reused
    if how == "data":
        data.train.x.data.mul_(3)
    elif how == "numpy":
        array *= 3
    elif how == "inference mode":
        with torch.inference_mode():
            data.train.x.mul_(3)
    else:
        data.train.x.mul_(3)
    changed = compare_cell()
    assert not changed.reused and changed.summary["loss"] != first.summary["loss"]
