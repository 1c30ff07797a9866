"""Runs side by side in processes of this machine: the same folders, errors and lines as one after the other."""

import json
import logging
import os
import signal
from pathlib import Path

import pytest

import unskew
from unskew import Method, registries
from unskew.base.errors import ClientError, InputError, SlotError
from unskew.base.once import warn_once
from unskew.base.process import count_cores
from unskew.runs.cells_here import count_jobs
from unskew.runs.sections import Execution

TINY = {"clients": 3, "rounds": 2, "model": "mlp", "split": "iid"}
log = logging.getLogger("unskew.test_cells")


@pytest.fixture(autouse=True)
def own_methods(own_names):
    """Methods that fail or talk in their second round."""

    @registries.methods.register("cells_fails")
    class Fails(Method):
        """Fails."""

        at: int = unskew.param(default=2, doc="in this round")

        def train(self, c, params):
            if c.round == self.at:
                raise ValueError("too far")
            return super().train(c, params)

    @registries.methods.register("cells_dies")
    class Dies(Method):
        """Kills its process."""

        def train(self, c, params):
            os.kill(os.getpid(), signal.SIGKILL)

    @registries.methods.register("cells_talks")
    class Talks(Method):
        """Warns."""

        of: int = unskew.param(default=1, doc="tells two of them apart")

        def train(self, c, params):
            warn_once(log, "said of all")
            return super().train(c, params)


def read(folder: Path) -> dict:
    """What runs wrote, times aside."""
    found = {}
    for path in sorted((folder / "runs").iterdir()):
        rows = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
        model = path / "model.safetensors"
        found[path.name] = model.exists() and model.read_bytes(), [{**row, "seconds": 0} for row in rows]
    return found


def test_the_folders_are_those_of_one_after_the_other(tmp_path):
    options = {**TINY, "seeds": 2, "executor": "auto"}
    one = unskew.compare("fedavg,scaffold", out=tmp_path / "one", **options)
    two = unskew.compare("fedavg,scaffold", out=tmp_path / "two", jobs=2, **options)
    assert read(tmp_path / "two") == read(tmp_path / "one") and len(two) == 4
    assert [(cell.method, cell.seed, cell.reused) for cell in two] == [
        (cell.method, cell.seed, cell.reused) for cell in one
    ]
    again = unskew.compare("fedavg,scaffold", out=tmp_path / "two", jobs=2, **options)
    assert all(cell.reused for cell in again)


def test_where_runs_fail_the_first_in_order_is_named_and_those_before_it_are_finished(tmp_path):
    methods = "fedavg,cells_fails,fedprox,cells_fails(at=1)"
    said = []
    for jobs in (1, 3):
        with pytest.raises(ClientError) as caught:
            unskew.compare(methods, out=tmp_path / str(jobs), seeds=1, jobs=jobs, **TINY)
        error = caught.value
        said.append((str(error), error.method, error.slot, error.client, error.round, Path(error.folder).name))
        assert "ValueError: too far" in error.details
        finished = {path.parent.name.split("-")[0] for path in (tmp_path / str(jobs)).glob("runs/*/summary.json")}
        assert finished >= {"fedavg"} and "cells_fails" not in finished
    assert said[0] == said[1] and said[0][1:3] == ("cells_fails", "train")
    assert isinstance(error, SlotError)


def test_a_process_that_dies_is_one_line(tmp_path):
    with pytest.raises(InputError, match=r"cells_dies-seed0-.*: its process died with signal SIGKILL \(out of memory"):
        unskew.compare("fedavg,cells_dies", out=tmp_path / "c", seeds=1, jobs=2, **TINY)
    assert len(list(tmp_path.glob("c/runs/fedavg*/summary.json"))) == 1


def test_what_is_said_once_is_said_once_by_all(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "unskew"):
        unskew.compare("cells_talks,cells_talks(of=2)", out=tmp_path / "c", seeds=1, jobs=2, **TINY)
    said = [record.getMessage() for record in caplog.records]
    assert said.count("said of all") == 1
    assert "2 runs side by side, one thread each (--jobs 1: one after the other)" in said


def test_how_many_runs_fit_at_a_time(caplog):
    cores = count_cores()
    assert count_jobs(None, [Execution()]) == cores and count_jobs(7, [Execution(executor="stacked")]) == 7
    for own in (Execution(executor="pool"), Execution(executor="ray"), Execution(threads=2)):
        assert count_jobs(None, [Execution(), own]) == count_jobs(1, [own]) == 1
    with pytest.raises(InputError, match=r"--jobs 2: runs side by side have one thread each"):
        count_jobs(2, [Execution(threads=2)])
    with pytest.raises(InputError, match=r"--jobs 2: executor 'ray' spreads each run over a cluster"):
        count_jobs(2, [Execution(executor="ray")])
    assert count_jobs(2, [Execution(executor="pool", workers=cores)]) == 2
    assert f"--jobs 2 with executor 'pool' makes {2 * cores} processes for {cores} cores" in caplog.text
    for wrong in (0, -1, 1.5, True, "2"):
        with pytest.raises(InputError, match=r"--jobs expects a whole number of at least 1, got "):
            unskew.compare("fedavg", out="never", jobs=wrong)
