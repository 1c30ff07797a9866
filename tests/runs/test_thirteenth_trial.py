"""What a thirteenth trial as a new user would make it found: settings in modules, late imports, data changed unseen."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

import unskew

SMALL = {"clients": 4, "rounds": 2, "split": "iid", "local_test": "none", "model": "mlp(hidden=[8])"}

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


@pytest.mark.parametrize("how", ["data", "numpy", "inference mode", "torch"])
def test_data_that_were_changed_in_any_way_are_other_data(tmp_path, how):
    array = np.random.default_rng(0).normal(size=(300, 6)).astype(np.float32)
    x = torch.from_numpy(array)
    y = x.argmax(1)
    parts = unskew.Samples(x[:240], y[:240]), unskew.Samples(x[240:], y[240:])
    data = unskew.Dataset("made", *parts, classes=tuple("abcdef"), mean=(0.0,), std=(1.0,))

    def play():
        return unskew.compare(["fedavg"], seeds=1, out=tmp_path, data=data, **SMALL)[0]

    first = play()
    assert play().reused
    if how == "data":
        data.train.x.data.mul_(3)
    elif how == "numpy":
        array *= 3
    elif how == "inference mode":
        with torch.inference_mode():
            data.train.x.mul_(3)
    else:
        data.train.x.mul_(3)
    changed = play()
    assert not changed.reused and changed.summary["loss"] != first.summary["loss"]


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
    unskew.run("unseeded", plugin=str(tmp_path / "unseeded.py"), **SMALL)
    assert "train (unseeded.py, line 7) makes a random generator without a seed" in caplog.text
