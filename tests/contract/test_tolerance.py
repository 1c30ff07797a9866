"""What `stacked` promises: nothing but rounding parts it from `serial`, and how far is said and held, part by part."""

import logging
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import unskew
from awkward import DATA, in_double, play, quick
from small_runs import SMALL, make, said
from support import gap, initial_model, mark_slow
from unskew.base.errors import InputError
from unskew.core.method import Method, methods
from unskew.core.term import Term
from unskew.core.tolerance import NONE, USUAL, find_tolerance
from unskew.core.wrapper import Wrapper
from unskew.registries import processors
from unskew.runs.config import read_processors

VARIANTS = [
    line.strip()
    for file in sorted((Path(__file__).parent / "variants").glob("*.txt"))
    for line in file.read_text().splitlines()
    if line.strip() and not line.startswith(("fedaf", "feddm"))
]
PLAIN = [quick(name) for name in methods if not name.startswith("test_") and methods.get(name).stackable is True]
NESTED = ["flfa(fedas)", "fedsol(scaffold)", "fedsol(fedblade)", "flfa(fedsol(fedetf))", "finetuned(flfa(scaffold))",
          "fedsol(projection=true)", "fedavg(terms=[kl, prox(mu=0.1), lddecorr])"]  # fmt: skip
LOCAL = {"batch": 8, "epochs": 2, "lr": 0.05, "momentum": 0.5, "weight_decay": 0.001}


def measure(spec, model, **options):
    """The distance between both executors' models as a share of the distance moved."""
    options = {"model": model, "local": LOCAL, "rounds": 3, **options}
    serial = play(spec, **options, execution={"memory_format": "contiguous"})
    stacked = play(spec, **options, execution={"executor": "stacked", "chunk": 3})
    return gap(stacked, serial, initial_model(serial.run, DATA))


def check_in_double(spec, network):
    """In double precision a fault of `stacked` stays as large as it is; rounding almost vanishes."""
    steep = find_tolerance(methods.build(spec)) > USUAL  # amplified even so: one round, in which less can grow
    assert measure(spec, in_double(network), rounds=1 if steep else 3) < (1e-6 if steep else 1e-9)


@pytest.mark.parametrize("spec", mark_slow([*PLAIN, *NESTED]))
def test_in_double_precision_only_the_last_digits_differ(spec, caplog):
    check_in_double(spec, "cnn8(norm=batch)")
    assert "one by one" not in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("network", ["mlp", "cnn8", "cnn8(norm=batch)"])
@pytest.mark.parametrize("spec", [*PLAIN, *NESTED, *VARIANTS])
def test_in_double_precision_only_the_last_digits_of_any_variant_differ(spec, network):
    try:
        check_in_double(spec, network)
    except InputError as error:
        pytest.skip(f"this network lacks something: {error}")


@pytest.mark.parametrize("spec", ["feddecorr", "fedblade", "fedblade(decorrelation=feddecorr)"])
@pytest.mark.parametrize("network", ["mlp", "cnn8", "cnn8(norm=batch)"])
def test_who_promises_nothing_takes_its_first_step_like_everybody(spec, network):
    assert find_tolerance(methods.build(spec)) == NONE
    assert measure(spec, network, rounds=1, local={**LOCAL, "steps": 1}) < USUAL


@pytest.mark.parametrize("network", ["cnn8", "cnn8(norm=batch)"])
@pytest.mark.parametrize("spec", ["feddecorr(var_eps=0.01)", "fedblade(var_eps=0.01)"])
def test_a_floor_under_the_spread_keeps_the_executors_together(spec, network):
    assert measure(spec, network) <= find_tolerance(methods.build(spec)) <= 0.1


MORE_BITS = [
    pytest.param(spec, bits, marks=pytest.mark.slow) for bits in (2, 4, 12, 16) for spec in ("fedavg", "scaffold")
]


@pytest.mark.parametrize(("spec", "bits"), [("fedavg", 2), ("fedavg", 8), ("scaffold", 6), *MORE_BITS])
def test_a_quantised_wire_leaves_the_usual_tolerance_by_nature(spec, bits):
    wire = f"quantise(bits={bits})"
    promised = find_tolerance(methods.build(spec), read_processors(wire))
    assert promised == max(USUAL, 2.5 / (2 ** (bits - 1) - 1))
    assert measure(spec, "cnn8(norm=batch)", wire=wire) <= promised
    assert measure(spec, in_double("cnn8(norm=batch)"), wire=wire) < 1e-9


# ------------------------------------------------------------------------------------------ the declaration


class Rough(Term):
    """Promises less."""

    stacked_tolerance = 0.2

    def __call__(self, c, params, batch, out):
        return 0.0 * out.logits.sum()


class Rougher(Wrapper):
    """Promises less than that."""

    stacked_tolerance = 0.5


def test_the_worst_part_counts():
    fedavg, rough = methods.build("fedavg"), methods.get("fedavg")(terms=(Rough(),))
    assert [find_tolerance(method) for method in (fedavg, rough, Rougher(inner=fedavg))] == [USUAL, 0.2, 0.5]
    assert find_tolerance(methods.get("flfa")(inner=Rougher(inner=rough))) == 0.5
    assert find_tolerance(rough, [processors.build("quantise(bits=2)")]) == 2.5
    assert find_tolerance(methods.build("fedsol(flfa(feddecorr))")) == NONE
    assert find_tolerance(methods.build("flfa(fedblade(var_eps=0.01))")) == 0.1
    assert find_tolerance(methods.build(quick("fedaf"))) == 0  # one by one


@pytest.mark.parametrize("value", ["0.1", -1, True, None, float("nan")])
def test_a_promise_is_a_number(value):
    bad = type("Bad", (Method,), {"stacked_tolerance": value})
    with pytest.raises(InputError, match="Bad: stacked_tolerance must be a number from 0 upwards"):
        find_tolerance(bad())


def test_a_run_says_what_to_expect_of_stacked(caplog):
    caplog.set_level(logging.INFO)
    for spec, expected in (("feddecorr", 1), ("feddecorr(var_eps=0.01)", 0)):
        caplog.clear()
        play(spec, rounds=1, execution={"executor": "stacked", "chunk": 3})
        said = [record.message for record in caplog.records if "executor stacked with" in record.message]
        assert len(said) == expected
    play("feddecorr", rounds=1)
    assert not [record for record in caplog.records if "executor stacked with" in record.message]


def test_fedsol_promises_what_was_measured():
    assert find_tolerance(methods.build("fedsol")) == 0.2 > USUAL


def test_a_mean_over_padding_from_the_second_round_on_is_found(caplog, own_names):
    def criterion(self, c, out, batch):
        return batch.cross_entropy(out.logits) if c.round <= 1 else F.cross_entropy(out.logits, batch.y)

    name = make("methods", unskew.Method, criterion=criterion)
    options = {"method": name, "clients": 6, "split": "dirichlet_uncapped:0.3", "rounds": 3, "lr": 0.1}
    stacked = unskew.run(**{**SMALL, **options}, executor="stacked")
    assert "cannot run for many clients at once" in said(caplog)
    serial = unskew.run(**{**SMALL, **options})
    for key, value in serial.server["model"].items():
        torch.testing.assert_close(stacked.server["model"][key], value, rtol=1e-3, atol=1e-4)
