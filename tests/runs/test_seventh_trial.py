"""What earlier trials had left: parts of a loss that spoil it or teach nothing, options that do nothing."""

import itertools

import pytest
import torch

import unskew
from small_runs import play, register, said
from unskew.base import once
from unskew.base.errors import InputError, SlotError

NUMBERS = itertools.count()


def make(kind, base, **body):
    name = f"test_seventh_{next(NUMBERS)}"
    register(kind, name, base, **body)
    return name


def term(value):
    return make("terms", unskew.Term, __call__=lambda self, c, params, batch, out: value(params, out))


SPOILING = {
    "gives nan in the first step": lambda params, out: out.logits.sum() * float("nan"),
    "gives inf in the first step": lambda params, out: out.logits.square().sum() / 0,
    "has a gradient of NaN or infinite values": lambda params, out: (0 * out.logits).square().sum().sqrt(),
}


@pytest.mark.parametrize("executor", ["serial", "pool", "stacked"])
@pytest.mark.parametrize("line", SPOILING)
def test_the_term_that_spoils_the_first_step_is_named(line, executor):
    name = term(SPOILING[line])
    with pytest.raises(SlotError, match=rf"client \d failed in round 1: term {name} {line}"):
        play(method=f"fedavg(terms=[{name}])", executor=executor)


@pytest.mark.parametrize("slot", ["criterion", "correction"])
def test_the_slot_that_spoils_the_first_step_is_named(slot):
    bodies = {
        "criterion": lambda self, c, out, batch: out.logits.sum() * float("nan"),
        "correction": lambda self, c, params, batch: {name: value * float("inf") for name, value in params.items()},
    }
    name = make("methods", unskew.Method, **{slot: bodies[slot]})
    with pytest.raises(SlotError, match=rf"{name}.{slot} gives"):
        play(method=name)


def test_a_diverging_rate_is_no_fault_of_a_term(caplog):
    name = term(lambda params, out: out.features.square().mean())
    result = play(method=f"fedavg(terms=[{name}])", lr=1e30, rounds=2)
    assert result.summary["diverged"]


@pytest.mark.parametrize("executor", ["serial", "stacked"])
def test_a_term_that_teaches_nothing_is_said(caplog, executor):
    detached, zero = term(lambda p, out: out.features.detach().square().mean()), term(lambda p, out: torch.zeros(()))
    play(method=f"fedavg(terms=[{detached}, {zero}])", executor=executor)
    assert f"term {detached} does not depend on the parameters" in said(caplog)
    assert zero not in said(caplog)  # as terms are before they have what they need


@pytest.mark.parametrize("executor", ["serial", "stacked"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_first_state_is_finite(value, executor):
    name = make("methods", unskew.Method, init_client=lambda self, c: {"own": {"a": torch.tensor([value])}})
    with pytest.raises(SlotError, match=rf"{name}.init_client must return a state of finite numbers.*'own/a'"):
        play(method=name, executor=executor)


def test_a_rate_that_changes_nothing_is_refused():
    with pytest.raises(
        InputError, match=r"local.lr \(--lr\) = 1e-44 would change no weight: expected at least 1.2e-38"
    ):
        play(lr=1e-44)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"method": "fedbn", "model": "cnn8(norm=batch)", "buffers": "average"},
         "fedbn keeps BatchNorm's statistics its own way ('local'); local.buffers = average does nothing"),
        ({"split": "ranges", "split_seed": 3, "local_test": "none"}, "split_seed = 3 does nothing: split ranges"),
        ({"executor": "auto", "chunk": 2, "model": "cnn8"}, "is for executor 'stacked' and does nothing: auto took"),
    ],
)  # fmt: skip
def test_what_does_nothing_is_said(options, line, caplog):
    once.warn_once.cache_clear()  # said once in a process
    play(**options)
    assert line in said(caplog)


@pytest.mark.parametrize(
    "options",
    [
        {"method": "fedbn", "model": "cnn8(norm=batch)"},
        {"split": "ranges(shuffle=true)", "split_seed": 3, "local_test": "none"},
        {"split": "ranges", "split_seed": 3, "local_test": "holdout"},
    ],
)
def test_nothing_is_said_of_what_was_not_given_or_counts(options, caplog):
    once.warn_once.cache_clear()
    play(**options)
    assert "does nothing" not in said(caplog)
