"""Lines that name the right thing: which fault a reply had, whose work failed, what an option is for."""

import pytest
import torch

import unskew
from awkward import DATA, config, play
from unskew.base.errors import ClientError, InputError
from unskew.base.text import count_of
from unskew.core.method import Method, methods
from unskew.models.base import build
from unskew.runs import engine


@methods.register("test_messages_weight")
class Weight(Method):
    """Client 1 has a weight that cannot be."""

    negative: bool = unskew.param(default=False, doc="a number below 0 instead of none")

    def weight(self, c, params):
        return torch.where(torch.as_tensor(c.client == 1), -2.0 if self.negative else torch.nan, 3.0)


@methods.register("test_messages_everybody")
class Everybody(Method):
    """No weight is a number."""

    def weight(self, c, params):
        return c.num_samples * torch.nan


@methods.register("test_messages_nan")
class Spoilt(Method):
    """Client 1 sends NaN."""

    def upload(self, c, params):
        reply = super().upload(c, params)
        bad = torch.where(torch.as_tensor(c.client == 1), torch.nan, 0.0)
        return {**reply, "delta": {name: value + bad for name, value in reply["delta"].items()}}


@methods.register("test_messages_predict")
class Broken(Method):
    """Its test fails."""

    def predict(self, c, params, x):
        raise ValueError("no idea")


@pytest.mark.parametrize("executor", ["serial", "stacked"])
@pytest.mark.parametrize(("spec", "line"), [
    ("test_messages_weight", "clients [1] sent a weight of nan, where only finite ones from 0 up count, and are left"),
    ("test_messages_nan", "clients [1] sent NaN or infinite values in group delta, and are left out"),
])  # fmt: skip
def test_what_was_wrong_with_a_reply_is_said(spec, line, executor, caplog):
    result = play(spec, rounds=1, execution={"executor": executor})
    assert line in caplog.text
    assert (
        result.rounds[1]["excluded"] == [1]
        and line.split(" sent ")[1].split(", and")[0] == result.rounds[1]["faults"]["1"]
    )


@pytest.mark.parametrize("executor", ["serial", "pool", "stacked"])
def test_a_negative_weight_is_the_fault_of_its_slot(executor):
    with pytest.raises(ClientError, match=r"test_messages_weight.weight must return a number .* not below 0, got -2"):
        play("test_messages_weight(negative=true)", rounds=1, execution={"executor": executor})


def test_weights_that_are_no_numbers_are_not_taken_for_a_learning_rate_that_is_too_high(caplog):
    play("test_messages_everybody", rounds=1)
    assert "no client's reply could be used" in caplog.text and "weight(c, params)" in caplog.text
    assert "lower lr" not in caplog.text


def test_numbers_that_explode_still_ask_for_a_lower_lr(caplog):
    play("fedavg", model="mlp", rounds=2, local={"lr": 1e38, "epochs": 3})
    assert "lower lr" in caplog.text


def test_rows_of_sound_rounds_say_nothing_of_faults():
    assert "faults" not in play("fedavg", rounds=1).rounds[1]


@pytest.mark.parametrize("executor", ["serial", "pool"])
def test_a_test_of_the_global_model_that_fails_is_no_client_s(executor):
    expected = r"^the test of the global model failed before the first round: ValueError: no idea"
    with pytest.raises(ClientError, match=expected):
        engine.run(config("test_messages_predict", execution={"executor": executor}), dataset=DATA)


def test_a_model_is_not_told_to_be_replaced_by_itself():
    with pytest.raises(InputError, match="cnn8 needs images of at least 2x2, got 1x4; use mlp instead"):
        build("cnn8", (1, 1, 4), 3)
    with pytest.raises(InputError, match="use cnn8 or mlp instead"):
        build("resnet18", (1, 4, 4), 3)


@pytest.mark.parametrize(("option", "executor", "needed"), [
    ("chunk", "serial", "stacked"), ("workers", "serial", "pool"), ("chunk", "pool", "stacked"),
])  # fmt: skip
def test_an_option_of_another_executor_is_said_once(option, executor, needed, caplog):
    from unskew.base import once

    once.warn_once.cache_clear()
    for _ in range(2):
        play("fedavg", rounds=1, execution={"executor": executor, option: 3})
    line = f"execution.{option} (--{option}) is for executor '{needed}' and does nothing with '{executor}'"
    assert caplog.text.count(line) == 1
    caplog.clear()
    play("fedavg", rounds=1, execution={"executor": needed, option: 3})
    assert "does nothing" not in caplog.text


def test_one_is_not_many():
    assert [count_of(n, "round") for n in (0, 1, 2)] == ["0 rounds", "1 round", "2 rounds"]
    assert count_of(2, "class", "classes") == "2 classes"
