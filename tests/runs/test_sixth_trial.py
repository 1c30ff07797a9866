"""What a sixth trial by a newcomer found: a quiet exit, training that trains nobody, more options that do nothing."""

import itertools
import sys

import pytest
import torch

from small_runs import play, register, said
from unskew import Draws, Method, Transform, normalise
from unskew.base import once
from unskew.base.errors import InputError, SlotError
from unskew.cli import main

NUMBERS = itertools.count()


def method(**body):
    """A method with these functions; its name."""
    name = f"test_sixth_{next(NUMBERS)}"
    register("methods", name, Method, **body)
    return name


def test_an_exit_in_own_terms_is_a_line():
    with pytest.raises(InputError, match="own_terms fails: SystemExit"):
        play(method=method(own_terms=lambda self: sys.exit(0)))


def test_the_command_does_not_say_that_all_is_done(tmp_path, capsys, monkeypatch):
    (tmp_path / "leaves.py").write_text(
        "import sys\nfrom unskew import Method, registries\n"
        "@registries.methods.register('test_sixth_leaves')\nclass Leaves(Method):\n    'x'\n"
        "    def own_terms(self): sys.exit(0)\n"
    )
    with pytest.raises(SystemExit) as ended:
        main(["run", "--plugin", str(tmp_path / "leaves.py"), "--method", "test_sixth_leaves", "--clients", "2",
              "--rounds", "1", "--out", str(tmp_path / "run")])  # fmt: skip
    assert ended.value.code == 2 and "own_terms fails: SystemExit" in capsys.readouterr().err

    def leave(*_, **__):
        exec("import sys; sys.exit(0)")  # wherever a user's code may stand

    monkeypatch.setattr("unskew.cli.run.to_run", leave)
    with pytest.raises(SystemExit) as ended:
        main(["run", "--clients", "2", "--rounds", "1", "--out", str(tmp_path / "run")])
    assert ended.value.code == 1 and "called sys.exit(0)" in capsys.readouterr().err


def test_batches_of_one_with_batchnorm_are_refused():
    with pytest.raises(InputError, match=r"local.batch = 1 with BatchNorm would train nobody"):
        play(model="cnn8(norm=batch)", batch=1)
    assert play(model="mlp(hidden=[4])", batch=1, steps=2, rounds=1).rounds[-1]["train_loss"] is not None


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"stragglers": 0.1}, "stragglers = 0.1 of 3 clients are none"),
        ({"precision": "tf32"}, "tf32 is for GPUs and does nothing on the CPU"),
        ({"memory_format": "channels_last"}, "channels_last does nothing: the network has no convolutions"),
        ({"augment": "augment(pad_mode=reflect)"}, "pad_mode = reflect does nothing without crop"),
        ({"steps": 2, "epochs": 3}, "local.steps = 2 takes the place of epochs; local.epochs = 3 does nothing"),
        ({"data": "part(of=digits, train=100000, test=30)"}, "100000 samples were asked for, there are 1437"),
        ({"dropout": 0.999}, "every sampled client dropped out, so that the model stays as it is"),
    ],
)
def test_what_does_nothing_is_said(options, line, caplog):
    once.warn_once.cache_clear()  # said once in a process
    play(**{**options, "seed": 123})
    assert line in said(caplog)


def test_an_augmentation_on_another_device_is_a_line():
    name = f"test_sixth_{next(NUMBERS)}"
    body = {"draw": lambda self, n, shape, rng: Draws(torch.rand(n, generator=rng)),
            "apply": lambda self, x, draws, mean, std: normalise(x, mean, std).to("meta")}  # fmt: skip
    register("transforms", name, Transform, **body)
    with pytest.raises(SlotError, match="gives samples on another device"):
        play(augment=name)
