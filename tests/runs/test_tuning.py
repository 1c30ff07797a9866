"""Fair tuning: who gets which settings, what chooses, and that a command that was cut off ends as one that was not."""

import json
import os
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import unskew
from small_runs import SKEWED
from unskew.base.errors import InputError
from unskew.cli import main
from unskew.core.method import methods
from unskew.report.tables import render
from unskew.report.tuning import render_trials, table
from unskew.runs import engine
from unskew.runs.folder import RunFolder
from unskew.runs.tuning.searches import Halving, count_halved, list_rungs, list_settings
from unskew.runs.tuning.space import read_grid

TINY = {"clients": 3, "rounds": 2, "model": "mlp", "split": "iid", "epochs": 2, "seeds": 2}
GRID = {"lr": [0.0001, 0.1, 1e20], "fedprox.mu": [0.01, 1.0]}
THREE = "fedavg,fedprox,fedsol"


def render_all(tuning):
    """The table without times, and the trials."""
    rows = json.loads(render(table(tuning, "t"), "json"))["rows"]
    return [{key: own for key, own in row.items() if key != "time ×"} for row in rows], render_trials(
        tuning.trials, tuning.tuned
    )


def test_the_good_rate_is_chosen_on_validation_data_and_compared_on_fresh_seeds(tmp_path):
    found = unskew.tune(THREE, GRID, out=tmp_path / "t", **TINY)
    assert [own.chosen.setting["lr"] for own in found.tuned] == [0.1] * 3
    assert [(own.tried, own.possible) for own in found.tuned] == [(3, 3), (6, 6), (3, 3)]
    for trial in found.trials:
        folder = RunFolder(tmp_path / "t" / "trials" / trial.folders[0])
        last = folder.rounds()[2]
        assert trial.score == (None if folder.summary()["diverged"] else last["validation"])
        assert folder.summary()["seed"] == 1000 and folder.summary()["train_samples"] == 1437 - 143
    assert sum(trial.score is None for trial in found.trials) == 4  # tried, counted, never chosen
    assert {cell.seed for cell in found.cells} == {0, 1} and len(found.cells) == 6
    assert all(cell.summary["train_samples"] == 1437 for cell in found.cells)
    rows, trials = render_all(found)
    assert rows[1]["settings"] == "6 of 6" and rows[1]["chosen"].startswith("lr=0.1, fedprox.mu=")
    assert rows[0]["validation %"]["mean"] == pytest.approx(100 * found.tuned[0].chosen.score)
    text = render(table(found, "t"), "md")
    assert "chosen by accuracy on 10 % of the training samples, held out; no test sample has a part in it" in text
    assert "fedprox: fedprox.mu=" in text and "of its list; a better value may lie beyond it" in text
    assert trials["trials.md"].count("| yes |") == 3 and trials["trials.md"].count("| diverged |") == 4


def test_cut_off_twice_it_ends_with_the_same_table(tmp_path, monkeypatch):
    whole = unskew.tune("fedavg,scaffold", {"lr": [0.01, 0.1]}, out=tmp_path / "whole", jobs=2, **TINY)
    start, begun = engine.start, []

    def cut(*args, **options):
        begun.append(args)
        if len(begun) in (3, 6):
            raise KeyboardInterrupt
        return start(*args, **options)

    monkeypatch.setattr(engine, "start", cut)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            unskew.tune("fedavg,scaffold", {"lr": [0.01, 0.1]}, out=tmp_path / "cut", **TINY)
    again = unskew.tune("fedavg,scaffold", {"lr": [0.01, 0.1]}, out=tmp_path / "cut", **TINY)
    assert render_all(again) == render_all(whole) and len(begun) == 8 + 2  # none was run again


def test_personal_methods_are_chosen_by_clients_held_out_training_samples(tmp_path):
    found = unskew.tune("fedper", "lr=0.0001,0.1", out=tmp_path / "t", **{**TINY, "model": None})
    [best] = found.tuned
    folder = RunFolder(tmp_path / "t" / "trials" / best.chosen.folders[0])
    assert best.chosen.setting == {"lr": 0.1} and best.chosen.score == folder.rounds()[2]["personal"]["pooled"]
    assert 'local_test = "holdout"' in (folder.path / "run.toml").read_text()
    assert any("on 25 % of each client's training samples" in note for note in found.notes)


def test_every_method_gets_the_same_common_values_and_no_setting_twice():
    axes = read_grid(
        ["lr=1,2,3,4,5", "local.momentum=0,0.5", "fedprox.mu=1,2,3"], [methods.build(n) for n in ("fedavg", "fedprox")]
    )
    common = axes[:2]
    plain, prox = list_settings(common, "fedavg", 7, 9), list_settings(axes, "fedprox", 25, 9)
    assert [{key: own[key] for key in ("lr", "local.momentum")} for own in prox[:7]] == plain
    assert len({tuple(own.values()) for own in prox}) == 25
    assert plain == list_settings(common, "fedavg", 7, 9) != list_settings(common, "fedavg", 7, 10)
    assert list_settings(axes, "fedprox", 30, 9)[0] == {"lr": 1, "local.momentum": 0, "fedprox.mu": 1}
    ranges = read_grid({"lr": "log(0.001, 1)", "fedprox.mu": "uniform(0, 2)"}, [methods.build("fedprox")])
    drawn = list_settings(ranges, "fedprox", 5, 9)
    assert all(0.001 <= own["lr"] <= 1 and 0 <= own["fedprox.mu"] <= 2 for own in drawn)
    assert [own["lr"] for own in drawn] == [own["lr"] for own in list_settings(ranges[:1], "fedavg", 5, 9)]


def test_halving_spends_no_more_than_the_budget_and_drops_what_diverged():
    assert list_rungs(20) == [3, 7, 20] and list_rungs(2) == [1, 2]
    assert count_halved(20, 20) == 51  # 51 * 3 + 17 * 7 + 6 * 20 = 392 of 400 rounds
    search = Halving([{"lr": number} for number in range(9)], 18)
    assert [each.rounds for each in search.propose()] == [2] * 9
    search.learn([None, 0.1, 0.5, 0.5, None, 0.2, 0.4, None, None])
    assert [(each.setting["lr"], each.rounds) for each in search.propose()] == [(2, 6), (3, 6), (6, 6)]
    search.learn([None, None, None])
    assert search.propose() == []


def test_halving_from_start_to_table(tmp_path):
    found = unskew.tune(
        "fedavg", {"lr": [0.0001, 0.001, 0.1, 1e20]}, budget=3, search="halving", out=tmp_path / "t", **TINY
    )
    assert found.tuned[0].chosen.setting == {"lr": 0.1} and found.tuned[0].runs_spent <= 3
    assert {trial.rounds for trial in found.trials} == {1, 2}


def test_optuna_asks_the_same_again(tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    options = {"search": "optuna", "budget": 3, "out": tmp_path / "t", **TINY}
    found = unskew.tune("fedavg,fedprox", {"lr": "log(0.001, 1)"}, **options)
    assert [len([own for own in found.trials if own.method == name]) for name in ("fedavg", "fedprox")] == [3, 3]
    monkeypatch.setattr(engine, "start", None)  # all is read back
    assert render_all(unskew.tune("fedavg,fedprox", {"lr": "log(0.001, 1)"}, **options)) == render_all(found)


BAD = {
    "no values": ("fedavg", "lr", "--grid expects KEY=VALUE,VALUE"),
    "an unknown option": ("fedavg", "lrr=1", "--grid lrr: there is no option 'lrr'; did you mean lr"),
    "a method that is not there": ("fedavg", "fedprox.mu=1", "--grid fedprox.mu: fedprox is not among --methods"),
    "a method twice": ("fedprox,fedprox(mu=1)", "fedprox.mu=1,2", "fedprox is named more than once in --methods"),
    "what is compared": ("fedavg", "rounds=1,2", "'rounds' says what is compared and is the same for all methods"),
    "a method's own as method": ("fedprox", "method.mu=1", "for a method's own option write such as fedprox.mu=0.1,1"),
    "a bad value": ("fedavg", "lr=0.1,-1", "--grid lr=-1: local.lr: input should be greater than 0"),
    "an unknown argument": ("fedprox", "fedprox.muu=1", "fedprox has no argument 'muu'"),
    "a value twice": ("fedavg", "lr=0.1,0.1", "--grid lr: a value is named twice"),
    "a bad range": ("fedavg", "lr=log(0,1)", "--grid lr: expected a range such as log(0.001, 1)"),
    "a range in a grid": ("fedavg --budget 2", "lr=log(0.1,1)", "--search grid tries listed values"),
    "a range without a budget": ("fedavg --search random", "lr=log(0.1,1)", "a --grid with ranges needs one"),
    "no budget": ("fedavg --budget 0", "lr=1", "--budget expects a whole number of at least 1, got 0"),
    "the same seeds": ("fedavg --tuning-seeds 1,7", "lr=1", "seed 1 is among --seeds and --tuning-seeds"),
    "the test's best": ("fedavg --metric best_on_test", "lr=1", "would look at the test data"),
    "the same samples": ("fedavg --local-test holdout --split-seed 1", "lr=1", "that choose would test the choice"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_tuned_fairly_is_refused_in_one_line(name, tmp_path, monkeypatch, capsys):
    words, grid, line = BAD[name]
    chosen, *flags = words.split(" --")
    monkeypatch.chdir(tmp_path)
    options = {**TINY, **{key.replace("-", "_"): value for key, _, value in (flag.partition(" ") for flag in flags)}}
    for key in ("budget", "split_seed"):
        if key in options:
            options[key] = int(options[key])
    with pytest.raises(InputError) as caught:
        unskew.tune(chosen, grid, out="t", **options)
    assert line in str(caught.value)
    with pytest.raises(SystemExit) as end:
        more = [word for flag in flags for word in f"--{flag}".split()]
        main(["tune", "--methods", chosen, "--grid", grid, "--out", "t", "--model", "mlp", *more])
    said = capsys.readouterr().err
    assert end.value.code == 2 and line in said and said.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("more", [
    {"search": np.array(["grid", "random"])}, {"metric": np.array(["last", "last_k"])},
    {"grid": {"lr": [0.1, np.array([0.1, 0.2])]}},
])  # fmt: skip
def test_arrays_are_refused_in_one_line(more, tmp_path):
    with pytest.raises(InputError) as caught:
        unskew.tune("fedavg", **{"grid": {"lr": [0.1, 0.2]}, "out": tmp_path / "t", **TINY, **more})
    assert "\n" not in str(caught.value)


def test_where_all_settings_diverge_there_is_none_to_choose(tmp_path):
    with pytest.raises(InputError, match="fedavg: all 1 setting diverged, so there is none to choose"):
        unskew.tune("fedavg", "lr=1e20", out=tmp_path / "t", **TINY)


def test_what_the_comparison_would_refuse_is_refused_before_the_trials(tmp_path):
    with pytest.raises(InputError, match="fedper gives personal models only, so it needs local test sets"):
        unskew.tune("fedavg,fedper", "lr=0.1", out=tmp_path / "t", local_test="none", **TINY)
    assert not list(tmp_path.glob("t/trials/*"))


@pytest.mark.slow
def test_killed_twice_and_resumed_to_the_same_table_within_two_minutes(tmp_path):
    words = ["tune", "--methods", THREE, "--grid", "lr=0.0001,0.1,1e20", "--clients", "5", "--rounds", "5",
             "--epochs", "3", "--split", "dirichlet:0.5", "--model", "mlp", "--seeds", "2",
             "--checkpoint-every", "1", "-q", "--json"]  # fmt: skip
    call = [sys.executable, "-m", "unskew", *words]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    whole = subprocess.run([*call, "--out", str(tmp_path / "whole")], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert spent < 120  # of the processor: on a busy machine it takes longer
    for number in (2, 9):
        process = subprocess.Popen([*call, "--out", str(tmp_path / "cut")], start_new_session=True)
        while len(list(tmp_path.glob("cut/*/*/summary.json"))) < number and process.poll() is None:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    again = subprocess.run([*call, "--out", str(tmp_path / "cut")], capture_output=True, text=True, check=True)
    tables = [json.loads(done.stdout)["rows"] for done in (whole, again)]
    for row in (*tables[0], *tables[1]):
        assert row.pop("time ×") and row["chosen"] == "lr=0.1" and row["settings"] == "3 of 3"
        assert row["validation %"]["mean"] > 50
    assert tables[0] == tables[1]
    for name in ("trials.csv", "trials.json", "trials.md", "tuned/fedsol.toml"):
        assert (tmp_path / "whole" / name).read_text() == (tmp_path / "cut" / name).read_text()


def test_an_unknown_metric_of_tune_is_named(own_folder):
    with pytest.raises(InputError, match=r"there is no metric 'x'; known: last, last_k"):
        unskew.tune("fedavg", {"lr": [0.1, 0.2]}, metric="x", out="t", seeds=1, **SKEWED)
