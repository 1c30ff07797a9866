"""What every registered method must do, and a few compositions: generated over the registry."""

import copy
import json

import pytest
import torch

import unskew
from support import STACKED_TOLERANCE, gap, initial_model
from unskew import engine, parts
from unskew.config import from_table
from unskew.core import tree, wire
from unskew.core.jobs import Job
from unskew.core.method import methods
from unskew.core.registry import options, to_table
from unskew.core.wrapper import Wrapper
from unskew.data.dataset import Dataset, Samples

NAMES = [name for name in methods if not name.startswith("test_")]  # other tests register some of their own
PLAIN = [name for name in NAMES if not issubclass(methods.get(name), Wrapper)]
SPECS = [*PLAIN, *(f"{name}(fedprox(mu=0.1))" for name in NAMES if name not in PLAIN), "fedavg(terms=[prox(mu=1.0)])"]
EVERY = pytest.mark.parametrize("spec", SPECS)


def tiny_data(groups=None, classes=3, seed=0):
    """Three classes of 2x4x4 images that a small net can tell apart."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(60) % classes
    x = torch.randint(0, 100, (60, 2, 4, 4), generator=rng, dtype=torch.uint8) + (60 * y).to(torch.uint8).view(
        -1, 1, 1, 1
    )
    samples = Samples(x, y)
    names = tuple(str(group) for group in range(int(groups.max()) + 1)) if groups is not None else ()
    return Dataset("tiny", samples, samples, tuple("abc"), (0.5, 0.5), (0.5, 0.5), groups=groups, group_names=names)


def awkward_groups():
    """Five clients: one with a single sample, one whose last batch is one sample, one that misses two classes."""
    groups = torch.zeros(60, dtype=torch.int64)
    groups[0] = 1  # one sample in all
    groups[torch.arange(3, 60, 3)[:9]] = 2  # class 0 only; nine samples: with batch 8 the last batch is one sample
    groups[40:50], groups[50:] = 3, 4
    return groups


def config(spec, **options):
    """A run on tiny data: two rounds, all five clients."""
    base = {
        "method": spec, "model": "cnn8(norm=batch)", "split": "natural", "rounds": 2, "seed": 3,
        "local": {"batch": 8, "epochs": 2, "lr": 0.05, "momentum": 0.5}, "execution": {"checkpoint_every": 1},
    }  # fmt: skip
    return from_table({**base, **options})


DATA = tiny_data(awkward_groups())


def play(spec, out=None, **options):
    return engine.run(config(spec, **options), out, dataset=DATA)


def rows_without_times(result):
    rows = copy.deepcopy(result.rounds)
    for row in rows:
        row.pop("seconds")
    return rows


@EVERY
def test_runs_with_batchnorm_missing_classes_and_single_samples(spec):
    result = play(spec)
    assert tree.all_finite(result.server)
    assert not result.summary["diverged"] and result.summary["excluded_replies"] == 0


@EVERY
def test_equal_on_all_executors_bit_for_bit(spec, tmp_path):
    serial = play(spec, tmp_path / "serial")
    pool = play(spec, tmp_path / "pool", execution={"executor": "pool", "workers": 2, "checkpoint_every": 1})
    assert (tmp_path / "serial/model.safetensors").read_bytes() == (tmp_path / "pool/model.safetensors").read_bytes()
    assert rows_without_times(serial) == rows_without_times(pool)


@EVERY
def test_stacked_equals_serial_within_the_tolerance(spec, caplog):
    contiguous = {"memory_format": "contiguous"}
    serial = play(spec, execution=contiguous)
    stacked = play(spec, execution={"executor": "stacked", "chunk": 3})
    if methods.build(spec).stackable:
        assert "one by one" not in caplog.text
    assert gap(stacked, serial, initial_model(serial.run, DATA)) < STACKED_TOLERANCE
    for mine, theirs in zip(stacked.rounds, serial.rounds, strict=True):
        assert [mine.get(key) for key in ("clients", "bytes_up")] == [
            theirs.get(key) for key in ("clients", "bytes_up")
        ]


@EVERY
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
    task = parts.make_task(config(spec).resolved(DATA), DATA, parts.cut(config(spec), DATA))
    s = task.server_context(1, (0,))
    server = task.method.init(task.server_context(0))
    job = Job("train", 1, 0, task.method.download(s, server, 0), state or {})
    return task, server, job


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
    again = task.work(Job("train", 1, 0, wire.decode(wire.encode(job.message)), wire.decode(wire.encode(job.state))))
    for mine, theirs in ((reply.groups, again.groups), (reply.state, again.state)):
        sent = wire.decode(wire.encode(mine))
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


@pytest.mark.parametrize("name", [name for name in PLAIN if name not in ("fedavg", "scaffold")])
def test_default_differs_from_fedavg_after_one_round(name):
    mine, fedavg = play(name, rounds=1).server["model"], play("fedavg", rounds=1).server["model"]
    assert any(not torch.equal(mine[key], fedavg[key]) for key in mine)


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
    reply = task.work(job)
    result = play(spec, tmp_path / "run", rounds=1)
    rows = [json.loads(line) for line in (tmp_path / "run/clients.jsonl").read_text().splitlines()]
    row = next(row for row in rows if row["client"] == 0 and "bytes_up" in row)
    assert row["bytes_down"] == tree.nbytes(job.message)
    assert row["bytes_up"] == tree.nbytes(reply.groups)
    assert result.rounds[1]["bytes_up"] == sum(row["bytes_up"] for row in rows if "bytes_up" in row)


@EVERY
@pytest.mark.parametrize("buffers", ["average", "local", "reset"])
def test_buffer_policies(spec, buffers):
    result = play(spec, local={"batch": 8, "buffers": buffers})
    moved = {n: v for n, v in result.server["buffers"].items() if n.endswith("running_mean")}
    assert moved
    assert all((v.abs().sum() > 0) == (buffers == "average") for v in moved.values())


def test_the_schedule_the_batches_and_the_start_do_not_depend_on_the_method():
    runs = [play(spec, sample=0.6) for spec in SPECS]
    assert len({json.dumps([row.get("clients") for row in run.rounds]) for run in runs}) == 1
    assert len({run.rounds[0]["loss"] for run in runs}) == 1  # the initial model's


def test_python_entry_takes_objects():
    result = unskew.run("fedavg", data=DATA, model="mlp", split="natural", rounds=1)
    assert result.model()(torch.rand(2, 2, 4, 4)).logits.shape == (2, 3)
