"""What every registered method must do, and a few compositions: generated over the registry."""

import copy
import json

import pytest
import torch

import unskew
from awkward import DATA, config, play, quick, rows_without_times
from support import gap, initial_model, survey
from unskew.base import storage, tree
from unskew.base.registry import options, to_table
from unskew.core.jobs import Job
from unskew.core.method import methods
from unskew.core.tolerance import find_tolerance
from unskew.core.wrapper import Wrapper
from unskew.runs import building, engine

NAMES = [name for name in methods if not name.startswith("test_")]  # other tests register some of their own
PLAIN = [name for name in NAMES if not issubclass(methods.get(name), Wrapper)]
SPECS = [
    *map(quick, PLAIN),
    *(f"{name}(fedprox(mu=0.1))" for name in NAMES if name not in PLAIN),
    "fedavg(terms=[prox(mu=1.0)])",
]
EVERY = pytest.mark.parametrize("spec", SPECS)
KEEPING = [
    "fedaf(steps=3, server_epochs=2, ipc=2, exchange=stale, warm_start=true, quantise=true)",
    "fedper(evaluate=own)", "fedas(division=channels(share=0.5, grow=2))", "flfa(scaffold)", "fedsol(scaffold)",
]  # fmt: skip
"""Variants whose clients or server keep something else between rounds than their method's default."""
EVERY_STATE = pytest.mark.parametrize("spec", [*SPECS, *KEEPING])


@EVERY
def test_runs_with_batchnorm_missing_classes_and_single_samples(spec):
    result = play(spec)
    assert tree.all_finite(result.server)
    assert not result.summary["diverged"] and result.summary["excluded_replies"] == 0


@EVERY_STATE
def test_pool_equals_serial_bit_for_bit(spec, tmp_path):
    serial = play(spec, tmp_path / "serial", dropout=0.3)
    execution = {"executor": "pool", "workers": 2, "checkpoint_every": 1}
    pool = play(spec, tmp_path / "pool", dropout=0.3, execution=execution)
    assert (tmp_path / "serial/model.safetensors").read_bytes() == (tmp_path / "pool/model.safetensors").read_bytes()
    assert rows_without_times(serial) == rows_without_times(pool)


STEADY = ("fedblade(var_eps=0.01)", "feddecorr(var_eps=0.01)")
"""With their defaults these promise nothing: test_tolerance.py has what holds then."""


@pytest.mark.parametrize("spec", [*SPECS, *STEADY])
def test_stacked_equals_serial_within_what_the_method_promises(spec, caplog):
    contiguous = {"memory_format": "contiguous"}
    serial = play(spec, execution=contiguous)
    stacked = play(spec, execution={"executor": "stacked", "chunk": 3})
    if methods.build(spec).stackable:
        assert "one by one" not in caplog.text
    assert gap(stacked, serial, initial_model(serial.run, DATA)) <= find_tolerance(methods.build(spec))
    for mine, theirs in zip(stacked.rounds, serial.rounds, strict=True):
        assert [mine.get(key) for key in ("clients", "bytes_up")] == [
            theirs.get(key) for key in ("clients", "bytes_up")
        ]


@EVERY_STATE
def test_interrupted_and_resumed_equals_uninterrupted(spec, tmp_path):
    whole = play(spec, tmp_path / "whole", rounds=4)

    def stop_after_two(row):
        if row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.run(config(spec, rounds=4), tmp_path / "cut", dataset=DATA, watch=stop_after_two)
    resumed = engine.resume(tmp_path / "cut", dataset=DATA)
    assert rows_without_times(whole) == rows_without_times(resumed)
    assert (tmp_path / "whole/model.safetensors").read_bytes() == (tmp_path / "cut/model.safetensors").read_bytes()


def visit(spec, state=None):
    """A client's visit in round 1: its job, before and after."""
    task = building.prepare(config(spec), dataset=DATA).task
    s = task.server_context(1, (0,))
    method = task.method
    server = method.init(task.server_context(0))
    message = method.download(s, server, 0)
    if method.survey_reducers:
        message |= survey(task, server, message)
    return task, server, Job("train", 1, 0, message, state or {})


@EVERY
def test_slots_change_nothing_they_are_given(spec):
    task, server, job = visit(spec)
    first = task.work(job)
    job = Job("train", 1, 0, job.message, first.state)
    before = copy.deepcopy((server, job.message, job.state, task.initial))
    task.work(job)
    after = (server, job.message, job.state, task.initial)
    for old, new in zip(before, after, strict=True):
        for group in old:
            for name in old[group]:
                assert torch.equal(old[group][name], new[group][name]), (group, name)


@EVERY
def test_messages_replies_and_states_survive_the_wire(spec):
    task, _, job = visit(spec)
    reply = task.work(job)
    again = task.work(
        Job("train", 1, 0, storage.decode(storage.encode(job.message)), storage.decode(storage.encode(job.state)))
    )
    for mine, theirs in ((reply.groups, again.groups), (reply.state, again.state)):
        sent = storage.decode(storage.encode(mine))
        assert [(g, list(t)) for g, t in sent.items()] == [(g, list(t)) for g, t in mine.items()]
        for group in mine:
            for name in mine[group]:
                assert torch.equal(mine[group][name], theirs[group][name])
                assert torch.equal(mine[group][name], sent[group][name])


@EVERY
def test_every_option_can_be_set_from_text_and_tables(spec):
    method = methods.build(spec)
    assert methods.build(str(method)) == method
    assert methods.build(to_table(method)) == method
    assert methods.build(json.loads(json.dumps(to_table(method)))) == method
    for option in options(type(method)):
        assert option.doc, f"{spec}.{option.name} has no meaning"


LATE = (
    "scaffold", "fedavgm", "flfa", "finetuned", "own", "fedavg_p", "moon", "fedproto", "ditto", "fedala", "knnper",
    "fedgen",
)  # fmt: skip
"""Methods whose first round is FedAvg's by design; some leave the server's model to the method inside for good."""


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("fedavg", *LATE)])
def test_default_differs_from_fedavg_after_one_round(name):
    personal = {"local_test": "holdout"}
    mine, fedavg = (play(spec, rounds=1, evaluation=personal) for spec in (quick(name), "fedavg"))
    pairs = [(mine.server["model"][key], value) for key, value in fedavg.server["model"].items()
             if key in mine.server["model"]]  # fmt: skip
    assert any(not torch.equal(ours, theirs) for ours, theirs in pairs)


def test_scaffold_equals_fedavg_in_the_first_round_and_not_in_the_second():
    first = [play(name, rounds=1).server["model"] for name in ("scaffold", "fedavg")]
    second = [play(name, rounds=2).server["model"] for name in ("scaffold", "fedavg")]
    assert all(torch.equal(first[0][key], first[1][key]) for key in first[0])
    assert any(not torch.equal(second[0][key], second[1][key]) for key in second[0])


@EVERY
def test_a_client_that_drops_out_is_said_and_does_no_harm(spec):
    result = play(spec, dropout=0.6, rounds=3)
    dropped = [row["dropped"] for row in result.rounds[1:]]
    assert any(dropped) and tree.all_finite(result.server)
    assert all(set(row["dropped"]) <= set(row["clients"]) for row in result.rounds[1:])


@EVERY
def test_all_clients_drop_out_keeps_the_model(spec):
    _, server, _ = visit(spec)
    result = play(spec, dropout=0.999999, rounds=1)
    assert not result.summary["diverged"]
    for name, value in server["model"].items():
        assert torch.equal(value, result.server["model"][name])


@EVERY
def test_bytes_are_those_of_the_messages(spec, tmp_path):
    task, _, job = visit(spec)
    if task.method.survey_reducers:
        pytest.skip("what the server sends after a survey depends on all clients; its own tests count its bytes")
    reply = task.work(job)
    result = play(spec, tmp_path / "run", rounds=1)
    rows = [json.loads(line) for line in (tmp_path / "run/clients.jsonl").read_text().splitlines()]
    row = next(row for row in rows if row["client"] == 0 and "bytes_up" in row)
    assert row["bytes_down"] == tree.nbytes(job.message)
    own_weight = 0 if reply.weight == reply.num_samples else 4
    assert row["bytes_up"] == tree.nbytes(reply.groups) + own_weight
    assert result.rounds[1]["bytes_up"] == sum(row["bytes_up"] for row in rows if "bytes_up" in row)


@EVERY
@pytest.mark.parametrize("buffers", [pytest.param("average", marks=pytest.mark.slow), "local", "reset"])
def test_buffer_policies(spec, buffers):
    result = play(spec, local={"batch": 8, "buffers": buffers})
    moved = {n: v for n, v in result.server["buffers"].items() if n.endswith("running_mean")}
    policy = methods.build(spec).buffer_policy or buffers
    assert moved
    assert all((v.abs().sum() > 0) == (policy == "average") for v in moved.values())


def test_the_schedule_the_batches_and_the_start_do_not_depend_on_the_method():
    runs = [play(spec, sample=0.6) for spec in SPECS]
    assert len({json.dumps([row.get("clients") for row in run.rounds]) for run in runs}) == 1
    plain = initial_model(config("fedavg"), DATA)
    same = [run for run in runs if initial_model(run.run, DATA).keys() == plain.keys() and "loss" in run.rounds[0]]
    assert len({run.rounds[0]["loss"] for run in same}) == 1  # the initial model's
    for run in runs:
        body = {name: value for name, value in initial_model(run.run, DATA).items() if name.startswith("body.")}
        assert all(torch.equal(value, plain[name]) for name, value in body.items())


def test_python_entry_takes_objects():
    result = unskew.run("fedavg", data=DATA, model="mlp", split="natural", rounds=1)
    assert result.model()(torch.rand(2, 2, 4, 4)).logits.shape == (2, 3)
