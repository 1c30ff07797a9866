"""Processors of a user's own: what they draw, and faults of theirs in one line, in the first round or later."""

import pytest
import torch

import unskew
from small_runs import EXECUTORS, are_near, equal, make, play, register
from unskew import Processor
from unskew.base.errors import SlotError

pytestmark = pytest.mark.usefixtures("own_names")


def add_noise(groups):
    return {g: {n: v + 0.01 * torch.rand(v.shape) for n, v in own.items()} for g, own in groups.items()}


def write_data(groups):
    for own in groups.values():
        for value in own.values():
            value.data.mul_(2)
    return groups


def send(self, c, groups, memory, stream):
    return groups, {}


def test_decode_draws_from_a_stream_of_client_and_round(tmp_path):
    register("processors", "noisy", Processor, encode=send, decode=lambda self, groups: add_noise(groups))
    options = {"wire": "noisy", "rounds": 3, "checkpoint_every": 1}
    serial, again, pool, stacked = (play(executor=how, **options) for how in ("serial", "serial", "pool", "stacked"))

    def stop(row):
        if row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(out=tmp_path / "cut", watch=stop, **options)
    assert equal(serial, again) and equal(serial, pool) and equal(serial, unskew.resume(tmp_path / "cut"))
    assert are_near(serial, stacked)


def test_encode_that_draws_works_client_by_client_in_a_stack(caplog):
    encode = lambda self, c, groups, memory, stream: (add_noise(groups), {})  # noqa: E731
    register("processors", "noisy", Processor, encode=encode)
    serial, pool, stacked = (play(wire="noisy", executor=how) for how in EXECUTORS)
    assert "draws from torch's global generator" in caplog.text
    assert equal(serial, pool) and are_near(serial, stacked)


def fail(self, groups):
    raise ValueError("mine")


def fail_later(self, groups, seen=[]):  # noqa: B006 - the first reply is asked for twice, at the client and at the server
    seen.append(1)
    return groups if len(seen) < 3 else fail(self, groups)


DECODE = {
    "writes through data": (lambda self, groups: write_data(groups), r"decode changes groups\[.*in place"),
    "fails": (fail, r"client \d failed in round 1: ValueError: mine, in wire processor noisy\.decode \(.*line \d"),
    "gives nothing": (lambda self, groups: None, "decode must return groups .* got None"),
    "loses": (lambda self, groups: {}, "decode must give back what encode got"),
}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("what", DECODE)
def test_a_faulty_decode_is_one_line(what, executor):
    decode, said = DECODE[what]
    register("processors", "noisy", Processor, encode=send, decode=decode)
    with pytest.raises(SlotError, match=said) as error:
        play(wire="noisy", executor=executor)
    assert "\n" not in str(error.value) and "in round 1" in str(error.value)


def test_a_decode_that_fails_later_names_the_client():
    register("processors", "noisy", Processor, encode=send, decode=fail_later)
    with pytest.raises(
        SlotError, match=r"client \d failed in round 1: ValueError: mine, in wire processor noisy.decode"
    ) as error:
        play(wire="noisy")
    assert error.value.client in range(3)


# --------------------------------------------------------------------------------------------------------- later rounds

LATE = {
    "must give back what encode got": lambda value, late: value[:1] if late else value,
    "must give back what encode got, expected .* float32, got .* float16": lambda v, late: v.half() if late else v,
    "must give back what encode got, expected .*, got nothing": lambda value, late: None if late else value,
}


@pytest.mark.parametrize("executor", ["serial", "pool", "stacked"])
@pytest.mark.parametrize("line", LATE)
def test_a_processor_that_fails_later_is_named(line, executor):
    def encode(self, c, groups, memory, stream):
        late = torch.ones(1) if c.round > 1 else torch.zeros(1)
        return {group: {**own, "late": late} for group, own in groups.items()}, {}

    def decode(self, groups):
        made = {}
        for group, own in groups.items():
            values = {n: LATE[line](v, bool(own["late"])) for n, v in own.items() if n != "late"}
            made[group] = {name: value for name, value in values.items() if value is not None}
        return made

    name = make("processors", unskew.Processor, encode=encode, decode=decode)
    with pytest.raises(SlotError, match=rf"{name}.decode {line}"):
        play(wire=[name], executor=executor, rounds=3)


def test_a_processor_that_sends_nothing_later_is_named():
    def encode(self, c, groups, memory, stream):
        return (groups if c.round == 1 else {}), {}

    name = make("processors", unskew.Processor, encode=encode)
    with pytest.raises(SlotError, match=rf"{name}.decode must give back what encode got"):
        play(wire=[name], rounds=2)


# ----------------------------------------------------------------------------------------------------- what others read


@pytest.mark.parametrize("executor", ["serial", "pool"])
def test_a_wire_processor_cannot_change_the_counts_of_others(executor):
    def encode(self, c, groups, memory, stream):
        samples, steps = c.num_samples, c.num_steps
        samples += 1000
        steps *= 0.5
        return groups, {}

    register("processors", "counting", Processor, encode=encode, decode=lambda self, groups: groups)
    plain = play(method="fednova", executor=executor)
    play(method="fednova", executor=executor, wire="counting")
    assert equal(plain, play(method="fednova", executor=executor))
    assert equal(plain, play(method="fednova", executor=executor, wire="counting"))
