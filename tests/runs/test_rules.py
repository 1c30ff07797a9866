"""What changes rounding follows written rules: no clock, no look at the free memory; and it is part of the hash."""

import logging
import time
from dataclasses import replace

import pytest
import torch

from unskew.base.errors import InputError
from unskew.data.sources import load
from unskew.models.base import build
from unskew.runs import building, calibration, engine, rules
from unskew.runs.config import from_table
from unskew.runs.folder import RunFolder
from unskew.runs.sections import Execution

DIGITS = load(from_table({}).data)
TABLE = {"clients": 20, "split": "iid", "rounds": 2, "model": "mlp"}


def resolve(execution=None, **changes):
    return from_table({**TABLE, **changes, "execution": execution or {}}).resolve(DIGITS)


@pytest.fixture
def blind(monkeypatch):
    """Neither clock nor memory can be looked at."""

    def never(*_):
        raise AssertionError("a rule looked at the clock or at the memory")

    for name in ("perf_counter", "monotonic", "process_time"):  # not `time`, with which logging dates its lines
        monkeypatch.setattr(time, name, never)
    monkeypatch.setattr(calibration, "free_memory", never)
    monkeypatch.setattr(calibration, "_time", never)


@pytest.mark.parametrize("model", ["mlp", "cnn8", "cnn8(norm=batch)"])
@pytest.mark.parametrize("executor", ["serial", "stacked", "auto"])
def test_rules_do_not_measure_and_leave_nothing_open(blind, model, executor):
    found = resolve({"executor": executor}, model=model)
    assert found.execution.memory_format != "auto"
    assert bool(found.execution.chunk) == (found.execution.executor == "stacked")
    assert found == resolve({"executor": executor}, model=model) == found.resolve(DIGITS)


def test_rules_draw_no_random_numbers():
    before = torch.default_generator.get_state()
    resolve({"executor": "stacked"}, model="cnn8(norm=batch)")
    assert torch.equal(before, torch.default_generator.get_state())


@pytest.mark.parametrize(
    ("model", "device", "precision", "expected"),
    [
        ("mlp", "cpu", "float32", "contiguous"),
        ("cnn8", "cpu", "float32", "channels_last"),
        ("cnn8", "cpu", "bfloat16", "channels_last"),
        ("cnn8", "cuda", "float32", "contiguous"),
        ("cnn8", "cuda:1", "tf32", "channels_last"),
        ("cnn8", "cuda", "bfloat16", "channels_last"),
        ("mlp", "cuda", "bfloat16", "contiguous"),
    ],
)
def test_memory_format_by_network_device_and_precision(model, device, precision, expected):
    execution = Execution(device=device, precision=precision)
    assert rules.choose_memory_format(build(model, (1, 8, 8), 10), execution) == expected


@pytest.mark.parametrize(
    ("changes", "execution", "expected"),
    [
        ({}, {}, "stacked"),
        ({"method": "fedprox(mu=0.1)"}, {}, "stacked"),
        ({"sample": 0.3}, {}, "auto"),  # six clients
        ({"model": "mlp(hidden=[256])"}, {}, "auto"),
        ({"model": "cnn8"}, {}, "auto"),
        ({"method": "fedaf"}, {}, "auto"),  # not stackable
        ({"method": "feddecorr"}, {}, "auto"),  # stacked would promise nothing
        ({"method": "feddecorr(var_eps=0.01)"}, {}, "stacked"),
        ({"method": "flfa(fedavg(terms=[lddecorr]))"}, {}, "auto"),
        ({"wire": "quantise(bits=8)"}, {}, "auto"),
        ({"wire": "quantise(bits=16)"}, {}, "stacked"),
        ({}, {"memory_format": "contiguous"}, "auto"),  # fixed, as in a run that is resumed
    ],
)
def test_auto_stacks_tiny_dense_networks_only_and_says_so(caplog, changes, execution, expected):
    caplog.set_level(logging.INFO)
    assert resolve({"executor": "auto", **execution}, **changes).execution.executor == expected
    assert ("executor: stacked" in caplog.text) == (expected == "stacked")


@pytest.mark.parametrize("free", [0, 1 << 20, 1 << 40])
def test_a_chunk_fits_a_fixed_budget_whatever_is_free(monkeypatch, free):
    monkeypatch.setattr(calibration, "free_memory", lambda device: free)
    run = engine.run(from_table({**TABLE, "rounds": 1, "execution": {"executor": "stacked"}})).run
    assert run.execution.chunk == 20


def test_a_chunk_is_bounded_by_budget_cohort_and_most_clients(monkeypatch):
    model = build("cnn8", (1, 8, 8), 10)
    each = rules.estimate_bytes(model, (1, 8, 8), 32)
    assert 2 * each > rules.estimate_bytes(model, (1, 8, 8), 64) > each
    assert rules.choose_chunk(model, (1, 8, 8), 32, 1000) == rules.MOST_CLIENTS
    assert rules.choose_chunk(model, (1, 8, 8), 32, 5) == 5
    for budget, expected in ((0, 1), (each, 1), (3 * each, 3)):
        monkeypatch.setattr(rules, "MEMORY_BUDGET", budget)
        assert rules.choose_chunk(model, (1, 8, 8), 32, 1000) == expected


@pytest.mark.parametrize(
    ("model", "changes", "expected"),
    [
        ("mlp", {}, 1000),
        ("cnn8", {}, 1000),  # 8 KiB a sample in the largest layer
        ("fedavg_cnn", {}, 1000),
        ("mobilenetv2", {}, 200),  # 36 KiB
        ("mobilenetv2", {"method": "fedbn"}, 1000),  # a test of the global model takes its batch's statistics
        ("mobilenetv2", {"method": "flfa(fedbn)"}, 1000),
        ("mobilenetv2", {"local": {"buffers": "reset"}}, 1000),
        ("mobilenetv2", {"local": {"buffers": "local"}}, 1000),
        ("mobilenetv2", {"evaluation": {"batch": 7}}, 7),
    ],
)
def test_test_batches_fit_a_cache_but_where_a_test_takes_its_batchs_statistics(blind, model, changes, expected):
    found = resolve(model=model, **changes)
    assert found.evaluation.batch == expected == found.resolve(DIGITS).evaluation.batch


def test_a_gpu_tests_a_thousand_at_once():
    model, shape = build("fedavg_cnn", (3, 32, 32), 10), (3, 32, 32)
    found = [rules.choose_test_batch(model, shape, Execution(device=device), "average") for device in ("cpu", "cuda")]
    assert found == [50, 1000]


@pytest.mark.parametrize("size", [1, 7, 360, 1500])
def test_test_batches_of_any_size_give_the_same_figures_in_jobs_of_about_a_thousand(size):
    found = [engine.run(from_table({**TABLE, "model": "cnn8", "evaluation": {"batch": each}})) for each in (size, 1000)]
    rows = [run.rounds[-1] for run in found]
    assert rows[0]["accuracy"] == rows[1]["accuracy"]
    assert rows[0]["loss"] == pytest.approx(rows[1]["loss"], rel=1e-6)
    task = building.prepare(from_table(TABLE), dataset=DIGITS).task
    assert replace(task, eval_batch=size).test_part == {1: 1000, 7: 994, 360: 720, 1500: 1500}[size]


def test_what_is_asked_for_is_kept():
    assert resolve({"executor": "stacked", "chunk": 3}).execution.chunk == 3
    assert resolve({"memory_format": "contiguous"}, model="cnn8").execution.memory_format == "contiguous"
    assert resolve({"device": "auto"}).execution.device in ("cpu", "cuda")


def test_the_hash_is_equal_for_equal_bits_and_differs_where_rounding_may():
    plain = resolve()
    for same in (
        {"executor": "pool"}, {"workers": 3}, {"executor": "pool", "workers": 3, "retries": 1}, {"chunk": 7},
        {"memory_format": "contiguous"}, {"checkpoint_every": 3}, {"state_memory": 1},
    ):  # fmt: skip
        assert resolve(same).hash == plain.hash, same
    stacked = {"executor": "stacked"}
    others = [
        plain, resolve({"threads": 2}), resolve({"precision": "bfloat16"}), resolve({"memory_format": "channels_last"}),
        resolve(stacked), resolve({**stacked, "chunk": 7}), resolve({**stacked, "compile": True}),
        replace(plain, execution=replace(plain.execution, device="cuda")),
    ]  # fmt: skip
    assert len({run.hash for run in others}) == len(others)
    assert resolve({**stacked, "chunk": 20}).hash == resolve(stacked).hash == resolve({"executor": "auto"}).hash
    on_gpu = [replace(plain, execution=replace(plain.execution, device=name)).hash for name in ("cuda", "cuda:1")]
    assert on_gpu[0] == on_gpu[1]


@pytest.mark.parametrize("execution", [{}, {"executor": "pool"}, {"executor": "stacked"}, {"executor": "auto"}])
@pytest.mark.parametrize("model", ["mlp", "cnn8"])
def test_a_folder_gives_the_hash_that_named_it(tmp_path, model, execution):
    wanted = from_table({**TABLE, "model": model, "rounds": 1, "execution": execution})
    named = wanted.resolve(DIGITS).hash
    done = engine.run(wanted, tmp_path / "run")
    folder, read = RunFolder.open(tmp_path / "run")
    assert named == done.run.hash == read.hash == read.resolve(DIGITS).hash == folder.summary()["run"]


def interrupt(path, execution):
    def stop(row):
        if row["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.run(from_table({**TABLE, "execution": {"checkpoint_every": 1, **execution}}), path, watch=stop)
    return path


@pytest.mark.parametrize(
    ("begun", "wanted"), [("serial", "pool"), ("pool", "serial"), ("serial", "auto"), ("stacked", "stacked")]
)
def test_resume_with_an_executor_that_gives_the_same_bits(tmp_path, begun, wanted):
    path = interrupt(tmp_path / "run", {"executor": begun})
    resumed = engine.resume(path, executor=wanted)
    whole = engine.run(from_table({**TABLE, "execution": {"executor": begun}}))
    assert resumed.run.hash == whole.run.hash
    assert all(torch.equal(value, whole.server["model"][name]) for name, value in resumed.server["model"].items())


@pytest.mark.parametrize(("begun", "wanted"), [("serial", "stacked"), ("stacked", "serial"), ("stacked", "auto")])
def test_resume_with_other_rounding_is_refused(tmp_path, begun, wanted):
    path = interrupt(tmp_path / "run", {"executor": begun})
    with pytest.raises(InputError, match=rf"begun with executor '{begun}'.* got '{wanted}'; leave --executor out"):
        engine.resume(path, executor=wanted)
