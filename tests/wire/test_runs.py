"""Runs with a wire: bytes, executors, resuming, clients that diverge, what measures and wrappers see."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

import unskew
from awkward import DATA, config, play, rows_without_times
from support import STACKED_TOLERANCE, gap, initial_model
from unskew.base import tree
from unskew.base.errors import InputError
from unskew.core.jobs import Job
from unskew.core.method import Method, methods
from unskew.models.user_module import GivenModule
from unskew.runs import building, comparison, engine
from unskew.runs.config import from_table
from unskew.wire.base import Processor, processors

SPECS = [
    ("fedavg", "quantise"),
    ("fedavg", "topk(share=0.1)"),
    ("scaffold", "clip(norm=0.5),topk(share=0.2),quantise(bits=5)"),
    ("fedas", "topk(share=0.2)"),
    ("flfa(fedprox, select=lowest)", "quantise(bits=12)"),
]
EVERY = pytest.mark.parametrize(("spec", "wire"), SPECS)
CONTIGUOUS = {"memory_format": "contiguous", "checkpoint_every": 1}


def job_of(task, round_=1, client=0, state=None):
    server = task.method.init(task.server_context(0))
    message = task.method.download(task.server_context(round_, (client,)), server, client)
    return Job("train", round_, client, message, state or {})


# ---------------------------------------------------------------------------------------------- bytes


def test_eight_bits_are_a_quarter_in_the_message_and_in_the_rows(tmp_path):
    options = {"clients": 4, "rounds": 2, "model": "mlp", "split": "iid"}
    plain, packed = (unskew.run(wire=wire, out=tmp_path / (wire or "none"), **options) for wire in ("", "quantise"))
    task = building.prepare(packed.run).task
    sent = task.work(job_of(task)).groups
    whole = tree.nbytes(building.prepare(plain.run).task.work(job_of(task)).groups)
    assert 0.25 <= tree.nbytes(sent) / whole < 0.252
    rows = [json.loads(line) for line in (tmp_path / "quantise/clients.jsonl").read_text().splitlines()]
    assert {row["bytes_up"] for row in rows if "bytes_up" in row} == {tree.nbytes(sent)}
    assert packed.rounds[1]["bytes_up"] == 4 * tree.nbytes(sent) and plain.rounds[1]["bytes_up"] == 4 * whole
    assert packed.summary["bytes_up"] == 8 * tree.nbytes(sent)
    assert packed.rounds[1]["bytes_down"] == plain.rounds[1]["bytes_down"]


def test_buffers_and_weights_travel_as_they_are():
    plain, packed = (building.prepare(config("fedas", wire=wire), dataset=DATA).task for wire in ("", "quantise"))
    mine, other = (task.work(job_of(task)) for task in (packed, plain))
    ours, theirs = mine.groups, other.groups
    assert mine.weight == other.weight != mine.num_samples
    assert all(torch.equal(ours["buffers"][name], value) for name, value in theirs["buffers"].items())
    decoded = packed.wire.decode(ours)["delta"]
    assert {name: value.shape for name, value in decoded.items()} == {n: v.shape for n, v in theirs["delta"].items()}


# ------------------------------------------------------------------------------------------ executors


@EVERY
def test_pool_equals_serial_bit_for_bit(spec, wire, tmp_path):
    serial = play(spec, tmp_path / "serial", wire=wire, dropout=0.3, rounds=3)
    execution = {"executor": "pool", "workers": 2, "checkpoint_every": 1}
    pool = play(spec, tmp_path / "pool", wire=wire, dropout=0.3, rounds=3, execution=execution)
    assert (tmp_path / "serial/model.safetensors").read_bytes() == (tmp_path / "pool/model.safetensors").read_bytes()
    assert rows_without_times(serial) == rows_without_times(pool)


class Double(nn.Module):
    """Takes its inputs to double precision."""

    def forward(self, x):
        return x.double()


def double_model():
    torch.manual_seed(0)
    body = [Double(), nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(24, 8), nn.ReLU()]
    return GivenModule.of(nn.Sequential(*body, nn.Linear(8, 3)).double(), "7")


def play_both(spec, **options):
    """A run on `serial` and on `stacked`, and how far they lie apart."""
    serial = play(spec, execution=CONTIGUOUS, **options)
    stacked = play(spec, execution={"executor": "stacked", "chunk": 3}, **options)
    assert [row.get("bytes_up") for row in stacked.rounds] == [row.get("bytes_up") for row in serial.rounds]
    assert stacked.summary["measures"]["drift"] == pytest.approx(serial.summary["measures"]["drift"], rel=1e-3)
    return gap(stacked, serial, initial_model(serial.run, DATA))


@EVERY
def test_stacked_equals_serial_within_the_tolerance(spec, wire, caplog):
    # one round: after it, a code that rounding turned by a level is as large as a step
    assert play_both(spec, wire=wire, rounds=1, measure="drift") < STACKED_TOLERANCE
    assert "one by one" not in caplog.text


@EVERY
def test_in_double_precision_nothing_but_the_last_digits_differs(spec, wire, caplog):
    """With a sample, clients that come for the first time stand beside others that remember something."""
    assert play_both(spec, wire=wire, rounds=4, sample=0.6, measure="drift", model=double_model()) < 1e-9
    assert "one by one" not in caplog.text


@EVERY
def test_interrupted_and_resumed_equals_uninterrupted(spec, wire, tmp_path):
    whole = play(spec, tmp_path / "whole", rounds=4, wire=wire, sample=0.6)

    def stop_after_two(row):
        if row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.run(config(spec, rounds=4, wire=wire, sample=0.6), tmp_path / "cut", dataset=DATA, watch=stop_after_two)
    resumed = engine.resume(tmp_path / "cut", dataset=DATA)
    assert rows_without_times(whole) == rows_without_times(resumed)
    assert (tmp_path / "whole/model.safetensors").read_bytes() == (tmp_path / "cut/model.safetensors").read_bytes()


# ------------------------------------------------------------------------------------------ client state


@methods.register("test_wire_state")
class State(Method):
    """Fails where it sees more than its own state."""

    def prepare(self, c):
        assert set(c.state) == {"mine"}
        return c

    def init_client(self, c):
        return {"mine": {"visits": torch.zeros(())}}

    def keep(self, c, params):
        return {"mine": {"visits": c.state["mine"]["visits"] + 1}}


@pytest.mark.parametrize("executor", ["serial", "stacked"])
def test_a_method_never_sees_what_the_wire_keeps(executor, caplog):
    execution = {"executor": executor, "chunk": 3}
    result = play("test_wire_state", wire="topk", sample=0.6, rounds=4, execution=execution)
    assert "one by one" not in caplog.text and result.summary["rounds"] == 4


def test_what_is_left_out_is_state_of_the_client():
    task = building.prepare(config("test_wire_state", wire="topk(share=0.5)"), dataset=DATA).task
    first = task.work(job_of(task))
    assert list(first.state) == ["mine", "wire/topk/delta"]
    whole = replace(task, wire=None).work(job_of(task)).groups["delta"]
    for name, value in task.wire.decode(first.groups)["delta"].items():
        torch.testing.assert_close(value + first.state["wire/topk/delta"][name], whole[name])
    second = task.work(job_of(task, round_=2, state=first.state))
    assert second.state["mine"]["visits"] == 2
    own = {"mine": first.state["mine"]}
    whole = replace(task, wire=None).work(job_of(task, round_=2, state=own)).groups["delta"]
    for name, value in task.wire.decode(second.groups)["delta"].items():
        kept = first.state["wire/topk/delta"][name] - second.state["wire/topk/delta"][name]
        torch.testing.assert_close(value, whole[name] + kept)


def test_a_division_that_grows_needs_topk_without_memory():
    spec = "fedper(division=channels(share=0.5, grow=2))"
    with pytest.raises(InputError, match=r"its shape changed from .*; use topk\(error_feedback=false\)"):
        play(spec, wire="topk", rounds=3)
    assert play(spec, wire="topk(error_feedback=false)", rounds=3).summary["rounds"] == 3


# ------------------------------------------------------------------------------- what the server reads


@methods.register("test_wire_diverges")
class Diverges(Method):
    """Client 1 sends NaN."""

    def upload(self, c, params):
        reply = super().upload(c, params)
        bad = torch.where(torch.as_tensor(c.client) == 1, float("nan"), 0.0)
        delta = {name: value + (bad if name.endswith("head.bias") else 0.0) for name, value in reply["delta"].items()}
        return {**reply, "delta": delta}


@pytest.mark.parametrize("executor", ["serial", "stacked"])
@pytest.mark.parametrize("wire", ["quantise", "quantise(bits=3)", "topk(share=0.1)", "clip", "topk,quantise(bits=2)"])
def test_a_client_that_diverged_is_left_out(wire, executor, caplog):
    result = play("test_wire_diverges", wire=wire, execution={"executor": executor, "chunk": 5})
    assert [row["excluded"] for row in result.rounds[1:]] == [[1], [1]]
    assert tree.all_finite(result.server) and "one by one" not in caplog.text


@processors.register("test_infinite")
class Infinite(Processor):
    """What it decodes is not finite, though what it sends is."""

    def decode(self, groups):
        return {group: {name: value / 0 for name, value in own.items()} for group, own in groups.items()}


@pytest.mark.parametrize("executor", ["serial", "stacked"])
def test_what_is_decoded_must_be_finite(executor):
    result = play("fedavg", wire="test_infinite", rounds=1, execution={"executor": executor, "chunk": 5})
    assert len(result.rounds[1]["excluded"]) == 5 and result.summary["diverged"]


def test_measures_and_wrappers_see_what_was_decoded():
    options = {"clients": 6, "rounds": 1, "measure": "drift", "split": "dirichlet:0.3", "epochs": 2}
    plain, packed = (unskew.run("flfa(select=lowest)", wire=wire, **options) for wire in ("", "quantise(bits=8)"))
    ours, theirs = (run.rounds[1] for run in (packed, plain))
    assert ours["measures"]["drift"] == pytest.approx(theirs["measures"]["drift"], rel=0.03)
    assert ours["measures"]["drift"] != theirs["measures"]["drift"]
    for layer, value in theirs["method"]["similarity"].items():
        assert ours["method"]["similarity"][layer] == pytest.approx(value, rel=0.03)
    assert ours["method"]["next_layers"] == theirs["method"]["next_layers"]


def test_a_survey_is_not_touched():
    spec = "fedaf(steps=3, server_epochs=2, ipc=2)"
    assert methods.build(spec).survey_reducers
    with pytest.raises(InputError, match="none of it averaged"):
        play(spec, wire="quantise")


def test_clipping_to_nothing_keeps_the_model_where_it_was():
    result = play("fedavg", wire="clip(norm=1e-9)", rounds=1)
    start = initial_model(result.run, DATA)
    assert max(float((result.server["model"][name] - value).abs().max()) for name, value in start.items()) < 1e-7


def test_a_comparison_is_refused_before_its_first_run(tmp_path):
    base = from_table({"clients": 4, "split": "iid", "rounds": 1, "model": "mlp", "wire": "quantise"})
    with pytest.raises(InputError, match="leave quantise out"):
        comparison.compare(base, [methods.build(name) for name in ("fedavg", "fedaf")], [0], tmp_path)
    assert not list(tmp_path.iterdir())
