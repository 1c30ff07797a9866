"""Runs that train nobody, and data, rates, terms, slots and notes that teach nothing: refused or said."""

import pytest
import torch

import unskew
from small_runs import make, play, said
from unskew import Method, reducers, tree
from unskew.base import once
from unskew.base.errors import InputError, SlotError

pytestmark = pytest.mark.usefixtures("own_names")


# ------------------------------------------------------------------------------------------------------- data and rates


def test_batches_of_one_with_batchnorm_are_refused():
    with pytest.raises(InputError, match=r"local.batch = 1 with BatchNorm would train nobody"):
        play(model="cnn8(norm=batch)", batch=1)
    assert play(model="mlp(hidden=[4])", batch=1, steps=2, rounds=1).rounds[-1]["train_loss"] is not None


def test_nobody_who_trains_is_said(caplog):
    once.warn_once.cache_clear()
    digits = unskew.load("digits")
    few = unskew.Dataset(
        "few", digits.train.take(torch.arange(4)), digits.test, digits.classes, digits.mean, digits.std
    )
    play(data=few, clients=4, split="ranges", model="cnn8(norm=batch)", local_test="none", rounds=1)
    assert "no client takes a step: all its batches have one sample" in said(caplog)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"method": "fedper", "validation": 0.2}, "validation = 0.2 holds out samples that nobody uses"),
        ({"lr": 0.1, "lr_decay": 1e-20, "rounds": 3}, "falls to 1e-41 by the last round, where it changes no weight"),
    ],
)
def test_what_does_nothing_is_said(options, line, caplog):
    once.warn_once.cache_clear()
    play(**options)
    assert line in said(caplog)


def test_one_class_is_said(caplog):
    once.warn_once.cache_clear()
    x = torch.rand(40, 3)
    ones = unskew.Dataset(
        "ones",
        unskew.Samples(x, torch.zeros(40).long()),
        unskew.Samples(x, torch.zeros(40).long()),
        ("a",),
        (0.0,),
        (1.0,),
    )
    play(data=ones)
    assert "data 'ones' have one class only (a), so that every model is right" in said(caplog)


def test_a_rate_that_changes_nothing_is_refused():
    with pytest.raises(
        InputError, match=r"local.lr \(--lr\) = 1e-44 would change no weight: expected at least 1.2e-38"
    ):
        play(lr=1e-44)


# ------------------------------------------------------------------------------------------------------ terms and slots


def term(value):
    return make("terms", unskew.Term, __call__=lambda self, c, params, batch, out: value(params, out))


@pytest.mark.parametrize("executor", ["serial", "stacked"])
def test_a_term_that_teaches_nothing_is_said(caplog, executor):
    detached, zero = term(lambda p, out: out.features.detach().square().mean()), term(lambda p, out: torch.zeros(()))
    play(method=f"fedavg(terms=[{detached}, {zero}])", executor=executor)
    assert f"term {detached} does not depend on the parameters" in said(caplog)
    assert zero not in said(caplog)  # as terms are before they have what they need


SILENT = {
    "correction": (
        {"correction": lambda self, c, params, batch: None},
        "{}.correction never returns anything, so that nothing is added to the gradient (is a return missing?)",
    ),
    "reducers": (
        {"survey_reducers": {"counts": reducers.total}},
        "{} declares survey_reducers and has no survey, so that nothing is sent before training; define survey(c)",
    ),
    "survey": (
        {"survey_reducers": {"counts": reducers.total}, "survey": lambda self, c: {}},
        "{} has a reducer for 'counts', which no client sent in round 1; they sent nothing",
    ),
}


@pytest.mark.parametrize("case", SILENT)
def test_slots_without_effect_are_said_once(case, caplog):
    once.warn_once.cache_clear()
    body, line = SILENT[case]
    name = make("methods", Method, **body)
    play(method=name)
    assert said(caplog).count(name) == 1 and line.format(name) in said(caplog)


def test_a_correction_that_returns_something_now_and_then_is_none_of_these(caplog):
    def correction(self, c, params, batch):
        if c.round == 1:
            return None
        return tree.zeros_like(tree.select(params, c.trainable))

    name = make("methods", Method, correction=correction)
    play(method=name)
    assert name not in said(caplog)


# -------------------------------------------------------------------------------------------------- notes at the server


def test_a_note_at_the_server_points_to_the_record():
    def update(self, s, server, merged):
        s.diagnostics.note("mine", 1.0)
        return Method.update(self, s, server, merged)

    name = make("methods", Method, update=update)
    with pytest.raises(SlotError, match=rf"{name}.update notes 'mine' .*s.record\[\"mine\"\]"):
        play(method=name)


def test_a_server_may_take_gradients_of_its_own():
    def update(self, s, server, merged):
        s.aside().diagnostics.note("mine", 1.0)
        s.diagnostics.note("train_loss", 1.0)  # as Method.gradient does
        return Method.update(self, s, server, merged)

    play(method=make("methods", Method, update=update))
