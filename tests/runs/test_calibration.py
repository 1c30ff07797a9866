"""`auto` between executors that give the same bits: measured once, written down, and not measured again."""

import json
import logging

import pytest
import torch

from unskew.base.errors import ClientError
from unskew.core.method import Method, methods
from unskew.runs import calibration, engine
from unskew.runs.config import from_table, read_file

TABLE = {"clients": 6, "split": "iid", "rounds": 2, "model": "cnn8", "execution": {"executor": "auto", "workers": 2}}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("UNSKEW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def clock(monkeypatch):
    """What a test says that a short visit takes, in seconds."""
    times = {"visit": 1.0, "asked": 0}

    def measured(work):
        work()
        times["asked"] += 1
        return times["visit"]

    monkeypatch.setattr(calibration, "_time", measured)
    return times


def never(*_, **__):
    raise AssertionError("measured again")


@pytest.mark.parametrize(("visit", "expected"), [(1.0, "pool"), (1e-4, "serial")])
def test_the_faster_one_is_chosen_and_said(clock, caplog, visit, expected):
    caplog.set_level(logging.INFO)
    clock["visit"] = visit
    assert engine.run(from_table(TABLE)).run.execution.executor == expected
    assert f"executor: {expected} (estimated seconds a round: serial" in caplog.text


@pytest.mark.parametrize("execution", [{"workers": 1}, {"threads": 2}])
def test_nothing_is_measured_where_there_is_no_choice(monkeypatch, own_cache, execution):
    monkeypatch.setattr(calibration, "_time", never)
    found = engine.run(from_table({**TABLE, "execution": {"executor": "auto", "workers": 2, **execution}}))
    assert found.run.execution.executor == "serial" and not own_cache.exists()


def test_what_was_chosen_is_written_and_taken_by_rerun_and_resume(clock, tmp_path, monkeypatch):
    first = engine.run(from_table(TABLE), tmp_path / "first")
    written = read_file(tmp_path / "first/run.toml")["execution"]
    assert (written["executor"], written["memory_format"]) == ("pool", "channels_last")
    monkeypatch.setattr(calibration, "_time", never)
    again = engine.run(from_table(read_file(tmp_path / "first/run.toml")), tmp_path / "again")
    (tmp_path / "first/summary.json").unlink()
    resumed = engine.resume(tmp_path / "first")
    assert first.run.hash == again.run.hash == resumed.run.hash
    for name, value in first.server["model"].items():
        assert torch.equal(value, again.server["model"][name]) and torch.equal(value, resumed.server["model"][name])


def test_a_choice_is_kept_in_the_cache(clock, own_cache, monkeypatch):
    first = engine.run(from_table(TABLE)).run.execution
    assert clock["asked"] == 1
    (kept,) = (json.loads(path.read_text()) for path in (own_cache / "calibration").iterdir())
    assert (kept["what"], kept["choice"]) == ("executor", "pool")
    monkeypatch.setattr(calibration, "_time", never)
    assert engine.run(from_table(TABLE)).run.execution == first


@pytest.mark.parametrize("content", ["", "[]", '{"choice": 3', "{}", '{"choice": "stacked", "why": "it was faster"}'])
def test_an_entry_that_is_damaged_or_names_another_executor_is_measured_again(clock, own_cache, content):
    engine.run(from_table(TABLE))
    (entry,) = (own_cache / "calibration").iterdir()
    entry.write_text(content)
    clock["visit"] = 1e-4
    assert engine.run(from_table(TABLE)).run.execution.executor == "serial"


def test_without_a_cache_nothing_is_measured(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("UNSKEW_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(calibration, "_time", never)
    assert engine.run(from_table(TABLE)).run.execution.executor == "serial"


def test_a_method_that_fails_fails_in_the_run_with_its_client():
    @methods.register("test_fails_always")
    class FailsAlways(Method):
        """Never works."""

        def start(self, c):
            raise ZeroDivisionError

    try:
        with pytest.raises(ClientError, match=r"client .* failed in round 1"):
            engine.run(from_table({**TABLE, "method": "test_fails_always"}))
    finally:
        methods._classes.pop("test_fails_always")


@pytest.mark.parametrize(("free", "lines"), [(1 << 40, 0), (1 << 10, 1)])
def test_a_chunk_that_does_not_fit_the_free_memory_is_said_once_and_kept(monkeypatch, caplog, free, lines):
    monkeypatch.setattr(calibration, "free_memory", lambda device: free)
    found = engine.run(from_table({**TABLE, "execution": {"executor": "stacked"}})).run.execution
    assert found.chunk == 6 and caplog.text.count("take a smaller --chunk") == lines
