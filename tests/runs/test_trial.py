"""Methods tried on two tiny clients: what the package says of each is what happens."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support import mark_slow
from unskew.base.errors import InputError
from unskew.core.method import Method, methods
from unskew.core.wrapper import Wrapper
from unskew.methods import catalogue
from unskew.methods.catalogue import (
    at_defaults,
    by_family,
    family_of,
    is_ours,
    read_facts,
    say_inside,
    say_parts,
    shorten,
)
from unskew.runs import trial

ROOT = Path(__file__).parents[2]
OURS = [name for name in methods if is_ours(name)]


@methods.register("test_trial_leaves_out")
class LeavesOut(Wrapper):
    """Predicts by itself and never asks what is inside."""

    def predict(self, c, params, x):
        return c.forward(params, x, mode="eval").logits


@methods.register("test_trial_fails")
class Fails(Method):
    """Fails at the client."""

    def train(self, c, params):
        raise KeyError("nothing there")


@methods.register("test_trial_diverges")
class Diverges(Method):
    """Sends infinite numbers."""

    def upload(self, c, params):
        sent = super().upload(c, params)
        return {**sent, "delta": {name: value / 0 for name, value in sent["delta"].items()}}


@pytest.mark.parametrize("name", OURS)
def test_what_is_written_down_is_what_happens(name, monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks.facts import tidy

    found = tidy(trial.describe(name))
    found["inside"] = [wrapper for wrapper in found["inside"] if is_ours(wrapper)]
    found["wire"] = [each for each in found["wire"] if each in ("clip", "quantise", "topk")]  # tests register others
    assert found == read_facts().get(name), "facts.json is old: run python -m benchmarks.facts"


@pytest.mark.parametrize("name", mark_slow(OURS))
def test_every_wrapper_is_right_around_it_or_refuses_it(name):
    method = at_defaults(name)
    assert trial.try_method(method) == trial.Verdict()
    for wrapper in filter(is_ours, trial.wrappers()):
        verdict = trial.try_around(wrapper, method)
        assert not verdict.failed, f"{wrapper}({name})"
        assert "\n" not in verdict.refused


def test_nothing_is_written_of_methods_that_are_not_there():
    assert set(read_facts()) == set(OURS), "run python -m benchmarks.facts"


def test_sizes_by_hand():
    # mlp 64-64-10: 64 * 64 + 64 + 64 * 10 + 10 = 4810 parameters; the head has 650, SCAFFOLD sends a control for each
    plain, double, bodies = (trial.find_facts(at_defaults(name)) for name in ("fedavg", "scaffold", "fedper"))
    assert (plain["down"], plain["up"], plain["client"]) == ({"model": 1.0}, {"delta": 1.0}, {})
    assert double["down"] == {"model": 1.0, "control": 1.0} and double["client"] == double["server"] == {"control": 1.0}
    assert bodies["up"] == {"delta": 4160 / 4810} and bodies["client"] == {"personal": 650 / 4810}
    # FedAF: V_k before training, R_k and 50 images of each of the ten classes after it, with their labels
    table = (4 * 100 + 10) / (4 * 4810)
    sent = trial.find_facts(at_defaults("fedaf"))["up"]
    assert sent == pytest.approx({"logits": table, "data": 500 * (4 * 64 + 8) / (4 * 4810), "soft": table})


def test_the_sizes_are_those_that_a_run_counts():
    for name in ("scaffold", "fedblade", "fedaf", "fedas"):
        run = trial.make_run(at_defaults(name))
        result = trial._play(run)
        facts, whole = trial.find_facts(at_defaults(name)), 4 * 4810
        # both clients are sent the same; the second holds fewer classes, so it sends no more than the first
        assert result.rounds[2]["bytes_down"] == pytest.approx(2 * whole * sum(facts["down"].values()))
        sent = whole * sum(facts["up"].values())
        assert sent < result.rounds[2]["bytes_up"] <= 2 * sent + 1e-6


def test_families():
    assert {name: family_of(methods.get(name)) for name in ("fedavg", "fedper", "flfa", "feddm")} == {
        "fedavg": "global", "fedper": "personal", "flfa": "wrappers", "feddm": "condensing"}  # fmt: skip
    assert by_family()["global"][0] == "fedavg"
    assert {name for names in by_family().values() for name in names} == set(methods)


def test_words_for_sizes():
    assert say_parts({"delta": 1.0, "control": 1.0}) == "1 + control 1"
    assert say_parts({"model": 0.8649, "weight": 0.0002}) == "0.86 + weight <0.01"
    assert say_parts({"model": 0.8649, "weight": 0.0002}, least=0.005) == "0.86" and say_parts({}) == "0"
    assert say_parts({"prototypes": 0.135, "delta": 1.0}) == "1 + prototypes 0.14"
    every = [name for name in trial.wrappers() if is_ours(name)]
    assert say_inside(every) == "any wrapper" and say_inside([]) == "no wrapper"
    assert say_inside(every[1:]) == f"any wrapper but {every[0]}" and say_inside(every[:1]) == every[0]


def test_what_takes_hours_is_shortened():
    small = shorten(at_defaults("fedaf"), above=100, to=20, condensing={"ipc": 10})
    assert (small.steps, small.server_epochs, small.ipc, small.gamma) == (20, 20, 10, 0.9)
    assert shorten(at_defaults("finetuned"), above=100, to=20) is not None
    method = at_defaults("scaffold")
    assert shorten(method, above=100, to=20) is method


def test_failures_and_losses_are_found():
    assert trial.try_method(at_defaults("test_trial_fails")).failed.startswith(
        "ClientError: client 0 failed in round 1"
    )
    assert trial.try_method(at_defaults("test_trial_diverges")).failed.startswith("diverged")
    assert trial.try_around("test_trial_leaves_out", at_defaults("fedetf")).lost == ("predict",)
    assert trial.try_around("test_trial_leaves_out", at_defaults("fedavg")).composes
    assert "trains by plain SGD" in trial.try_around("fedsol", at_defaults("fedaf")).refused
    assert not trial.try_around("fedsol", at_defaults("fedaf")).composes
    # the class is as it was
    assert "called" not in methods.get("fedetf").predict.__code__.co_freevars
    assert "receive" not in vars(methods.get("fedetf")) and "upload" not in vars(methods.get("fedetf"))


def test_a_method_that_needs_arguments_is_refused(monkeypatch):
    def needs(name):
        raise InputError("test.a is missing; give it a value")

    monkeypatch.setattr(trial, "at_defaults", needs)
    assert {verdict.refused for verdict in trial.try_everywhere("fedavg").values()} == {
        "test.a is missing; give it a value"
    }


def test_costs_are_measured_and_shown(tmp_path, monkeypatch):
    out = tmp_path / "costs.json"
    line = "--data digits --model mlp --clients 4 --batch 32 --epochs 1 --repeats 1 --only scaffold,fedaf"
    command = [sys.executable, "-m", "benchmarks.methods", *line.split(), "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())["methods"]
    assert set(found) == {"fedavg", "scaffold", "fedaf"} and found["fedavg"]["ratio"] == 1.0
    assert found["scaffold"]["ratio"] > 0.3 and "as" not in found["scaffold"]
    assert found["fedaf"]["as"].startswith("fedaf(ipc=10, steps=50")
    monkeypatch.setattr(catalogue, "COSTS", out)
    catalogue.read_costs.cache_clear()
    try:
        assert catalogue.say_cost("scaffold").endswith("×") and catalogue.say_cost("fedprox") == "-"
        assert catalogue.say_cost("fedaf", brief=True).endswith("× with a small budget")
    finally:
        catalogue.read_costs.cache_clear()
