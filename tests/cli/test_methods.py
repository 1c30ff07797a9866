"""`unskew methods`: the list, one of them, the matrix; and `compare --methods all`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.calling import Call, assert_refused
from unskew.cli.output import console
from unskew.core.method import methods
from unskew.methods import catalogue

PLUGIN = """
from unskew import Method, Wrapper, param, registries

@registries.methods.register("listed_mine")
class Mine(Method):
    "My own method."

@registries.methods.register("listed_needs")
class Needs(Method):
    "Needs an argument."
    strength: float = param(doc="how strong")

@registries.methods.register("listed_fails")
class Fails(Method):
    "Fails in training."
    def train(self, c, params):
        raise KeyError("nothing there")

@registries.methods.register("listed_around")
class Around(Wrapper):
    "Predicts by itself."
    def predict(self, c, params, x):
        return c.forward(params, x, mode="eval").logits
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "listed.py").write_text(PLUGIN)
    before = dict(methods._classes)
    monkeypatch.setattr(methods, "_classes", before)
    return "--plugin listed.py"


def test_the_list_has_families_and_what_goes_with_methods(call: Call, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(console, "_width", 100)
    said = call("methods")
    assert said.code == 0 and said.err == "" and max(map(len, said.out.splitlines())) <= 100
    words = ("global ", "personal ", "wrappers ", "condensing ", "terms ", "divisions ", "wire processors ")
    places = [said.out.index(f"\n{word}") if place else said.out.index(word) for place, word in enumerate(words)]
    assert places == sorted(places)
    assert "↓ 1 + control 1 ↑ 1 + control 1 · client keeps control 1 · server keeps control 1" in said.out
    assert "explain one: unskew methods NAME" in said.out


def test_the_list_as_json(call: Call):
    rows = {(row["kind"], row["name"]): row for row in json.loads(call("methods --json").out)}
    scaffold = rows["method", "scaffold"]
    assert (scaffold["family"], scaffold["output"], scaffold["down"]) == (
        "global",
        "global",
        {"model": 1, "control": 1},
    )
    assert scaffold["inside"] == [name for name in methods if name in scaffold["inside"]] and scaffold["terms"] is True
    assert rows["wrapper", "flfa"]["family"] == "wrappers" and rows["method", "fedaf"]["wire"] == []
    assert rows["term", "kl"]["needs"] == ["teacher"] and rows["term", "prox"]["proximal"] is True
    assert {("division", "head"), ("wire processor", "quantise")} <= rows.keys()
    assert all("cost" in row for (kind, _), row in rows.items() if kind in ("method", "wrapper"))


def test_one_method_says_what_it_sends_keeps_and_costs(call: Call, monkeypatch: pytest.MonkeyPatch):
    said = call("methods fedper").out
    lines = [
        "family: personal, a model for each client", "gives: personal", "sent by a client: 0.86",
        "kept by a client: personal 0.14", "cost against fedavg: ", "takes: terms, clip, quantise, topk",
    ]  # fmt: skip
    for line in lines:
        assert f"\n{line}" in said
    assert "\ntakes: neither terms nor --wire\n" in call("methods fedaf").out
    monkeypatch.setattr(catalogue, "read_costs", lambda: {"fedper": {"ratio": 1.014, "quartiles": [1.0, 1.03]}})
    assert "\ncost against fedavg: 1.01×, quartiles 1.00 to 1.03\n" in call("methods fedper").out


def test_divisions_and_processors_are_explained_too(call: Call):
    assert "rho_p" in call("methods channels").out and "bits" in call("methods quantise").out
    assert_refused(call("methods nosuch"), "unknown method 'nosuch'")


def test_a_plugin_s_methods_are_tried(call: Call, plugin: str):
    rows = {row["name"]: row for row in json.loads(call(f"methods {plugin} --json").out)}
    assert rows["listed_mine"]["up"] == {"delta": 1.0} and "fedsol" in rows["listed_mine"]["inside"]
    assert "strength is missing" in rows["listed_needs"]["problem"]
    said = call(f"methods {plugin}")
    assert said.code == 0 and "not tried: listed_needs.strength is missing; give it a value" in said.out
    assert "strength" in call(f"methods {plugin} listed_needs").out


def test_the_matrix_of_one_method(call: Call):
    said = call("methods fedaf --matrix")
    assert said.code == 0 and said.err == ""
    assert "flfa needs a method whose clients train the model and send how it moved" in said.out
    found = json.loads(call("methods fedaf --matrix --json").out)["rows"][0]
    assert found["method"] == "fedaf" and found["alone"] == {"composes": True}
    assert found["inside"]["finetuned"] == {"composes": True}
    assert "own training" in found["inside"]["fedsol"]["refused"]


def test_the_matrix_shows_what_fails_and_what_is_left_out(call: Call, plugin: str, monkeypatch: pytest.MonkeyPatch):
    call(f"methods {plugin}")  # loads it
    few = ("fedavg", "fedaf", "feddm", "fedetf", "fedsol", "listed_fails", "listed_around", "listed_needs")
    monkeypatch.setattr(methods, "_classes", {name: methods.get(name) for name in few})
    monkeypatch.setattr(console, "_width", 100)
    said = call("methods --matrix")
    assert said.code == 1 and "Traceback" not in said.err and max(map(len, said.out.splitlines())) <= 100
    lines = said.out.splitlines()
    assert next(line for line in lines if line.startswith("fedavg")).count("✓") == 3
    assert "~" in next(line for line in lines if line.startswith("fedetf"))
    assert next(line for line in lines if line.startswith("listed_fails")).count("✗") == 2
    assert sum("needs a method inside that trains by plain SGD; it has its own training" in line for line in lines) == 1
    assert any("never asks the method inside for predict" in line for line in lines)
    assert any("strength is missing" in line for line in lines)
    row = json.loads(call("methods listed_fails --matrix --json").out)["rows"][0]
    assert row["alone"]["failed"].startswith("ClientError: client 0 failed in round 1: KeyError")


def test_compare_all(call: Call, plugin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    call(f"methods {plugin}")
    few = ("fedavg", "fedper", "finetuned", "feddm", "listed_mine", "listed_needs")
    monkeypatch.setattr(methods, "_classes", {name: methods.get(name) for name in few})
    monkeypatch.setattr("unskew.runs.field.CONDENSING", {"steps": 1, "ipc": 1, "server_epochs": 1})
    line = "compare --methods all --model mlp --clients 3 --rounds 2 --seeds 1 --out c"
    said = call(f"{line} --json --quiet")
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert [row["method"] for row in found["rows"]] == [
        "fedavg", "listed_mine", "feddm(ipc=1, steps=1, server_epochs=1)", "fedper", "finetuned(inner=fedavg)",
    ]  # fmt: skip
    assert found["notes"][0] == (
        "a small budget, where the paper's takes hours: feddm(ipc=1, steps=1, server_epochs=1)"
    )
    assert found["notes"][1].startswith("left out: listed_needs (listed_needs.strength is missing")
    assert "info: a small budget" in said.err and "info: left out: listed_needs" in said.err
    rows = {row["method"]: row for row in found["rows"]}
    assert rows["fedper"]["global %"]["mean"] is None and rows["fedper"]["personal %"]["mean"] is not None
    assert rows["fedavg"]["personal %"]["mean"] is not None and rows["fedavg"]["bytes ×"]["mean"] == 1
    page = (tmp_path / "c" / "report.html").read_text()
    assert "a model for each client" in page and "a small budget" in page
    said = call(f"{line} --quiet")
    assert said.code == 0 and "one global model" in said.out and "5 of 5 runs" not in said.err


def test_a_run_takes_one_method(call: Call):
    assert_refused(call("run --method all --rounds 1"), "unknown method 'all'")
