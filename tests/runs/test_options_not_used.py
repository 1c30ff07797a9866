"""Options that the chosen method, split or executor does not use: said or refused in one line."""

import pytest

import unskew
from small_runs import play, said
from unskew.base import once
from unskew.base.errors import InputError


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"method": "fedaf(ipc=1, steps=1, server_epochs=1)", "lr": 0.3, "momentum": 0.9},
         "fedaf does not use local.batch, local.lr, local.momentum, which the run sets"),
        ({"method": "local(epochs=1)", "epochs": 3}, "local does not use local.epochs"),
        ({"method": "fedbn", "model": "cnn8(norm=batch)", "buffers": "reset"}, "local.buffers = reset does nothing"),
        ({"buffers": "local"}, "local.buffers = local does nothing: the network keeps no statistics"),
        ({"clients_every": 1, "local_test": "none"}, "evaluation.clients_every does nothing with local_test = none"),
    ],
)  # fmt: skip
def test_an_option_that_does_nothing_is_said(options, line, caplog):
    once.warn_once.cache_clear()  # said once in a process
    play(**{**options, "seed": 77})
    assert line in said(caplog)


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


def test_what_a_method_ignores_must_be_a_setting(own_names):
    @unskew.registries.methods.register("test_ignores")
    class Ignores(unskew.Method):
        """Names what no run has."""

        ignores = ("local.rate",)

    with pytest.raises(InputError, match=r"ignores names 'local.rate', which no run has"):
        play(method="test_ignores")


def test_a_wire_of_a_method_that_sends_nothing_is_refused():
    with pytest.raises(InputError, match="local sends nothing that clip could touch"):
        play(method="local(epochs=1)", wire="clip(norm=0.001)")
