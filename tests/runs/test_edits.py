"""Edits as a Python program meets them: plugins, scripts and modules that change while it runs."""

import time
from pathlib import Path

import pytest
import torch
from torch import nn

import unskew
from awkward import DATA
from plugin_files import write
from small_runs import SKEWED
from unskew.base.errors import InputError
from unskew.runs import building, engine
from unskew.runs.config import from_table, read_file
from unskew.runs.folder import RunFolder

OPTIONS = {"model": "mlp", "split": "iid", "clients": 4, "rounds": 2}
PLUGIN = """
from unskew import Method, registries

@registries.methods.register("edits_mine")
class Mine(Method):
    "Mine."
    def weight(self, c, params):
        return {weight}
"""

pytestmark = pytest.mark.usefixtures("own_names")


@pytest.fixture(autouse=True)
def in_own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(PLUGIN.format(weight="1.0 + 0 * c.num_samples"))


def test_a_plugin_edited_in_a_long_process_is_used_as_it_is_now():
    options = {**OPTIONS, "split": "dirichlet:0.3", "plugins": ["mine.py"]}
    first = unskew.run("edits_mine", **options)
    Path("mine.py").write_text(PLUGIN.format(weight="1.0 + 9 * c.num_samples"))
    second = unskew.run("edits_mine", **options)
    assert first.run.hash != second.run.hash
    assert not torch.equal(first.server["model"]["head.weight"], second.server["model"]["head.weight"])
    again = unskew.run("edits_mine", **options)
    assert again.run.hash == second.run.hash
    assert torch.equal(again.server["model"]["head.weight"], second.server["model"]["head.weight"])


def test_plugins_are_files_or_modules():
    with pytest.raises(InputError, match="plugins: expected a Python file or module, or a list of them, got 3"):
        unskew.run(plugins=3)


def define(factor):
    """A class as a script or notebook defines it."""
    space = {"__name__": "__main__", "unskew": unskew}
    exec(
        f"factor = {factor}\nclass Mine(unskew.Method):\n    'Mine.'\n"
        "    def weight(self, c, params):\n        return factor * c.num_samples ** factor\n",
        space,
    )
    return space["Mine"]()


def test_a_class_of_a_script_that_changed_is_another_run(tmp_path):
    def reused(method):
        return [cell.reused for cell in unskew.compare(["fedavg", method], seeds=1, out="c", **OPTIONS)]

    assert reused(define(1)) == [False, False]
    assert reused(define(1)) == [True, True]
    assert reused(define(2)) == [True, False]
    assert [cell.reused for cell in unskew.compare([define(1), "fedavg"], seeds=2, out="c", **OPTIONS)] == [
        True, True, False, False,
    ]  # fmt: skip


def test_a_class_of_the_users_own_module_that_changed_is_another_run(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"edits_{time.monotonic_ns()}"
    Path(f"{name}.py").write_text(PLUGIN.format(weight="1.0"))
    module = __import__(name)
    one = unskew.run(module.Mine(), **OPTIONS).run
    assert list(one.code) == [f"{name}.py"]
    assert one.hash == unskew.run(module.Mine(), **OPTIONS).run.hash


def test_a_network_handed_over_counts_with_its_code(tmp_path):
    def network(forward):
        space = {"__name__": "__main__", "nn": nn}
        exec(
            "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            f"        self.fc = nn.Linear(64, 10)\n    def forward(self, x):\n        return self.fc({forward})\n",
            space,
        )
        torch.manual_seed(0)
        return space["Net"]()

    options = {**OPTIONS, "head": "fc"}
    one = unskew.run(**{**options, "model": network("x.flatten(1)")}, out="run").run
    assert one.hash == unskew.run(**{**options, "model": network("x.flatten(1)")}).run.hash
    other = network("2 * x.flatten(1)")
    assert one.hash != unskew.run(**{**options, "model": other}).run.hash
    Path("run/summary.json").unlink()
    with pytest.raises(InputError, match=r"the code in __main__\.Net changed since the run was begun"):
        unskew.resume("run", model=other, head="fc")
    with pytest.raises(InputError, match="hand over the module it began with"):
        unskew.resume("run", model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), head="1")
    unskew.resume("run", model=network("x.flatten(1)"), head="fc")


def test_accepting_in_python(tmp_path):
    def stop(row):
        if row["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        unskew.run("edits_mine", out="run", watch=stop, plugins=["mine.py"], **OPTIONS)
    Path("mine.py").write_text(PLUGIN.format(weight="2.0"))
    result = unskew.resume("run", accept_changed_code=True)
    assert [change["round"] for change in result.summary["code_changes"]] == [1]
    assert read_file(Path("run/run.toml"))["code"] == result.run.code == result.summary["code"]
    assert RunFolder.open(Path("run"))[1].hash == result.run.hash == result.summary["run"]


def test_data_changed_in_place_are_other_data(tmp_path):
    given = unskew.Dataset(
        "own", unskew.Samples(DATA.train.x.clone(), DATA.train.y), DATA.test, DATA.classes, DATA.mean, DATA.std
    )
    one = unskew.run(data=given, split="iid", clients=2, rounds=1, out="run").run.hash
    given.train.x[5] += 1
    assert unskew.run(data=given, split="iid", clients=2, rounds=1).run.hash != one
    Path("run/summary.json").unlink()
    with pytest.raises(InputError, match="was made for other data"):
        unskew.resume("run", data=given)


def test_finding_code_takes_no_time():
    run = building.prepare(from_table({"method": "flfa(fedsol(fedprox))"})).config
    began = time.perf_counter()
    for _ in range(100):
        run.find_code()
    assert time.perf_counter() - began < 1  # 1 ms; below 10


def test_an_interrupted_change_of_code_can_be_resumed(tmp_path, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        unskew.run("edits_mine", out="run", watch=_stop, plugins=["mine.py"], checkpoint_every=1, **OPTIONS)
    Path("mine.py").write_text(PLUGIN.format(weight="2.0"))
    with monkeypatch.context() as patch:
        patch.setattr(engine.checkpoint, "save", _interrupt)  # after run.toml is written, before a checkpoint is
        with pytest.raises(KeyboardInterrupt):
            unskew.resume("run", accept_changed_code=True)
    assert unskew.resume("run").summary["rounds"] == 2


def _stop(row):
    if row["round"] == 1:
        raise KeyboardInterrupt


def _interrupt(*_):
    raise KeyboardInterrupt


def begin(text, name="mine.py", **options):
    """A run of this plugin that is stopped after its first round."""
    Path(name).write_text(text)

    def stop(row):
        if row["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        unskew.run(**{**OPTIONS, "method": "edits_mine", "out": "run", "plugins": [name], "watch": stop, **options})


def test_accepted_code_that_fails_at_once_was_never_the_runs():
    begin(PLUGIN.format(weight="1.0"))
    before = Path("run/run.toml").read_text()
    Path("mine.py").write_text(PLUGIN.format(weight="c.state['nosuch']"))
    with pytest.raises(unskew.ClientError):
        unskew.resume("run", accept_changed_code=True)
    assert Path("run/run.toml").read_text() == before
    Path("mine.py").write_text(PLUGIN.format(weight="1.0"))
    result = unskew.resume("run")
    assert "code_changes" not in result.summary


OPTION = PLUGIN.replace("    def weight", "    mu: float = {default}\n    def weight")


def test_an_option_that_the_code_has_gained():
    begin(PLUGIN.format(weight="1.0"))
    Path("mine.py").write_text(OPTION.format(weight="1.0 + self.mu", default=0.5))
    with pytest.raises(InputError, match=r"edits_mine.mu is new .*--accept-changed-code"):
        unskew.resume("run")
    result = unskew.resume("run", accept_changed_code=True)
    assert result.run.method.mu == 0.5
    assert [change["round"] for change in result.summary["code_changes"]] == [1]
    assert unskew.resume("run").accuracy == result.accuracy


def test_an_option_that_the_code_has_gained_can_be_accepted_and_cut_off():
    begin(PLUGIN.format(weight="1.0"), rounds=3)

    def stop(row):
        if row["round"] == 2:
            raise KeyboardInterrupt

    Path("mine.py").write_text(OPTION.format(weight="1.0 + self.mu", default=0.5))
    with pytest.raises(KeyboardInterrupt):
        unskew.resume("run", accept_changed_code=True, watch=stop)
    assert unskew.resume("run").summary["rounds"] == 3


def test_an_option_that_the_code_has_lost():
    begin(OPTION.format(weight="1.0", default=0.5))
    Path("mine.py").write_text(PLUGIN.format(weight="1.0"))
    for accept in (False, True):
        with pytest.raises(InputError, match=r"has no argument 'mu'; .*run.toml is of the code that the run was begun"):
            unskew.resume("run", accept_changed_code=accept)


def test_an_edited_option_is_not_taken_for_changed_code():
    begin(OPTION.format(weight="1.0", default=0.5))
    file = Path("run/run.toml")
    file.write_text(file.read_text().replace("mu = 0.5", "mu = 0.6"))
    with pytest.raises(InputError, match="was edited"):
        unskew.resume("run", accept_changed_code=True)


NET = """
from torch import nn

def net(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, {width}), nn.Linear({width}, classes))
"""


def test_a_network_of_another_width_does_not_fit_a_checkpoint():
    begin(NET.format(width=8), "net.py", method="fedavg", model="python('net.py:net', head='2')", plugins=[])
    Path("net.py").write_text(NET.format(width=9))
    before = Path("run/run.toml").read_text()
    with pytest.raises(InputError, match=r"'body.1.bias' of shape \[8\].*now has \[9\]; restore"):
        unskew.resume("run", accept_changed_code=True)
    assert Path("run/run.toml").read_text() == before


# ------------------------------------------------------------------------------------------------------------- measures


def test_an_edited_measure_makes_a_new_cell_and_is_not_mixed_with_the_old_one(name):
    def put(value):
        return write(name, f"@registries.measures.register('{name}')\nclass Mine(Measure):\n    '''x'''\n"
                     f"    def figures(self, look): return {{'mine': {value}}}\n")  # fmt: skip

    options = {**SKEWED, "plugin": put(1.0), "measure": name}
    unskew.run(out="a", **options)
    assert unskew.compare("fedavg", seeds=1, out="c", **options)[0].summary["measures"] == {"mine": 1.0}
    put(2.0)
    cell = unskew.compare("fedavg", seeds=1, out="c", **options)[0]
    assert (cell.summary["measures"], cell.reused) == ({"mine": 2.0}, False)
    with pytest.raises(InputError, match=rf"the code in {name}.py changed since the run was begun"):
        unskew.extend("a", 4)
