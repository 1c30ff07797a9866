"""The Python interface: whatever the command line refuses is one line here, too, and nothing is written."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import unskew
from awkward import tiny_data
from cli.calling import contents
from small_runs import FEW, SMALL, refused
from unskew.base.errors import InputError
from unskew.core.observer import Observer
from unskew.data.partition.splits import splits
from unskew.methods.fedprox import FedProx
from unskew.report.files import check_place
from unskew.runs.config import from_table

NAN = float("nan")


class MyNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.flat, self.fc = nn.Flatten(), nn.Linear(64, 10)

    def forward(self, x):
        return self.fc(self.flat(x))


def run(**options):
    return lambda out: unskew.run(**{"clients": 2, "rounds": 1, "out": out, **options})


def compare(*methods, **options):
    return lambda out: unskew.compare(*methods, **{"clients": 2, "rounds": 1, "seeds": 1, "out": out, **options})


def resume(*folder, **options):
    return lambda out: unskew.resume(*folder, **options)


BAD = {
    "a class as model": (run(model=MyNet), "model: expected an object, got the class MyNet; write MyNet()"),
    "a head without model": (run(head="fc"), "leave head out"),
    "a head of a named model": (run(model="cnn8", head="fc"), "python('net.py:Net', head=fc)"),
    "a head of a Model": (run(model=unskew.split_head(MyNet(), "fc"), head="fc"), "leave head out"),
    "a head that is none": (run(model=MyNet(), head=3), "head: expected the name of the module's last layer"),
    "an unknown head": (run(model=MyNet(), head="last"), "has no layer 'last'"),
    "no head": (run(model=MyNet()), "needs its last layer's name"),
    "a number as model": (run(model=3), "model: expected a name such as"),
    "a list as model": (run(model=[MyNet()]), "model: expected a name such as"),
    "no data": (run(data=None), "data: expected a name such as"),
    "a tuple as data": (run(data=(torch.rand(4, 2), torch.zeros(4))), "made of Samples(x, y)"),
    "an array as data": (run(data=np.zeros((4, 2))), "data: expected a name such as"),
    "unknown data": (run(data="digit"), "did you mean digits"),
    "a path as data": (run(data=Path("nosuch")), "unknown data set 'nosuch'"),
    "no method": (run(method=None), "method: expected a name such as"),
    "a class as method": (run(method=FedProx), "got the class FedProx; write FedProx()"),
    "an object as method": (run(method=object()), "method: expected a name such as"),
    "an unknown method": (run(method="fedavgg"), "did you mean fedavg"),
    "a method with a wrong value": (run(method="fedprox(mu=-1)"), "fedprox.mu"),
    "a number as watch": (run(watch=3), "watch: expected a function"),
    "a class as watch": (run(watch=Observer), "an object, not its class"),
    "a number as out": (run(out=3), "out: expected a folder's path, got 3 (int)"),
    "empty out": (run(out=""), "out: expected a folder's path"),
    "a list as out": (run(out=["runs"]), "out: expected a folder's path"),
    "a number as data_dir": (run(data_dir=3), "data_dir: expected a folder's path"),
    "a list as data_dir": (run(data_dir=["a"]), "data_dir: expected a folder's path"),
    "clients in words": (run(clients="ten"), "run.clients (--clients): input should be a whole number"),
    "no clients": (run(clients=0), "run.clients (--clients): input should be greater than or equal to 1"),
    "lr nan": (run(lr=NAN), "local.lr (--lr): input should be a finite number"),
    "lr none": (run(lr=None), "local.lr (--lr): input should be a number"),
    "lr negative": (run(lr=-0.1), "local.lr (--lr): input should be greater than 0"),
    "lr a list": (run(lr=[0.1]), "local.lr (--lr): input should be a number"),
    "lr a tensor": (run(lr=torch.rand(2)), "local.lr"),
    "half a round": (run(rounds=2.5), "run.rounds (--rounds): input should be a whole number"),
    "true rounds": (run(rounds=True), "run.rounds (--rounds): input should be a number, got true"),
    "no rounds": (run(rounds=0), "run.rounds (--rounds)"),
    "rounds of numpy": (run(rounds=np.int64(0)), "run.rounds (--rounds)"),
    "true sample": (run(sample=True), "run.sample (--sample): input should be a number"),
    "compile in words": (run(compile="yes"), "execution.compile (--compile): input should be true or false"),
    "a number as split": (run(split=0.1), "split (--split): expected a name such as"),
    "a number as executor": (run(executor=3), "execution.executor (--executor)"),
    "an unknown executor": (run(executor="dask"), "execution.executor (--executor)"),
    "an unknown device": (run(device="tpu"), "tpu"),
    "a number as measure": (run(measure=3), "measure (--measure): expected names such as"),
    "an unknown measure": (run(measure="drifft"), "did you mean drift"),
    "a number as wire": (run(wire=3), "wire (--wire): expected names such as"),
    "an unknown option": (run(client=3), "there is no option 'client'; did you mean clients"),
    "another unknown option": (run(metric="last"), "there is no option 'metric'"),
    "an unknown path": (run(**{"local.lrr": 1}), "local has no option 'lrr'; did you mean lr"),
    "an unknown section": (run(**{"locl.lr": 1}), "there is no option 'locl.lr'"),
    "a path into a value": (run(**{"rounds.more": 1, "rounds": 2}), "rounds"),
    "an unknown argument": (run(method="fedprox", **{"method.my": 1}), "fedprox has no argument 'my'"),
    "an absent plugin": (run(plugin="nosuch.py"), "plugin nosuch.py: there is no such file"),
    "a number as plugin": (run(plugin=3), "plugin: expected a Python file or module"),
    "numbers as plugins": (run(plugins=[3]), "plugins: expected a Python file or module"),
    "a zero in init": (run(init="a\0b"), "init (--init): expected a .safetensors file, got"),
    "no methods": (compare([]), "--methods names no method; give some"),
    "empty methods": (compare(""), "--methods names no method; give some"),
    "no method list": (compare(None), "--methods expects a list such as"),
    "a method alone": (compare(FedProx()), "--methods expects a list such as"),
    "a class among methods": (compare(["fedavg", FedProx]), "write FedProx()"),
    "a number among methods": (compare(["fedavg", 3]), "method: expected a name such as"),
    "an unknown method in text": (compare("fedavg,fedproxx"), "did you mean fedprox"),
    "a method twice": (compare("fedavg,fedavg"), "'fedavg' is named twice"),
    "a seed twice": (compare("fedavg", seeds=[0, 0]), "--seeds expects different numbers from 0 up, got [0, 0]"),
    "negative seeds": (compare("fedavg", seeds=-1), "--seeds expects at least 1 seed, got -1"),
    "a negative seed": (compare("fedavg", seeds=[-1]), "--seeds expects different numbers"),
    "zero seeds": (compare("fedavg", seeds=0), "--seeds expects at least 1 seed"),
    "true seeds": (compare("fedavg", seeds=True), "--seeds expects a number such as 3"),
    "half a seed": (compare("fedavg", seeds=[1.5]), "--seeds expects a number such as 3"),
    "seeds in words": (compare("fedavg", seeds="few"), "--seeds expects a number such as 3"),
    "seeds none": (compare("fedavg", seeds=None), "--seeds expects a number such as 3"),
    "seeds empty": (compare("fedavg", seeds=[]), "--seeds expects different numbers"),
    "a huge seed": (compare("fedavg", seeds=[2**70]), "run.seed: input should be less than"),
    "a seed in a comparison": (compare("fedavg", seed=3), "name the seeds with seeds=[...]"),
    "a method in a comparison": (compare("fedavg", **{"method.mu": 3}), "name the methods with methods=[...]"),
    "a number as out of a comparison": (compare("fedavg", out=3), "out: expected a folder's path"),
    "a class as model of a comparison": (compare("fedavg", model=MyNet), "write MyNet()"),
    "no data of a comparison": (compare("fedavg", data=None), "data: expected a name"),
    "a number as folder": (resume(3), "folder: expected a folder's path"),
    "an absent folder": (resume("nosuch"), "nosuch"),
    "text as data again": (resume("run", data="digits"), "expected the unskew.Dataset that the run began with"),
    "text as model again": (resume("run", model="cnn8"), "expected the nn.Module that the run began with"),
    "a class as model again": (resume("run", model=MyNet), "write MyNet()"),
    "a head without model again": (resume("run", head="fc"), "leave head out"),
    "a number as watch again": (resume("run", watch=3), "watch: expected a function"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_call_is_one_line_and_leaves_nothing(name, tmp_path, monkeypatch):
    call, line = BAD[name]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        call(tmp_path / "run")
    assert line in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("call", [run, lambda **o: compare("fedavg", **o)])
def test_a_file_in_the_place_of_a_folder_is_refused(call, tmp_path):
    file = tmp_path / "run"
    file.write_text("mine")
    with pytest.raises(InputError, match="is a file; choose another --out"):
        call()(file)
    assert file.read_text() == "mine"


@pytest.mark.parametrize("call", [
    lambda out: unskew.compare("fedavg", seeds=1, out=out, **SMALL),
    lambda out: unskew.tune("fedavg", "lr=0.1", out=out, **SMALL), check_place,
])  # fmt: skip
def test_a_comparison_keeps_out_of_the_folder_of_a_run(call, tmp_path):
    unskew.run(out=tmp_path / "run", **SMALL)
    before = contents(tmp_path)
    with pytest.raises(InputError, match="is the folder of a run; choose another --out"):
        call(tmp_path / "run")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("call", [
    lambda run, cells: run.plot(["accuracy"]), lambda run, cells: run.plot(x=np.array(["rounds", "bytes"])),
    lambda run, cells: cells.plot({"accuracy": 1}), lambda run, cells: run.confusion(3),
    lambda run, cells: cells.table(metric=["last"]), lambda run, cells: cells.table().to_text(["md"]),
    lambda run, cells: unskew.split_head(MyNet(), ["fc"]), lambda run, cells: unskew.split_head(MyNet(), torch.rand(2)),
    lambda run, cells: splits.build("iid").cut(unskew.load("digits"), clients="3", seed=0),
    lambda run, cells: splits.build("virtual").cut(unskew.load("digits"), clients=2.5, seed=0),
    lambda run, cells: splits.build("iid").cut(unskew.load("digits"), clients=3, seed="0"),
    lambda run, cells: from_table(None),
])  # fmt: skip
def test_what_is_asked_with_another_type_is_one_line(call, played):
    with pytest.raises(InputError) as caught:
        call(*played)
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """A run in its folder, and a comparison."""
    out = tmp_path_factory.mktemp("played")
    unskew.run(out=out / "run", **SMALL)
    return unskew.open(out / "run"), unskew.compare("fedavg", seeds=1, out=out / "cells", **SMALL)


def test_a_network_with_extra_state_runs():
    class Extra(MyNet):
        def get_extra_state(self):
            return {"version": 3}

        def set_extra_state(self, state):
            pass

    assert unskew.run(**{**SMALL, "model": Extra(), "head": "fc"}).accuracy > 0


def same(one, other):
    return all(torch.equal(value, other.server["model"][name]) for name, value in one.server["model"].items())


def test_paths_and_numpy_s_numbers_are_taken_for_what_they_are(tmp_path):
    plain = unskew.run(clients=3, rounds=2, lr=0.1)
    numpy = unskew.run(clients=np.int32(3), rounds=np.int64(2), lr=np.float64(0.1), out=str(tmp_path / "run"),
                       data_dir=str(tmp_path), device=torch.device("cpu"))  # fmt: skip
    assert plain.run == numpy.run and same(plain, numpy)
    saved = tmp_path / "split.json"
    unskew.registries.splits.build("iid").cut(unskew.load("digits"), clients=3, seed=0).save(saved)
    assert unskew.run(split={"name": "file", "path": saved}, rounds=1).run.clients == 3


def test_any_option_is_set_by_its_path_as_on_the_command_line():
    run = unskew.run(
        "fedprox", clients=2, rounds=1, **{"method.mu": 0.7, "local.drop_last": True, "pool_test": False}
    ).run
    assert (run.method.mu, run.local.drop_last) == (0.7, True)
    assert unskew.run(FedProx(), clients=2, rounds=1, **{"method.mu": 0.7}).run.method == FedProx(mu=0.7)


PLUGIN = """
from unskew import Method, registries

@registries.methods.register("test_api_{name}")
class Mine(Method):
    "FedAvg by another name."
"""


@pytest.mark.parametrize("way", ["plugin", "plugins"])
@pytest.mark.parametrize("kind", ["text", "path", "list"])
def test_plugins_are_named_as_on_the_command_line(way, kind, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(PLUGIN.format(name=f"{way}_{kind}"))
    given = {"text": str(file), "path": file, "list": [file]}[kind]
    result = unskew.run(f"test_api_{way}_{kind}", clients=2, rounds=1, **{way: given})
    assert result.run.method.name == f"test_api_{way}_{kind}"


@pytest.mark.parametrize(("seeds", "numbers"), [
    (2, [0, 1]), ("2", [0, 1]), ("5,7", [5, 7]), ([3], [3]), (range(1, 3), [1, 2]), (np.int64(1), [0]),
    ((np.int64(4),), [4]),
])  # fmt: skip
def test_seeds_are_read_as_on_the_command_line(seeds, numbers, tmp_path):
    cells = unskew.compare("fedavg", seeds=seeds, clients=2, rounds=1, out=tmp_path / "all")
    assert [cell.seed for cell in cells] == numbers


def test_methods_may_be_one_text(tmp_path):
    cells = unskew.compare(
        methods="fedavg,fedprox(mu=0.1, terms=[kl])", seeds=1, clients=2, rounds=1, out=tmp_path / "a"
    )
    assert [cell.method for cell in cells] == ["fedavg", "fedprox(terms=[kl], mu=0.1)"]


def test_data_that_change_meanwhile_are_said(caplog):
    data = tiny_data()

    def spoil(row):
        data.train.x[:] = 0

    unskew.run(data=data, clients=2, rounds=2, watch=lambda row: None)
    assert "were changed" not in caplog.text
    unskew.run(data=data, clients=2, rounds=2, watch=spoil)
    assert "data 'tiny' were changed while they were in use" in caplog.text


def test_data_that_change_between_runs_are_another_run():
    data = tiny_data()
    first = unskew.run(data=data, clients=2, rounds=1).run.hash
    data.train.x[0] += 1
    assert unskew.run(data=data, clients=2, rounds=1).run.hash != first


def test_who_watches_changes_no_result():
    plain = unskew.run(clients=2, rounds=2)
    watched = unskew.run(clients=2, rounds=2, watch=lambda row: row.update(accuracy=1.0, clients=[]))
    assert watched.accuracy == plain.accuracy
    assert [row.get("clients") for row in watched.rounds] == [row.get("clients") for row in plain.rounds]


@pytest.mark.parametrize("of", ["numpy", "torch", "python"])
def test_data_splits_and_networks_draw_the_same_from_any_generator(of, tmp_path):
    draw = {"numpy": "np.random.rand()", "torch": "float(torch.rand(()))", "python": "random.random()"}[of]
    (tmp_path / "draws.py").write_text(f"""
import random
import numpy as np
import torch
from unskew import Architecture, Dataset, Model, Samples, Source, Split, registries

@registries.sources.register("d_{of}")
class D(Source):
    "Draws."
    def load(self, find):
        y = torch.arange(40) % 2
        samples = Samples(torch.tensor([[{draw}] for _ in range(40)]) + y[:, None], y)
        return Dataset("d", samples, samples, ("0", "1"), (0.0,), (1.0,))

@registries.splits.register("s_{of}")
class S(Split):
    "Draws."
    def assign(self, dataset, clients, rng):
        first = 1 + int(10 * {draw})
        return np.arange(40), np.array([first, 40 - first])

@registries.architectures.register("a_{of}")
class A(Architecture):
    "Draws."
    def build(self, shape, num_classes):
        head = torch.nn.Linear(1, 2)
        torch.nn.init.constant_(head.weight, {draw})
        return Model(torch.nn.Identity(), head)
""")
    np.random.seed()
    before = np.random.get_state()[1].tolist()
    runs = [
        unskew.run(
            "fedavg",
            data=f"d_{of}",
            split=f"s_{of}",
            model=f"a_{of}",
            clients=2,
            rounds=1,
            seed=seed,
            plugin=tmp_path / "draws.py",
        )
        for seed in (1, 1, 2)
    ]
    assert np.random.get_state()[1].tolist() == before
    ours, again, other = (run.server["model"]["head.weight"] for run in runs)
    assert torch.equal(ours, again) and not torch.equal(ours, other)


# ------------------------------------------------------------------------------------------------------ an option twice


def test_an_option_by_keyword_and_in_a_table():
    for options in (
        {"lr": 0.1, "local": {"lr": 0.5}},
        {"local": {"lr": 0.5}, "local.lr": 0.1},
        {"split.alpha": 0.5, "split": {"name": "dirichlet", "alpha": 1.0}},
    ):
        refused("is given twice, as '", unskew.run, **{**FEW, **options})


def test_a_table_beside_an_option_hides_nothing():
    for options in ({"epochs": 2, "local": {"lr": 0.5}}, {"local": {"lr": 0.5}, "epochs": 2}):
        run = unskew.run(model="mlp", **FEW, **options).run
        assert (run.local.epochs, run.local.lr) == (2, 0.5)
    split = {**FEW, "split.alpha": 3.0}
    del split["split"]
    assert unskew.run(model="mlp", **split, split="dirichlet(alpha=1.0, min_size=1)").run.split.alpha == 3.0
