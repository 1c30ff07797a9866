"""Runs as they go on, read from made folders: tails, phases, what comes and goes."""

import http.client
import io
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

import unskew
from made_runs import make_comparison, make_row, make_run
from unskew.cli.watch import draw
from unskew.report import watching
from unskew.report.memory import measure_memory
from unskew.report.serving import serve_page
from unskew.report.watching import (
    Tail,
    WatchedRun,
    Watching,
    describe_rate,
    describe_seconds,
    draw_sparkline,
)
from unskew.runs import comparison

HOLD = "import sys, time; from pathlib import Path; from unskew.runs.folder import RunFolder\n"
HOLD += "with RunFolder(Path(sys.argv[1])).lock(): print('held', flush=True); time.sleep(60)"


def add(folder, *rows):
    with (folder / "rounds.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def test_a_tail_reads_each_row_once_and_no_half_lines(tmp_path):
    path = tmp_path / "rounds.jsonl"
    tail = Tail(path)
    assert tail.read() == ([], False)
    path.write_text('{"round": 0}\n{"round": 1}\n{"rou')
    assert tail.read() == ([{"round": 0}, {"round": 1}], False)
    assert tail.read() == ([], False)
    with path.open("a") as file:
        file.write('nd": 2}\nnonsense\n{"round": 3}\n')
    assert tail.read() == ([{"round": 2}, {"round": 3}], False) and tail.damaged == 1
    with path.open("a") as file:
        file.write('{"round": 4')
    assert tail.read() == ([], False)
    os.truncate(path, path.read_bytes().rfind(b"\n") + 1)  # as a resumed run does
    assert tail.read() == ([], False)
    path.write_text('{"round": 0}\n')
    assert tail.read() == ([{"round": 0}], True)
    path.unlink()
    assert tail.read() == ([], True)
    path.mkdir()  # as little to be read as what belongs to somebody else
    assert tail.read() == ([], False)


def test_a_run_that_goes_on(tmp_path):
    folder = make_run(tmp_path / "run", "fedprox(mu=0.1)", seed=3, rounds=20, done=8)
    run, now = WatchedRun(folder), (folder / "rounds.jsonl").stat().st_mtime
    view = run.look(now)
    assert (view.method, view.seed, view.done, view.rounds, view.phase) == ("fedprox(mu=0.1)", 3, 8, 20, "training")
    assert len(view.curve) == 9 and view.rate == pytest.approx(1 / 0.3) and view.left == pytest.approx(12 * 0.3)
    add(folder, make_row(9, excluded=[1, 2], dropped=[0]))
    assert ((found := run.look(now)).done, found.excluded, found.dropped) == (9, 2, 1)
    assert run.look(now + 0.28).phase == "testing"  # training takes 0.25 s
    long = run.look(now + 300)
    assert long.phase == "silent" and long.note == "nothing written for 5 min; killed, or a long round"
    add(folder, make_row(9, excluded=[]))  # run again after an interruption: the last row counts
    assert run.look(now).excluded == 0


def test_phases_of_runs_that_ended(tmp_path):
    done = make_run(tmp_path / "done")
    assert WatchedRun(done).look(time.time()).phase == "finished"
    diverged = make_run(tmp_path / "diverged", diverged=True)
    assert WatchedRun(diverged).look(time.time()).phase == "diverged"
    stopped = make_run(tmp_path / "stopped", rounds=20, done=4, finished=True, diverged=True, stopped="update")
    assert WatchedRun(stopped).look(time.time()).phase == "stopped"
    begun = make_run(tmp_path / "begun", done=-1)
    assert WatchedRun(begun).look(time.time()).phase == "starting"
    written = make_run(tmp_path / "written", finished=False)
    assert WatchedRun(written).look(time.time()).phase == "finishing"


def test_a_run_that_cannot_be_read_says_so(tmp_path):
    (tmp_path / "run.toml").write_text("rounds = [")
    view = WatchedRun(tmp_path).look(time.time())
    assert view.phase == "damaged" and "run.toml" in view.note


@pytest.mark.skipif(sys.platform != "linux", reason="asks the system's locks, which only Linux answers so")
def test_who_is_at_work(tmp_path):
    folder = make_run(tmp_path / "run", done=8)
    run = WatchedRun(folder)
    with subprocess.Popen([sys.executable, "-c", HOLD, folder], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        view = run.look(time.time() + 1000)
        assert view.phase == "training" and view.memory > 1e6
        assert "a long round, or rounds that are run again" in view.note
        holder.kill()
    view = run.look(time.time())
    assert view.phase == "interrupted" and view.memory is None and "unskew resume" in view.note
    (folder / "checkpoint" / ".lock").write_text("another-machine\n")  # whose locks are not seen here
    assert run.look((folder / "rounds.jsonl").stat().st_mtime).phase == "training"


def test_a_folder_in_which_runs_come_and_go(tmp_path):
    place = tmp_path / "runs"
    watched = Watching(place)
    assert watched.look().notes == (f"waiting for {place}, which is not there yet",)
    place.mkdir()
    assert watched.look().notes == (f"waiting for a run in {place}",)
    one = make_run(place / "deep" / "one", done=3)
    assert [run.path for run in watched.look().runs] == [one]
    make_run(place / "two", "scaffold")
    found = watched.look()
    assert len(found.runs) == 2 and not found.over and found.counts["finished"] == 1
    assert set(found.counts) - {"finished"} < {"training", "testing"}  # whichever it does just now
    shutil.rmtree(one)
    assert len(watched.look().runs) == 1
    shutil.rmtree(place)
    assert not watched.look().runs and not watched.look().over


def test_a_comparison_is_over_when_its_table_is_there_or_nothing_comes(tmp_path):
    make_comparison(tmp_path, 2, seeds=(0,))
    watched, now = Watching(tmp_path), time.time()
    assert not watched.look(now).over and not watched.look(now + watching.GRACE / 2).over
    assert watched.look(now + watching.GRACE + 1).over
    names = [path.name for path in (tmp_path / "runs").iterdir()]
    (tmp_path / "table.json").write_text(json.dumps({"comparison": {"runs": names[:1]}}))
    assert not Watching(tmp_path).look(now).over  # an earlier one's
    (tmp_path / "table.json").write_text(json.dumps({"comparison": {"runs": names}}))
    assert Watching(tmp_path).look(now).over
    assert Watching(tmp_path / "runs" / names[0]).look(now).over


def test_cells_that_have_not_begun_are_counted(tmp_path):
    make_comparison(tmp_path, 2, seeds=(0,))
    names = [path.name for path in (tmp_path / "runs").iterdir()]
    (tmp_path / "table.json").write_text(json.dumps({"comparison": {"runs": names}}))  # of the comparison before
    (tmp_path / comparison.PLAN).write_text(json.dumps([*names, "fedprox-seed1", "fedprox-seed2"]))
    watched, now = Watching(tmp_path), time.time()
    view = watched.look(now)
    assert view.counts == {"finished": 2, "not begun": 2} and not view.over
    assert watched.look(now + watching.GRACE + 1).over  # nobody goes on with it
    (tmp_path / comparison.PLAN).write_text("[")
    assert Watching(tmp_path).look(now).over


def test_a_comparison_leaves_the_names_of_its_cells(tmp_path, monkeypatch):
    seen, run_cell = [], comparison.run_cell

    def run_and_look(*given):
        made = run_cell(*given)
        seen.append(Watching(tmp_path).look().awaited)
        return made

    monkeypatch.setattr(comparison, "run_cell", run_and_look)
    cells = unskew.compare(["fedavg", "fedprox"], seeds=2, out=tmp_path, clients=3, rounds=1)
    assert seen == [3, 2, 1, 0] and len(cells) == 4 and comparison.read_plan(tmp_path) == []


@pytest.mark.parametrize(("width", "height"), [(200, 50), (80, 24), (40, 12), (20, 6)])
@pytest.mark.parametrize("count", [1, 5])
def test_a_view_fits_the_terminal(tmp_path, width, height, count):
    make_comparison(tmp_path, count, seeds=(0, 1) if count > 1 else (0,), excluded=[1], dropped=[2])
    console = Console(width=width, height=height, record=True, file=io.StringIO())
    view = Watching(tmp_path).look()
    console.print(draw(view, Path("runs/two"), console))
    lines = console.export_text().splitlines()
    assert all(len(line) <= width for line in lines)
    assert count == 1 or height < 12 or len(lines) <= height
    if count > 1 and width >= 80:
        assert f"{2 * count} runs, {2 * count} finished" in lines[0]


def test_a_sparkline():
    assert draw_sparkline([0, 0.5, 1], 10, 0, 1) == "▁▅█"
    assert draw_sparkline([0, 0.5, 1], 10, 0, 1, plain=True) == "_=#"
    assert len(draw_sparkline(list(range(1000)), 30, 0, 999)) == 30
    assert draw_sparkline([], 10, 0, 1) == draw_sparkline([1], 0, 0, 1) == ""
    assert draw_sparkline([0.5, 0.5], 9, 0.5, 0.5) == "▅▅"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.4, "0 s"), (59, "59 s"), (300, "5 min"), (3600, "1 h"), (7800, "2 h 10 min"), (273_600, "3 d 4 h")],
)
def test_times(seconds, said):
    assert describe_seconds(seconds) == said


def test_rates():
    assert [describe_rate(rate) for rate in (3.33, 0.5, 1 / 1800)] == ["3.3/s", "30.0/min", "2.0/h"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory():
    assert measure_memory(os.getpid()) > 1e6 and measure_memory(2**22 + 1) is None


def ask(address, path="/", method="GET", host=None):
    place = address.removeprefix("http://").rstrip("/")
    connection = http.client.HTTPConnection(place, timeout=60)
    connection.request(method, path, headers={"Host": host or place})
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), answer.headers


def test_the_page_is_for_this_machine_and_nothing_but_the_page(tmp_path):
    with serve_page(tmp_path / "none") as address:
        assert address.startswith("http://127.0.0.1:")
        status, text, headers = ask(address)
        assert status == 200 and "not there yet" in text and 'http-equiv="refresh"' in text
        assert headers["Cache-Control"] == "no-store" and "default-src 'none'" in headers["Content-Security-Policy"]
        assert ask(address, host="evil.example")[0] == ask(address, host="evil.example:80")[0] == 403
        assert ask(address, "/../../etc/passwd")[0] == ask(address, "/run.toml")[0] == 404
        assert ask(address, method="POST")[0] == ask(address, method="PUT")[0] == 501
        port = address.rpartition(":")[2].rstrip("/")
        assert ask(address, host=f"localhost:{port}")[0] == 200
        with pytest.raises(Exception, match=f"cannot serve on port {port}"), serve_page(tmp_path, int(port)):
            pass


def test_the_page_of_a_run_that_goes_on(tmp_path):
    folder = make_run(tmp_path / "run", done=8)
    with serve_page(folder) as address:
        status, text, _ = ask(address)
    assert status == 200 and "fedavg" in text and 'http-equiv="refresh"' in text
