"""`all`, `all-global` and `all-personal`: every registered method at its defaults, from text and from Python."""

import logging

import pytest

import unskew
from awkward import DATA
from unskew.base.errors import InputError
from unskew.base.registry import param
from unskew.core.method import Method, methods
from unskew.methods.catalogue import is_ours
from unskew.runs.arguments import read_method, read_methods
from unskew.runs.config import from_table
from unskew.runs.field import drop_misfits


@methods.register("test_field_needs")
class Needs(Method):
    """Has an option without a default."""

    strength: float = param(doc="how strong")


@methods.register("test_field_refuses")
class Refuses(Method):
    """Fits to no run."""

    def init(self, s):
        raise InputError("test_field_refuses needs another model; take one")


def names(wanted):
    """The package's own among them: other tests register some."""
    return [method.name for method in wanted if is_ours(method.name)]


def test_all_is_every_method_once_fedavg_first():
    wanted = read_methods("all")
    assert wanted[0].name == "fedavg"
    assert sorted(names(wanted)) == [name for name in methods if is_ours(name) and name != "own"]  # it is fedavg_p
    assert str(next(method for method in wanted if method.name == "finetuned")) == "finetuned(inner=fedavg)"
    assert read_methods(["all"]) == wanted and read_methods(" ALL ") == wanted


def test_the_halves():
    one, own = names(read_methods("all-global")), names(read_methods("all-personal"))
    assert {"fedavg", "scaffold", "flfa", "fedaf"} <= set(one) and {"fedper", "fedas", "finetuned"} <= set(own)
    assert own[0] == "fedavg" and set(one) & set(own) == {"fedavg"}
    assert set(one) | set(own) == set(names(read_methods("all")))


def test_the_small_budget_is_said():
    wanted = read_methods("all")
    assert "fedaf(ipc=10, steps=50, server_epochs=100, server_lr=0.01)" in [str(method) for method in wanted]
    assert wanted.notes[0].startswith("a small budget, where the paper's takes hours: fedaf(")
    assert "finetuned" not in wanted.notes[0]
    assert read_methods("fedaf")[0].steps == 1000 and read_methods("fedaf").notes == ()


def test_a_word_among_methods():
    wanted = read_methods("fedprox(mu=1),all-global,fedavg")
    found = [str(method) for method in wanted]
    assert found[0] == "fedprox(mu=1.0)" and found[-1] == "fedavg" and found.count("fedavg") == 1
    assert "fedprox" in found and "fedavg" not in wanted.optional and "fedprox" in wanted.optional
    assert len(read_methods("all,all")) == len(read_methods("all"))


def test_methods_that_need_arguments_or_do_not_fit_are_left_out_and_named(caplog):
    base = from_table({"model": "mlp", "split": "natural", "rounds": 1})
    wanted = read_methods("all-global")
    assert any("left out: test_field_needs (test_field_needs.strength is missing" in note for note in wanted.notes)
    with caplog.at_level(logging.INFO, "unskew"):
        fitting = drop_misfits(wanted, base, 0, DATA)
    assert "left out: test_field_refuses (test_field_refuses needs another model; take one)" in fitting.notes
    assert "left out: test_field_refuses" in caplog.text and "a small budget" in caplog.text
    assert names(fitting) == names(wanted) and "test_field_refuses" not in [method.name for method in fitting]


def test_methods_that_were_named_are_not_left_out(tmp_path):
    with pytest.raises(InputError, match="needs another model"):
        unskew.compare("fedavg,test_field_refuses", seeds=1, out=tmp_path, model="mlp", clients=2, rounds=1)


def test_a_field_in_which_nobody_fits_is_refused():
    base = from_table({"model": "mlp", "split": "natural", "rounds": 1, "evaluation": {"local_test": "none"}})
    only = read_methods("all-personal")
    only = type(only)(tuple(method for method in only if method.output == "personal"), only.optional)
    with pytest.raises(InputError, match=r"no method fits to this run; left out: .*needs local test sets"):
        drop_misfits(only, base, 0, DATA)


def test_a_word_is_no_method():
    with pytest.raises(InputError, match="'all' stands for many methods, for compare; name one"):
        read_method("all")


def test_compare_all_from_python(tmp_path, monkeypatch):
    ours = {name: cls for name, cls in methods._classes.items() if name in ("fedavg", "fedper", "finetuned", "fedsol")}
    monkeypatch.setattr(methods, "_classes", ours)
    cells = unskew.compare("all", seeds=1, out=tmp_path, model="mlp", clients=3, rounds=1)
    assert [(cell.method, cell.output) for cell in cells] == [
        ("fedavg", "global"), ("fedsol", "global"), ("fedper", "personal"), ("finetuned(inner=fedavg)", "tuned"),
    ]  # fmt: skip
