"""Trackers: the real packages' own readers give the curves back, nothing twice; one that fails ends no run."""

import json
import struct
import sys

import numpy as np
import pytest

import unskew
from unskew import registries
from unskew.base.errors import InputError
from unskew.base.registry import param
from unskew.cli.app import main
from unskew.runs.config import from_table
from unskew.runs.tracking.base import Log, Tracker, flatten

TINY = {"model": "mlp", "clients": 4, "rounds": 4, "lr": 0.1, "steps": 3}


def rows_of(folder):
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def curves(folder):
    """Name → [(round, value)] of all numbers in rounds.jsonl."""
    found = {}
    for row in rows_of(folder):
        for name, value in flatten({key: own for key, own in row.items() if key != "round"}).items():
            found.setdefault(name, []).append((row["round"], value))
    return found


def stop_after(last):
    def watch(row):
        if row["round"] == last:
            raise KeyboardInterrupt

    return watch


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """A run in all three trackers that was killed in its third round and resumed from its second."""
    home = tmp_path_factory.mktemp("tracked")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("WANDB_MODE", "offline")
        patched.setenv("WANDB_DIR", str(home))
        patched.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        track = [f"tensorboard:{home / 'tb'}", f"mlflow:{home / 'mlflow'}", "wandb(project=mine)"]
        with pytest.raises(KeyboardInterrupt):
            unskew.run("ditto", out=home / "run", track=track, checkpoint_every=1, measure="drift",
                       watch=stop_after(3), **TINY)  # fmt: skip
        for path in (home / "run" / "checkpoint").glob("round-000003*"):
            path.unlink()
        unskew.resume(home / "run")
        yield home


def test_tensorboard_reads_the_curves_back(tracked):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(tracked / "tb" / "run"), size_guidance={"scalars": 0})
    reader.Reload()
    found = {tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}
    single = {name: [(step, float(np.float32(v))) for step, v in own] for name, own in curves(tracked / "run").items()}
    assert {name: own for name, own in found.items() if not name.startswith("final/")} == single
    summary = unskew.open(tracked / "run").summary
    assert found["final/accuracy/last"] == [(0, float(np.float32(summary["accuracy"]["last"])))]
    assert {"accuracy", "loss", "train_loss", "lr", "bytes_up", "personal/mean", "measures/drift"} <= found.keys()


def test_mlflow_reads_the_curves_back(tracked):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tracked / 'mlflow' / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("unskew").experiment_id])
    wanted = curves(tracked / "run")
    found = {name: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)] for name in wanted}
    assert found == wanted
    summary = unskew.open(tracked / "run").summary
    assert run.data.metrics["final/figures/macro_f1"] == summary["figures"]["macro_f1"]
    assert run.data.params["local.lr"] == "0.1" and run.data.params["method.name"] == "ditto"
    assert run.data.tags["seed"] == "0" and run.data.tags["folder"] == str(tracked / "run")
    assert run.info.status == "FINISHED"


def test_wandb_writes_its_folder_offline(tracked):
    folders = sorted((tracked / "wandb").glob("offline-run-*"))
    note = json.loads((tracked / "run" / "tracking.json").read_text())["wandb(project=mine)"]
    assert len(folders) == 2 and note["ended"] == 4 and all(path.name.endswith(note["id"]) for path in folders)
    history, summary, config = [], {}, {}
    for folder in folders:
        for record in read_records(folder / f"run-{note['id']}.wandb"):
            if record.HasField("history"):
                items = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
                history.append({name: value for name, value in items.items() if not name.startswith("_")})
            if record.HasField("summary"):
                items = record.summary.update
                summary |= {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items}
            if record.HasField("run") and record.run.project:
                assert (record.run.project, record.run.run_group, record.run.run_id) == ("mine", "ditto", note["id"])
                config |= {i.key: json.loads(i.value_json) for i in record.run.config.update}
    rows = rows_of(tracked / "run")
    assert history == [flatten({key: own for key, own in row.items() if key != "round"}) for row in rows]
    assert config["local.lr"] == 0.1 and config["folder"] == str(tracked / "run")
    assert summary["final/accuracy/last"] == rows[-1]["accuracy"]


def read_records(path):
    """The records of W&B's file: LevelDB's log format after a header of seven bytes; its package has no reader."""
    from wandb.proto import wandb_internal_pb2

    data, at, part = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # no header fits into the rest of a block
            at += 32768 - at % 32768
            continue
        size, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        part, at = part + data[at + 7 : at + 7 + size], at + 7 + size
        if kind in (1, 4):  # whole, or the last piece
            record = wandb_internal_pb2.Record()
            record.ParseFromString(part)
            yield record
            part = b""


# --------------------------------------------------------------------------------------- a tracker of one's own


@registries.trackers.register("spy")
class Spy(Tracker):
    """Keeps what it is shown in memory."""

    fails_in: int = param(default=-1, doc="fails when it is shown this round")

    def begin(self, run):
        """A list of what is shown."""
        return SpyLog(self, run)


class SpyLog(Log):
    seen = {}

    def __init__(self, spy, run):
        self.id, self._spy = run.id or run.name, spy
        self.seen.setdefault(self.id, {"about": run, "rounds": [], "ends": []})

    def round(self, number, numbers):
        if number == self._spy.fails_in:
            raise OSError(28, "No space left on device")
        self.seen[self.id]["rounds"].append(number)

    def end(self, summary):
        self.seen[self.id]["ends"].append(summary)


@pytest.fixture(autouse=True)
def forget():
    SpyLog.seen.clear()


def test_one_that_fails_ends_no_run_and_changes_nothing(tmp_path, caplog):
    plain = unskew.run("fedavg", **TINY)
    result = unskew.run("fedavg", track="spy(fails_in=2)", out=tmp_path / "run", **TINY)
    assert result.run.hash == plain.run.hash and result.summary["accuracy"] == plain.summary["accuracy"]
    (line,) = [record.getMessage() for record in caplog.records if "tracker" in record.getMessage()]
    assert "spy(fails_in=2) failed at round 2: [Errno 28] No space left on device; the run goes on without it" in line
    assert SpyLog.seen["run"]["rounds"] == [0, 1] and SpyLog.seen["run"]["ends"] == []
    assert json.loads((tmp_path / "run" / "tracking.json").read_text())["spy(fails_in=2)"]["round"] == 1


def test_a_resumed_run_goes_on_without_double_points(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        unskew.run("fedavg", track="spy", out=tmp_path / "run", checkpoint_every=1, watch=stop_after(3), **TINY)
    for path in (tmp_path / "run" / "checkpoint").glob("round-000003*"):
        path.unlink()
    assert SpyLog.seen["run"]["ends"] == [None]
    result = unskew.resume(tmp_path / "run")
    assert SpyLog.seen["run"]["rounds"] == [0, 1, 2, 3, 4]
    assert SpyLog.seen["run"]["ends"][1]["accuracy/last"] == result.accuracy
    unskew.resume(tmp_path / "run")
    assert len(SpyLog.seen["run"]["ends"]) == 2
    about = SpyLog.seen["run"]["about"]
    assert about.options["local.lr"] == 0.1 and "track" not in about.options and about.folder == tmp_path / "run"


def test_a_tracker_that_comes_later_is_shown_everything(tmp_path, capsys):
    with pytest.raises(KeyboardInterrupt):
        unskew.run("fedavg", out=tmp_path / "run", watch=stop_after(2), **TINY)
    unskew.resume(tmp_path / "run", track="spy")
    assert SpyLog.seen["run"]["rounds"] == [0, 1, 2, 3, 4] and len(SpyLog.seen["run"]["ends"]) == 1
    for said in ("shown", "nothing new to show"):
        with pytest.raises(SystemExit) as end:
            main(["track", str(tmp_path / "run"), "--to", "spy(fails_in=9)"])
        assert end.value.code == 0 and f"run: {said}" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["cli", "python"])
def test_a_finished_run_is_shown_to_a_tracker_that_resume_names(tmp_path, capsys, name):
    unskew.run("fedavg", out=tmp_path / "run", **TINY)
    for said in ("shown in spy", "spy has been shown all of it", "nothing to do"):
        if name == "cli":
            with pytest.raises(SystemExit) as end:
                main(["resume", str(tmp_path / "run"), "--track", "spy" if "spy" in said else "", "--json"])
            out, err = capsys.readouterr()
            assert end.value.code == 0 and json.loads(out) == unskew.open(tmp_path / "run").summary
            assert err == f"{tmp_path / 'run'} is finished already; {said}\n"
        else:
            unskew.resume(tmp_path / "run", track="spy" if "spy" in said else [])
    assert SpyLog.seen["run"]["rounds"] == [0, 1, 2, 3, 4] and len(SpyLog.seen["run"]["ends"]) == 1


def test_a_tracker_that_is_no_tracker_is_refused_of_a_finished_run(tmp_path, capsys):
    unskew.run("fedavg", out=tmp_path / "run", **TINY)
    with pytest.raises(SystemExit) as end:
        main(["resume", str(tmp_path / "run"), "--track", "spi"])
    out, err = capsys.readouterr()
    assert end.value.code == 2 and "unknown tracker 'spi'" in err and not out


def test_a_comparison_has_one_for_each_cell_and_shows_finished_ones_afterwards(tmp_path):
    cells = unskew.compare("fedavg,fedprox(mu=0.1)", seeds=2, out=tmp_path, **TINY)
    assert not SpyLog.seen
    unskew.compare("fedavg,fedprox(mu=0.1)", seeds=2, out=tmp_path, track="spy", **TINY)
    unskew.compare("fedavg,fedprox(mu=0.1)", seeds=2, out=tmp_path, track="spy", **TINY)
    assert set(SpyLog.seen) == {cell.folder.name for cell in cells}
    shown = {(own["about"].method, own["about"].seed) for own in SpyLog.seen.values()}
    assert shown == {(cell.method, cell.seed) for cell in cells} and len(shown) == 4
    assert all(own["rounds"] == [0, 1, 2, 3, 4] and len(own["ends"]) == 1 for own in SpyLog.seen.values())


def test_refusals(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="unknown tracker 'tensorbord'; did you mean tensorboard"):
        unskew.run(track="tensorbord:x", **TINY)
    with pytest.raises(InputError, match="named twice"):
        unskew.run(track=["spy", "spy"], **TINY)
    unskew.run(track="spy", out=tmp_path / "run", **TINY)
    (tmp_path / "run" / "tracking.json").write_text("{")
    with pytest.raises(InputError, match=r"tracking\.json cannot be read"):
        unskew.resume(tmp_path / "run")
    for package in ("tensorboard", "mlflow", "wandb"):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(InputError, match=rf"pip install 'unskew\[{package}\]'"):
            unskew.run(track=f"{package}:{tmp_path / 'x'}", out=tmp_path / "other", **TINY)
        assert not (tmp_path / "other").exists() and not (tmp_path / "x").exists()


def test_the_text_form_takes_addresses():
    (one, two) = from_table({"track": "mlflow:http://10.0.0.5:5000,tensorboard:a/b"}).track
    assert one.uri == "http://10.0.0.5:5000" and two.logdir == "a/b"
    assert from_table({"track": "spy"}).hash == from_table({}).hash


def test_flatten():
    row = {"a": 1, "b": {"c": 0.5, "d": None}, "e": [1.0, None], "clients": [4, 7, 9], "f": True, "g": "x",
           "h": float("nan")}  # fmt: skip
    assert flatten(row) == {"a": 1.0, "b/c": 0.5, "e/0": 1.0, "clients": 3.0, "f": 1.0}
