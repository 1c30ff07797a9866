"""Wrappers around methods, with measures on, with and without a quantised wire: right on every executor, or refused."""

import pytest

from awkward import DATA, config, play
from support import gap, initial_model
from unskew.base import tree
from unskew.base.errors import InputError
from unskew.core.tolerance import find_tolerance
from unskew.runs import engine

INSIDE = {
    "fedavg": "fedavg", "fedprox": "fedprox(mu=0.1)", "scaffold": "scaffold",
    "feddecorr": "feddecorr(var_eps=0.01)", "fedetf": "fedetf", "fedblade": "fedblade(var_eps=0.01)",
    "fednova": "fednova(control=ccvr)", "feddyn": "feddyn", "fedsam": "fedsam",
    "fedper": "fedper", "fedas": "fedas", "fedaf": "fedaf(steps=2, server_epochs=1, ipc=1)",
    "fedrcl": "fedrcl", "fedfm": "fedfm",
}  # fmt: skip
AROUND = {
    "flfa": "flfa({}, select=lowest)", "fedsol": "fedsol({})", "finetuned": "finetuned({})",
    "flfa fedsol": "flfa(fedsol({}), select=lowest)", "fedsol flfa": "fedsol(flfa({}, select=lowest))",
    "finetuned flfa": "finetuned(flfa({}, select=lowest))",
}  # fmt: skip
REFUSED = {
    ("flfa", "fedaf"): "needs a method whose clients train the model",
    ("fedsol", "fedaf"): "has its own training",
    ("flfa fedsol", "fedaf"): "has its own training",
    ("fedsol flfa", "fedaf"): "needs a method whose clients train the model",
    ("finetuned flfa", "fedaf"): "needs a method whose clients train the model",
    ("fedsol", "fedsam"): "does to its gradient",
    ("flfa fedsol", "fedsam"): "does to its gradient",
    ("fedsol flfa", "fedsam"): "does to its gradient",
}
MEASURES = "drift,divergence,similarity,fisher,local_accuracy,orthogonality"
WIRES = {"plain": "", "quantised": "quantise(bits=8)"}


SHOWN = ("fedavg", "scaffold", "fedblade", "fedas", "fedaf")
"""Whoever is inside, three deep is three deep, and a wire is a wire: the others are for `make test-all`."""


def is_slow(around, inside, wire):
    if " " in around:
        return inside not in SHOWN or wire == "quantised"
    return inside not in SHOWN and wire == "quantised"


CASES = [
    pytest.param(around, inside, wire, marks=[pytest.mark.slow] if is_slow(around, inside, wire) else [])
    for around in AROUND for inside in INSIDE for wire in WIRES
]  # fmt: skip


@pytest.mark.parametrize(("around", "inside", "wire"), CASES)
def test_a_composition_is_right_or_refused(around, inside, wire, caplog):
    spec = AROUND[around].format(INSIDE[inside])
    options = {"measure": MEASURES, **({"wire": WIRES[wire]} if WIRES[wire] else {})}
    why = REFUSED.get((around, inside))
    if why or (inside == "fedaf" and wire == "quantised"):
        with pytest.raises(InputError, match=why or "quantise") as error:
            engine.run(config(spec, **options), dataset=DATA)
        assert "\n" not in str(error.value)
        return
    serial = play(spec, **options, execution={"memory_format": "contiguous"})
    assert tree.all_finite(serial.server) and not serial.summary["diverged"]
    if inside == "fedaf":
        return
    stacked = play(spec, **options, execution={"executor": "stacked", "chunk": 3})
    assert "one by one" not in caplog.text
    assert gap(stacked, serial, initial_model(serial.run, DATA)) <= find_tolerance(serial.run.method, serial.run.wire)
    figures, reference = stacked.rounds[1]["measures"], serial.rounds[1]["measures"]
    assert figures["drift"] == pytest.approx(reference["drift"], rel=0.02)
    assert {"fisher_trace", "local_accuracy", "orthogonality", "similarity_mean"} <= reference.keys()


@pytest.mark.parametrize("inside", ["fedavg", "scaffold", "fedblade", "fedas"])
def test_measures_and_choices_see_decoded_replies(inside):
    spec = AROUND["flfa"].format(INSIDE[inside])
    plain, quantised = (play(spec, measure=MEASURES, **options) for options in ({}, {"wire": "quantise(bits=8)"}))
    for name in ("drift", "divergence", "similarity_mean"):
        assert quantised.rounds[1]["measures"][name] == pytest.approx(plain.rounds[1]["measures"][name], rel=0.05)
    mine, theirs = (result.rounds[1]["method"] for result in (quantised, plain))
    assert mine["similarity"] == pytest.approx(theirs["similarity"], abs=0.03)
    assert quantised.rounds[1]["bytes_up"] < 0.5 * plain.rounds[1]["bytes_up"]
