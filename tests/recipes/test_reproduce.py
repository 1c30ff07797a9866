"""`unskew reproduce`: which cells, ours beside the printed, what is missing, stopped and continued."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from unskew.base.errors import InputError
from unskew.base.registry import to_table
from unskew.cli import main
from unskew.cli.reproduce import write_what_is_there
from unskew.core.method import methods
from unskew.measures.base import build_all
from unskew.recipes import PAPERS, find, list_tables
from unskew.recipes.base import Cell, Computed, Printed
from unskew.recipes.reproduce import (
    Compared,
    Data,
    choose_seeds,
    compare_figures,
    identify,
    judge,
    make_plan,
    noise_of,
    plan_figure,
    play,
    sketch,
)
from unskew.recipes.scales import scale_run
from unskew.runs.config import from_table

T3, T4 = find("fedas/t3"), find("fedas/t4")
FIGURES = [figure for paper in PAPERS.values() for figure in paper.figures.values()]


@pytest.fixture
def no_data(monkeypatch, tmp_path):
    """A machine without any data set."""
    monkeypatch.delenv("UNSKEW_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


# ------------------------------------------------------------------------------------- which cells


def test_a_row_whose_name_has_a_comma_is_one_row():
    assert {figure.row for figure in T4.select("PA=1, CS=1", None)} == {"PA=1, CS=1"}
    assert {figure.row for figure in T4.select("PA=1, CS=1; PA=0, CS=0", None)} == {"PA=1, CS=1", "PA=0, CS=0"}
    for rows, columns in ((",", None), (None, " , ")):
        with pytest.raises(InputError, match=r"fedas/t4: --(rows names no row|columns names no column)"):
            T4.select(rows, columns)


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ("PA=0, CS=0, PA=1, CS=1", {"PA=0, CS=0", "PA=1, CS=1"}),
        ("PA=0,,CS=0", {"PA=0, CS=0"}),
        ("PA=1, CS=1, PA=1, CS=1", {"PA=1, CS=1"}),
        ("PA=0", {"PA=0, CS=0", "PA=0, CS=1"}),
        ("PA=0, PA=1", {"PA=0, CS=0", "PA=0, CS=1", "PA=1, CS=0", "PA=1, CS=1"}),
    ],
)
def test_rows_whose_names_have_commas_may_be_listed_by_commas(rows, found):
    assert {figure.row for figure in T4.select(rows, None)} == found


def test_parts_of_different_kinds_are_not_taken_for_rows_with_either():
    with pytest.raises(InputError, match=r"--rows CS=0, PA=0 names parts of different kinds.*semicolons"):
        T4.select("CS=0, PA=0", None)
    with pytest.raises(InputError, match="--rows flfa=1, fedavg names parts of different kinds"):
        find("flfa/t1").select("flfa=1, fedavg", None)
    assert {figure.row for figure in find("flfa/t1").select("fedavg, flfa=1", None)} == {"FedAvg, flfa=1"}


@pytest.mark.parametrize("option", [["--rows", "x"], ["--columns", "P=1"], ["--seeds", "2"]])
def test_a_figure_refuses_what_only_tables_have(no_data, option, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", "fedas/fig4a", *option, "--out", str(no_data / "out"), "-q"])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and f"{option[0]} is for tables, and fedas/fig4a is a figure" in said
    assert not (no_data / "out").exists()


def test_rows_and_columns_choose_cells():
    assert len(T3.printed) == 120
    chosen = T3.select("fedper,fedas", "P=0.2")
    assert {(figure.row, figure.keys["online_ratio"]) for figure in chosen} == {("FedPer", "0.2"), ("FedAS", "0.2")}
    assert len(chosen) == 6  # three betas
    assert [figure.text for figure in T3.select("FedAS", "beta=0.1, online_ratio=0.20")] == ["89.92"]
    assert len(find("flfa/t1").select("fedavg", "BloodMNIST, accuracy")) == 2  # with and without feedback


@pytest.mark.parametrize(
    ("rows", "columns", "line"),
    [
        ("fedaz", None, "has no row 'fedaz'; known: Ditto; FedALA; FedAS"),
        (None, "P=0.3", "has no column 'P=0.3'"),
        ("fedas", "Q=1", "known: beta=0.1, P=0.2"),
        (
            "fedas",
            "beta=0.1, P=0.2, P=0.4",
            r"'P=0.4' together with beta=0.1, P=0.2 in these rows; known: beta=0.1, P=0.2$",
        ),
    ],
)
def test_what_there_is_not_is_one_line(rows, columns, line):
    with pytest.raises(InputError, match=line):
        T3.select(rows, columns)


@pytest.mark.parametrize("name", ["fedas/t9", "fedxx/t1", "t3"])
def test_unknown_tables_are_one_line(name):
    with pytest.raises(InputError, match="there is no table or figure"):
        find(name)


def test_a_paper_s_name_alone_lists_what_it_has():
    with pytest.raises(InputError, match=r"'fedas' is a paper; .*: fedas/t2, fedas/t3, fedas/t4, fedas/fig3a, "):
        find("fedas")


def test_seeds_are_the_paper_s_and_go_on_from_its_last():
    assert choose_seeds(PAPERS["fedblade"], None) == (1024, 2025, 4096)
    assert choose_seeds(PAPERS["fedblade"], 1) == (1024,)
    assert choose_seeds(PAPERS["fedblade"], 5) == (1024, 2025, 4096, 4097, 4098)


# ---------------------------------------------------------------------------------- scales and data


def test_scales_keep_what_the_claims_depend_on():
    blade = find("fedblade/t1").recipe({"method": "FedBlade", "dataset": "CIFAR-100", "alpha": "0.05"}).run
    small = scale_run(PAPERS["fedblade"], blade, "cpu", True)
    assert (small.model.name, small.local, small.clients, small.sample) == ("fedavg_cnn", blade.local, 100, 0.2)
    assert 512 / small.local.batch > 2  # features against the batch: LDDecorr is far from singular
    assert (small.split, small.rounds, small.method) == (blade.split, blade.rounds, blade.method)
    tiny = scale_run(PAPERS["fedblade"], blade, "smoke", False)
    assert (tiny.rounds, tiny.local.steps, tiny.data.name) == (2, 2, "stand_in")
    assert scale_run(PAPERS["fedblade"], blade, "full", True) is blade


def test_missing_data_are_said_and_nothing_is_run(no_data):
    plan = make_plan(find("fedsol/t2"), "full", "FedAvg", "CINIC-10", 1, Data())
    assert plan.runs == []
    figures = compare_figures(plan, {})
    assert {figure.mark for figure in figures} == {"not run"}
    assert all("cinic10" in figure.note for figure in figures)


def test_a_part_of_a_data_set_is_not_the_paper_s(no_data, monkeypatch):
    folder = no_data / "data" / "cifar100"
    folder.mkdir(parents=True)
    import numpy as np

    x, y = np.zeros((200, 32, 32, 3), np.uint8), np.arange(200) % 100
    np.savez(folder / "cifar100_small.npz", train_images=x, train_labels=y, test_images=x[:100], test_labels=y[:100])
    monkeypatch.setenv("UNSKEW_DATA", str(folder.parent))
    plan = make_plan(find("fedblade/t1"), "full", "FedAvg", "CIFAR-100, alpha=0.1", 1, Data())
    assert plan.runs == [] and "200 of 50,000 training samples" in plan.jobs[0].missing


def test_stand_ins_are_said(no_data):
    plan = make_plan(T4, "smoke", None, "P=0.2", 1, Data())
    assert plan.notes == ("data 'cifar10' are not here: generated images of its shape stand in",)
    assert all(run.data.name == "stand_in" for run in plan.runs)


# ------------------------------------------------------------------------------- ours and the printed


def printed(text, std=None):
    return Printed({"method": "x"}, text, std, "x", "y")


@pytest.mark.parametrize(
    ("text", "std", "values", "mark"),
    [
        ("50.00", 1.0, (50.004,), "equal"),
        ("50.00", 1.0, (52.0,), "within noise"),  # 2 sqrt(1/3 + 1) = 2.31
        ("50.00", 1.0, (52.4,), "above"),
        ("50.00", 1.0, (47.6,), "below"),
        ("50.00", None, (51.9,), "within noise"),  # no spread is known: 2 points
        ("50.00", None, (52.1,), "above"),
        ("50.00", None, (51.0, 52.0, 53.0), "within noise"),  # 4.30 sqrt(1/3 + 1/3) = 3.51
        ("50.00", None, (52.6, 53.6, 54.6), "above"),
        ("failed", None, (10.0,), "other"),
    ],
)
def test_marks_by_hand(text, std, values, mark):
    plan = make_plan(find("fedblade/t1"), "full", "FedAvg", "CIFAR-10, alpha=0.1", 3, Data())
    assert judge(plan, printed(text, std), values) == mark


def test_noise_is_of_the_table_s_unit():
    plan = make_plan(find("fedaf/t7"), "full", "FMNIST", "alpha=0.02", 1, Data())
    assert noise_of(plan, printed("0.06"), [0.06], math.nan) == pytest.approx(0.003)


def test_texts_of_a_figure():
    figure = Compared(printed("50.00", 1.0), (51.0, 52.0, 53.0), "above")
    assert (figure.ours, figure.difference) == ("52.00 ± 1.00", 2.0)
    assert Compared(printed("50.00"), (), "not run").ours == "–"
    assert Compared(printed("50.00"), (51.0,), "other scale").difference is None


def test_prototypes_have_the_printed_bytes():
    table = find("fedblade/t11")
    for figure in table.printed:
        cell = table.recipe(figure.keys)
        assert isinstance(cell, Computed) and cell.compute("full") == float(figure.text)


def test_settings_are_the_printed_ones():
    for name in ("fedsol/t7", "fedsol/t8"):
        plan = make_plan(find(name), "full", None, None, None, Data())
        assert {figure.mark for figure in compare_figures(plan, {})} == {"equal"}


# ----------------------------------------------------------------------------------------- really run


def test_a_table_is_run_and_read_back(no_data):
    plan = make_plan(T4, "smoke", None, "P=0.2", 1, Data())
    seen = []
    first = compare_figures(plan, play(plan.runs, no_data / "out", Data()))
    again = play(plan.runs, no_data / "out", Data(), lambda run, number, total: seen.append(number) or _refuse)
    assert [figure.values for figure in compare_figures(plan, again)] == [figure.values for figure in first]
    assert seen == [1, 2, 3, 4] and {figure.mark for figure in first} == {"other scale"}


def _refuse(row):
    raise AssertionError("a finished run was played again")


def test_relative_figures_need_both_runs(no_data):
    plan = make_plan(find("flfa/t1"), "smoke", "FedProx", "BloodMNIST, relative_time", 1, Data())
    found = play(plan.runs, no_data / "out", Data())
    figures = compare_figures(plan, found)
    assert all(figure.values[0] > 0 for figure in figures)
    fedavg = next(run for run in plan.runs if run.method.name == "fedavg")
    del found[identify(fedavg)]
    assert all(not figure.values for figure in compare_figures(plan, found))


def command(*words):
    return [sys.executable, "-m", "unskew", "reproduce", *words, "-q"]


def tables_in(folder):
    return {path.relative_to(folder): path.read_text() for path in sorted(folder.rglob("table.csv"))}


def kill_after_first_run(words, out, environment):
    """Starts the command and kills it, with its workers, when a run has begun (and, later, one more is finished)."""
    before = len(list(out.glob("*/runs/*/summary.json")))
    process = subprocess.Popen(command(*words), env=environment, start_new_session=True)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if len(list(out.glob("*/runs/*/summary.json"))) > before:
            break
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("queued", [False, True])
def test_killed_twice_it_ends_with_the_same_table(no_data, queued):
    """`kill -9` in the middle, twice; the third call ends it, with the table of an undisturbed one."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(no_data / "cache"), "OMP_NUM_THREADS": "1"}
    environment.pop("UNSKEW_DATA", None)
    cells = ["fedas/t4", "--scale", "smoke", "--seeds", "1"]
    words = list(cells)
    if queued:
        (no_data / "queue.txt").write_text(f"# a comment\n{' '.join(cells)}\n")
        words = ["--queue", str(no_data / "queue.txt"), "--jobs", "2"]
    whole, broken = no_data / "whole", no_data / "broken"
    subprocess.run(command(*cells, "--out", str(whole)), env=environment, check=True, capture_output=True)
    for _ in range(2):
        kill_after_first_run([*words, "--out", str(broken)], broken, environment)
    subprocess.run(command(*words, "--out", str(broken)), env=environment, check=True, capture_output=True)
    assert tables_in(broken) == tables_in(whole)
    finished = [{path.parent.name for path in out.glob("smoke/runs/*/summary.json")} for out in (whole, broken)]
    assert finished[0] == finished[1]
    assert len(finished[0]) == 8  # four variants, with all clients and with a part: P = 0.2, 0.4, 0.6 are one at smoke


@pytest.mark.slow
@pytest.mark.parametrize("table", list_tables(), ids=lambda table: table.id)
def test_every_table_runs_at_smoke(no_data, table):
    """One cell of every method of the table, on generated images."""
    data = Data()
    plan = make_plan(table, "smoke", None, None, 1, data)
    by_method = {str(run.method): run for run in reversed(plan.runs)}
    found = play(list(by_method.values()), no_data / "out", data)
    assert len(found) == len(by_method)
    figures = [figure for figure in compare_figures(plan, found) if figure.values]
    if table.unit != "rounds":  # an accuracy that two rounds do not reach has no round
        assert figures, "no figure could be read"
    for figure in figures:
        cell = table.recipe(figure.printed.keys)
        assert isinstance(cell, Cell) or figure.mark in ("equal", "other machine", "above", "below", "within noise")
        assert all(math.isfinite(value) for value in figure.values if isinstance(value, float))


@pytest.mark.slow
@pytest.mark.parametrize("figure", FIGURES, ids=lambda own: own.id)
def test_every_figure_is_drawn_at_smoke(no_data, figure):
    """Every line has points: what is drawn was measured."""
    words = command(figure.id, "--scale", "smoke", "--out", str(no_data / "out"))
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert "nothing to draw" not in done.stderr + done.stdout
    folder = no_data / "out" / "smoke" / figure.id.replace("/", "-")
    assert (folder / "figure.png").stat().st_size > 5000
    assert len((folder / "data.csv").read_text().splitlines()) > 1


def test_a_dry_run_of_a_figure_names_its_runs(no_data, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", "fedblade/fig3", "--scale", "smoke", "--dry-run", "--json", "--out", str(no_data / "out")])
    said = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0 and (said["figure"], said["figures"]) == ("fedblade/fig3", 1)
    assert [run["method"] for run in said["runs"]] == ["fedblade", "fedblade(decorrelation=feddecorr)"]
    assert not (no_data / "out").exists()


def test_a_figure_in_a_queue(no_data, capsys):
    """Its picture is made once all its runs are there; what it draws is what the command alone draws."""
    (no_data / "queue.txt").write_text("fedblade/fig3 --scale smoke\nfedsol/toy --scale smoke\n")
    for words in (["--queue", str(no_data / "queue.txt"), "--jobs", "1", "-q", "--out", str(no_data / "queued")],
                  ["fedblade/fig3", "--scale", "smoke", "--json", "-q", "--out", str(no_data / "alone")]):  # fmt: skip
        with pytest.raises(SystemExit) as ended:
            main(["reproduce", *words])
        assert ended.value.code == 0
    said = capsys.readouterr().out
    record = json.loads(said[said.index("{") :])
    assert list(record["lines"]) == ["LDDecorr", "FedDecorr's"] and len(record["lines"]["LDDecorr"]) == 3
    own = [no_data / where / "smoke/fedblade-fig3/data.csv" for where in ("queued", "alone")]
    assert own[0].read_text() == own[1].read_text()
    assert (no_data / "queued/smoke/fedsol-toy/figure.png").is_file()
    assert "fedblade/fig3: drawn" in said


def test_a_figure_is_not_drawn_of_half_its_runs(no_data, capsys):
    figure, data = find("fedblade/fig3"), Data()
    plan = plan_figure(figure, "smoke", data)
    found = play(plan.runs[:1], no_data / "out" / "smoke", data)
    assert sketch(plan, found) is None
    assert write_what_is_there(plan, found, no_data / "out") == "1 of 2 runs, not drawn yet"
    assert not (no_data / "out/smoke/fedblade-fig3").exists()


def test_a_figure_without_its_data_is_one_line(no_data, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", "fedas/fig4a", "--out", str(no_data / "out"), "-q"])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and "fedas/fig4a: data 'cifar10' are not on this machine" in said
    assert not (no_data / "out").exists()


def test_a_run_that_measures_something_else_is_another_one(no_data):
    """Measures change no result and are no part of the hash, but a run has only what it measured."""
    data, run = Data(), scale_run(T3.paper, T3.recipe(T3.printed[0].keys).run, "smoke", False)
    measured = replace(run, measure=build_all(["drift"]))
    assert run.hash == measured.hash
    found = play([run, measured, run], no_data / "out", data)
    assert ["drift" in done.rounds[-1].get("measures", {}) for done in found.values()] == [False, True]
    again = play([measured], no_data / "out", data)[identify(measured)]
    assert again.rounds == found[identify(measured)].rounds


def test_the_record_of_a_table(no_data, capsys):
    from unskew.report.reproduction import to_record

    plan = make_plan(find("fedsol/t7"), "full", None, None, None, Data())
    record = json.loads(json.dumps(to_record(plan, compare_figures(plan, {}))))
    assert (record["table"], record["scale"], len(record["figures"])) == ("fedsol/t7", "full", 18)


@pytest.mark.parametrize("name", ["fedas/t3", "fedaf/t1", "fedsol/t9"])
def test_estimates_grow_with_the_work(no_data, name):
    """Twice the rounds take twice as long and send twice as much; full takes longer than a trial of seconds."""

    from unskew.recipes.estimate import estimate, try_out

    plan = make_plan(find(name), "smoke", None, None, 1, Data())
    run = plan.runs[0]
    tried = try_out(run)
    once, twice = estimate(run, tried), estimate(replace(run, rounds=2 * run.rounds), tried)
    assert twice.hours == pytest.approx(2 * once.hours) and once.hours > 0
    assert twice.gigabytes == pytest.approx(2 * once.gigabytes)
    full = find(name).recipe(plan.figures[0].keys).run
    assert estimate(full, tried).hours > 10 * once.hours


def test_estimates_count_a_cores_work_not_what_the_clock_shows_beside_other_work(no_data, monkeypatch):
    from unskew.recipes import estimate

    run, rows, shares = make_plan(find("fedas/t3"), "smoke", None, None, 1, Data()).runs[0], [], (1.0, 0.25)
    real = estimate.RunFolder.rounds
    monkeypatch.setattr(estimate.RunFolder, "rounds", lambda folder: rows.append(real(folder)) or rows[-1])
    for share in shares:
        clock = SimpleNamespace(perf_counter=time.perf_counter, process_time=lambda s=share: s * time.perf_counter())
        monkeypatch.setattr(estimate, "time", clock)
        tried = estimate.try_out(run)
        assert tried.test == pytest.approx(share * rows[-1][2]["seconds"]["evaluate"] / estimate.TESTS, rel=0.05)
        assert tried.server == pytest.approx(share * rows[-1][2]["seconds"]["aggregate"], rel=0.05)


@pytest.mark.parametrize("name", ["fedaf", "feddm"])
def test_estimates_of_condensation_count_the_classes_that_are_condensed(name):
    """Two clients with 30 and 10 images of a class, and 10 and 30 of another: with IPC 20 each condenses one."""

    from unskew.data.dataset import Dataset, Samples
    from unskew.recipes.estimate import Held, count_held, estimate, try_out

    y = torch.tensor([0] * 30 + [1] * 10 + [0] * 10 + [1] * 30)
    samples = Samples(torch.zeros(80, 1, 8, 8, dtype=torch.uint8), y)
    sites = {"groups": torch.arange(80) // 40, "group_names": ("north", "south")}
    data = Dataset("two", samples, samples, ("a", "b"), (0.5,), (0.5,), **sites)
    run = from_table({
        "method": f"{name}(ipc=20, min_class=ipc, real_batch=25, steps=40, server_epochs=50)", "data": "digits",
        "model": "convnet3(width=2)", "split": "domain", "clients": 2, "rounds": 3,
        "evaluation": {"local_test": "none"},
    })  # fmt: skip
    held = count_held(run, data)
    assert held == Held(classes=2, images=25)
    assert count_held(replace(run, method=methods.build("fedavg")), data) is None
    tried = try_out(run, held)
    once = estimate(run, tried, held)
    assert once.hours > 0 and once.gigabytes > 0
    more = replace(tried, test=0.0)
    twice = replace(run, method=methods.build({**to_table(run.method), "steps": 80, "server_epochs": 100}))
    assert estimate(twice, more, held).hours == pytest.approx(2 * estimate(run, more, held).hours)
    assert estimate(run, more, Held(4, 25)).hours == pytest.approx(2 * estimate(run, more, held).hours)
