"""Choices by measuring: made once, written down, and never made again."""

import json
import logging

import pytest
import torch

from unskew.base.errors import ClientError
from unskew.core.method import Method, methods
from unskew.runs import calibration, engine
from unskew.runs.config import from_table, read_file

TABLE = {"clients": 6, "split": "iid", "rounds": 2, "model": "cnn8", "execution": {"executor": "auto"}}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("UNSKEW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def clock(monkeypatch):
    """Times that a test can set: seconds of a short visit by way."""
    times = {"contiguous": 1.0, "channels_last": 1.0, "serial": 1.0, "stacked": 1.0}
    asked = []

    def measured(ways, **_):
        asked.append(sorted(ways))
        for work in ways.values():
            work()
        return {name: times[name] for name in ways}

    monkeypatch.setattr(calibration, "_time_in_turns", measured)
    times["asked"] = asked
    return times


def never(*_, **__):
    raise AssertionError("measured again")


@pytest.mark.parametrize(
    ("serial", "stacked", "cores", "expected"),
    [(1.0, 1.0, 1, "stacked"), (1.0, 9.0, 1, "serial"), (1.0, 9.0, 2, "pool"), (1e-4, 9.0, 2, "serial")],
)
def test_the_fastest_is_chosen_and_said(clock, caplog, monkeypatch, serial, stacked, cores, expected):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    clock |= {"serial": serial, "stacked": stacked}
    chosen = engine.run(from_table(TABLE)).run.execution
    assert chosen.executor == expected
    assert f"executor: {expected} (estimated seconds a round: serial" in caplog.text
    assert chosen.chunk == (6 if expected == "stacked" else 0)


@pytest.mark.parametrize(("gain", "expected"), [(1.3, "channels_last"), (1.02, "contiguous"), (0.7, "contiguous")])
def test_channels_last_only_where_it_gains(clock, gain, expected):
    clock["contiguous"] = gain
    assert engine.run(from_table({**TABLE, "execution": {}})).run.execution.memory_format == expected


def test_what_was_chosen_is_written_and_taken_by_rerun_and_resume(clock, tmp_path, monkeypatch):
    clock |= {"stacked": 0.1, "contiguous": 2.0}
    first = engine.run(from_table(TABLE), tmp_path / "first")
    written = read_file(tmp_path / "first/run.toml")["execution"]
    assert (written["executor"], written["memory_format"], written["chunk"]) == ("stacked", "contiguous", 6)
    monkeypatch.setattr(calibration, "_time_in_turns", never)
    monkeypatch.setattr(calibration, "clients_at_once", never)
    again = engine.run(from_table(read_file(tmp_path / "first/run.toml")), tmp_path / "again")
    (tmp_path / "first/summary.json").unlink()
    resumed = engine.resume(tmp_path / "first")
    for name, value in first.server["model"].items():
        assert torch.equal(value, again.server["model"][name]) and torch.equal(value, resumed.server["model"][name])


def test_a_choice_is_kept_in_the_cache(clock, own_cache, monkeypatch):
    first = engine.run(from_table(TABLE)).run.execution
    assert clock["asked"] == [["channels_last", "contiguous"], ["serial", "stacked"]]
    kept = [json.loads(path.read_text()) for path in sorted((own_cache / "calibration").iterdir())]
    assert [entry["what"] for entry in kept] == ["executor", "memory format"]
    monkeypatch.setattr(calibration, "_time_in_turns", never)
    assert engine.run(from_table(TABLE)).run.execution == first


def test_methods_that_are_compared_use_the_same_memory_format(clock, monkeypatch):
    clock["contiguous"] = 1.5
    engine.run(from_table({**TABLE, "execution": {}}))
    monkeypatch.setattr(calibration, "_time_in_turns", never)
    other = engine.run(from_table({**TABLE, "method": "scaffold", "seed": 1, "execution": {}}))
    assert other.run.execution.memory_format == "channels_last"


@pytest.mark.parametrize("content", ["", "[]", '{"choice": 3', "{}"])
def test_a_damaged_entry_is_measured_again(clock, own_cache, content):
    engine.run(from_table({**TABLE, "execution": {}}))
    (entry,) = (own_cache / "calibration").iterdir()
    entry.write_text(content)
    clock["contiguous"] = 1.5
    assert engine.run(from_table({**TABLE, "execution": {}})).run.execution.memory_format == "channels_last"


def test_without_a_cache_nothing_is_measured(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("UNSKEW_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(calibration, "_time_in_turns", never)
    chosen = engine.run(from_table(TABLE)).run.execution
    assert (chosen.executor, chosen.memory_format) == ("serial", "contiguous")


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


def test_a_chunk_fits_the_free_memory(monkeypatch):
    chunks = []
    for free in (1 << 40, 20 << 20, 0):
        monkeypatch.setattr(calibration, "free_memory", lambda device, free=free: free)
        run = engine.run(from_table({**TABLE, "clients": 100, "rounds": 1, "execution": {"executor": "stacked"}})).run
        chunks.append(run.execution.chunk)
    assert chunks[0] == calibration.MOST_CLIENTS > chunks[1] > chunks[2] == 1
