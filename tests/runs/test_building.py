"""A run is prepared once: one resolution, one load of the data, one `init` before its first round."""

from collections import Counter

import pytest

import unskew
from unskew.base.errors import InputError
from unskew.cli import main
from unskew.core.method import Method
from unskew.data.sources.base import sources
from unskew.runs import building, comparison, engine
from unskew.runs.config import Run, from_table

PLAIN = {"clients": 4, "split": "iid", "rounds": 1, "model": "mlp", "executor": "serial", "memory_format": "contiguous"}
ONCE = {"resolve": 1, "load": 1, "init": 1, "build_model": 1}


@pytest.fixture
def calls(monkeypatch):
    """Counts what prepares a run."""
    counts = Counter()

    def count(owner, name):
        real = getattr(owner, name)

        def counted(*args, **options):
            counts[name] += 1
            return real(*args, **options)

        monkeypatch.setattr(owner, name, counted)

    count(Run, "resolve")
    count(sources.get("digits"), "load")
    count(Method, "init")
    count(building, "build_model")
    return counts


def test_a_run_from_python_is_prepared_once(calls, tmp_path):
    unskew.run("fedavg", out=tmp_path / "run", **PLAIN)
    assert calls == ONCE


def test_a_run_from_the_command_line_is_prepared_once(calls, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = [text for name, value in PLAIN.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    with pytest.raises(SystemExit) as end:
        main(["run", *flags, "--quiet"])
    assert end.value.code == 0 and calls == ONCE
    (folder,) = (tmp_path / "runs").iterdir()
    calls.clear()
    (folder / "summary.json").unlink()
    result = engine.resume(folder)
    assert folder.name == result.run.title
    assert calls == {"resolve": 1, "load": 1, "build_model": 1}  # the server's state is in the checkpoint


def test_a_comparison_loads_the_data_and_resolves_each_cell_once(calls, tmp_path):
    found = unskew.compare(["fedavg", "scaffold"], seeds=2, out=tmp_path, **PLAIN)
    assert len(found) == 4 and calls["load"] == 1
    assert calls["resolve"] == calls["build_model"] == 4


def test_what_a_method_refuses_leaves_no_folder(tmp_path):
    with pytest.raises(InputError, match="n_layers"):
        unskew.run("flfa(n_layers=99)", out=tmp_path / "run", **PLAIN)
    assert not (tmp_path / "run").exists()


def test_what_a_method_refuses_in_a_trial_is_refused_and_not_remembered(tmp_path, monkeypatch):
    monkeypatch.setenv("UNSKEW_CACHE", str(tmp_path / "cache"))
    table = {"clients": 4, "split": "iid", "rounds": 1, "model": "mlp", "execution": {"executor": "auto", "workers": 2}}
    with pytest.raises(InputError, match="n_layers"):
        engine.run(from_table({**table, "method": "flfa(n_layers=99)"}), tmp_path / "run")
    assert not (tmp_path / "run").exists() and not list(tmp_path.glob("cache/calibration/*"))


def test_every_cell_is_checked_before_the_first_is_run(tmp_path):
    base = from_table({"clients": 4, "split": "iid", "rounds": 1, "model": "mlp", "evaluation": {"local_test": "none"}})
    wanted = [unskew.registries.methods.build(name) for name in ("fedavg", "fedper")]
    with pytest.raises(InputError, match="needs local test sets"):
        comparison.compare(base, wanted, [0], tmp_path)
    assert not list(tmp_path.iterdir())
