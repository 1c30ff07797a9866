"""Every command and group of flags doing what it is for."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from cli.calling import Call, contents, write_arrays, write_images
from unskew.cli import main
from unskew.cli.progress import RoundProgress
from unskew.core.profile import PARTS
from unskew.data.partition.splits import splits
from unskew.runs.config import from_table, read_file

QUICK = "--model mlp --split iid --clients 4 --rounds 2 --quiet"


@pytest.fixture(autouse=True)
def in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)


def one_object(text: str) -> dict:
    """Standard output that is exactly one JSON object in one line, with no NaN in it."""
    assert text.endswith("\n") and text.count("\n") == 1

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    found = json.loads(text, parse_constant=refuse)
    assert isinstance(found, dict)
    return found


def saved(folder: str | Path) -> dict:
    return read_file(Path(folder) / "run.toml")


# ------------------------------------------------------------------------------------ run


def test_run_leaves_the_folder_it_promises(call: Call, tmp_path: Path):
    said = call(f"run {QUICK} --out run")
    assert said.code == 0 and said.err == ""
    assert "accuracy, last" in said.out and "results in run" in said.out
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"run.toml", "split.json", "labels.json", "rounds.jsonl", "clients.jsonl", "checkpoint",
                     "model.safetensors", "summary.json", "per_class.csv", "confusion.csv", "curves.png"}  # fmt: skip


def test_run_names_its_own_folder_and_does_not_replace_it(call: Call, tmp_path: Path):
    assert call(f"run {QUICK}").code == 0
    folder = next((tmp_path / "runs").iterdir())
    assert folder.name.startswith("fedavg-digits-")
    before = contents(tmp_path)
    again = call(f"run {QUICK}")
    assert again.code == 2 and "holds a finished run" in again.err
    assert contents(tmp_path) == before


def test_every_flag_reaches_the_run(call: Call):
    flags = (
        "--method 'fedprox(mu=0.5)' --data digits --model 'mlp(hidden=[8])' --split dirichlet:0.5 --clients 5 "
        "--sample 0.6 --rounds 1 --epochs 2 --steps 3 --batch 16 --lr 0.1 --lr-decay 0.9 --momentum 0.5 "
        "--weight-decay 0.001 --augment flip --buffers local --dropout 0.1 --seed 7 --split-seed 8 --eval-every 2 "
        "--clients-every 1 --local-test holdout --validation 0.1 --executor pool --workers 2 --checkpoint-every 3"
    )
    said = call(f"run {flags} --set evaluation.last_k=2 --set local.drop_last=true --out run --quiet --json")
    assert said.code == 0, said.err
    assert one_object(said.out)["accuracy"].keys() >= {"last_2_mean", "best_on_validation"}
    run = from_table(saved("run"))
    assert str(run.method) == "fedprox(mu=0.5)" and str(run.split) == "dirichlet(alpha=0.5)"
    assert (run.clients, run.sample, run.rounds, run.dropout, run.seed, run.split_seed) == (5, 0.6, 1, 0.1, 7, 8)
    local = run.local
    assert (local.epochs, local.steps, local.batch, local.lr, local.lr_decay) == (2, 3, 16, 0.1, 0.9)
    assert (local.momentum, local.weight_decay, local.buffers, local.drop_last) == (0.5, 0.001, "local", True)
    tested = run.evaluation
    assert (tested.every, tested.clients_every, tested.local_test, tested.validation) == (2, 1, "holdout", 0.1)
    assert (run.execution.executor, run.execution.workers, run.execution.checkpoint_every) == ("pool", 2, 3)
    assert run.augment.name == "flip" and str(run.model) == "mlp(hidden=[8])"


def test_file_then_flag_then_set(call: Call, tmp_path: Path):
    (tmp_path / "mine.toml").write_text(
        'rounds = 1\nclients = 4\nsplit = "iid"\nmodel = "mlp"\nseed = 5\n'
        '[method]\nname = "fedprox"\nmu = 0.1\n[local]\nlr = 0.2\nbatch = 64\n'
    )
    said = call("run mine.toml --lr 0.3 --seed 6 --set local.lr=0.4 --set method.mu=0.7 --out run --json --quiet")
    assert said.code == 0, said.err
    run = from_table(saved("run"))
    assert (run.rounds, run.clients, run.seed, run.local.lr, run.local.batch) == (1, 4, 6, 0.4, 64)
    assert str(run.method) == "fedprox(mu=0.7)"


def test_run_toml_is_itself_a_run_file(call: Call, tmp_path: Path):
    assert call(f"run {QUICK} --method scaffold --out first").code == 0
    assert call("run first/run.toml --out second --quiet").code == 0
    first, second = (tmp_path / name / "model.safetensors" for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()


def test_json_is_the_summary_and_nothing_else(call: Call, tmp_path: Path):
    said = call(f"run {QUICK} --out run --json")
    assert one_object(said.out) == json.loads((tmp_path / "run" / "summary.json").read_text())


def test_json_of_a_diverged_run_has_no_nan(call: Call, tmp_path: Path):
    said = call(f"run {QUICK} --lr 1e30 --out run --json")
    assert said.code == 3 and "NaN or infinite values" in said.err
    assert one_object(said.out)["diverged"] is True and one_object(said.out)["diverged_in"] == 1
    for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines():
        one_object(line + "\n")


BREAKS = """
import torch
from unskew import Method, registries, tree

@registries.methods.register("cli_breaks")
class Breaks(Method):
    def update(self, s, server, merged):
        found = super().update(s, server, merged)
        return found if s.round < 2 else {**found, "model": tree.scale(found["model"], float("nan"))}
"""


def test_a_run_that_diverges_has_an_exit_code_of_its_own(call: Call, tmp_path: Path):
    (tmp_path / "breaks.py").write_text(BREAKS)
    line = f"--plugin breaks.py {QUICK} --rounds 4"
    said = call(f"run {line} --method cli_breaks --out run")
    assert said.code == 3 and "Traceback" not in said.err and said.err.count("round 2: cli_breaks.update gave") == 1
    assert "in round 2: cli_breaks.update gave the server NaN or infinite numbers (group 'model')" in said.out
    before = contents(tmp_path / "run")
    said = call("resume run")
    assert said.code == 3 and said.err == "run diverged in round 2; nothing to do\n" and "accuracy, last" in said.out
    assert contents(tmp_path / "run") == before
    said = call(f"compare {line} --methods cli_breaks,fedavg --seeds 1 --out c --json")
    assert said.code == 0
    rows, notes = one_object(said.out)["rows"], one_object(said.out)["notes"]
    assert [row["diverged"] for row in rows] == [True, False] and not any(
        "best" in str(cell) for cell in rows[0].values()
    )
    assert any("cli_breaks, seed 0: diverged in round 2 and stopped there" in text for text in notes)
    assert {path.name for path in (tmp_path / "c").iterdir()} >= {"curves.png", "report.html", "table.md"}


def test_progress_lines_keep_brackets(call: Call):
    said = call("run --method 'fedprox(terms=[prox(mu=1)])' --model mlp --split iid --clients 2 --rounds 1 --out run")
    assert "fedprox(terms=[prox(mu=1.0)]): round 1/1 · accuracy" in said.err
    assert "fedprox(terms=[prox(mu=1.0)]) on digits" in said.out


def test_no_local_tests_with_a_global_method(call: Call):
    said = call(f"run {QUICK} --local-test none --out run --json")
    assert said.code == 0 and one_object(said.out)["personal"] is None


def test_holdout_with_clients_of_one_sample(call: Call):
    said = call(
        "run --split iid --clients 1437 --sample 0.005 --local-test holdout --rounds 1 --model mlp --out run --json -q"
    )
    assert said.code == 0, said.err
    assert one_object(said.out)["clients"] == 1437


def test_pool_gives_the_bytes_of_serial(call: Call, tmp_path: Path):
    assert call(f"run {QUICK} --method scaffold --out serial").code == 0
    assert call(f"run {QUICK} --method scaffold --executor pool --workers 2 --out pool").code == 0
    assert (tmp_path / "serial/model.safetensors").read_bytes() == (tmp_path / "pool/model.safetensors").read_bytes()


# ------------------------------------------------------------------------------------ resume


def stop_after(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Presses Ctrl-C after a round."""

    def press(self: RoundProgress, row: dict) -> None:
        if row["round"] == number:
            raise KeyboardInterrupt

    monkeypatch.setattr(RoundProgress, "__call__", press)


def test_an_interrupted_run_resumes_bit_for_bit(call: Call, tmp_path: Path):
    line = f"run {QUICK} --method scaffold --rounds 3"
    assert call(f"{line} --out calm").code == 0
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 1)
        said = call(f"{line} --out run")
    assert said.code == 130 and said.out == ""
    assert said.err == "error: interrupted; resume the run with 'unskew resume run'\n"
    said = call("resume run --executor serial --json --quiet")
    assert said.code == 0 and one_object(said.out)["rounds"] == 3
    assert "resuming after round 1" in said.err
    assert (tmp_path / "run/model.safetensors").read_bytes() == (tmp_path / "calm/model.safetensors").read_bytes()


def test_resume_of_a_finished_run_only_shows_it(call: Call, tmp_path: Path):
    assert call(f"run {QUICK} --out run").code == 0
    before = contents(tmp_path)
    said = call("resume run --json")
    assert said.code == 0 and said.err == "run is finished already; nothing to do\n"
    assert one_object(said.out)["rounds"] == 2
    assert "accuracy, last" in call("resume run").out
    assert contents(tmp_path) == before


# ------------------------------------------------------------------------------------ compare


TURNED = "the distance moved from serial, but for a ReLU or max-pool that rounding turns"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("methods fedavg", f"within 0.001 of {TURNED}"),
        ("methods feddecorr", "no bound to the distance from serial: rounding grows from step to step"),
        ("methods fedaf", "the bits of serial: its clients work one by one"),
        ("methods flfa", f"as the method inside, at best within 0.001 of {TURNED}"),
        ("methods lddecorr", "no bound to the distance from serial: rounding grows from step to step"),
        ("wire quantise", "within 0.02 of the distance moved from serial"),
    ],
)
def test_listings_say_what_stacked_promises(call: Call, line: str, expected: str):
    assert f"stacked: {expected}\n" in call(line).out
    assert one_object(call(f"{line} --json").out)["stacked"] == expected


COMPARE = "compare --model mlp --split iid --clients 4 --rounds 2 --methods fedavg,fedprox(mu=1) --seeds 1,2 --quiet"


def test_compare_in_every_form_reuses_finished_runs(call: Call, tmp_path: Path):
    said = call(COMPARE.replace("(mu=1)", "'(mu=1)'") + " --out c")
    assert said.code == 0, said.err
    assert "accuracy %" in said.out and "bold: best" not in said.out  # nothing is bold in a file
    out = tmp_path / "c"
    assert {path.name for path in out.iterdir()} == {
        "runs", "table.md", "table.csv", "table.tex", "table.json", "curves.png", "split.png", "report.html",
    }  # fmt: skip
    assert len(list((out / "runs").iterdir())) == 4
    runs = contents(out / "runs")
    line = COMPARE.replace("(mu=1)", "'(mu=1)'").replace(" --quiet", "") + " --out c"
    for form, suffix in (("md", "md"), ("csv", "csv"), ("latex", "tex"), ("json", "json")):
        said = call(f"{line} --format {form}")
        assert said.code == 0 and said.out == (out / f"table.{suffix}").read_text()
        assert said.err == "4 of 4 runs were finished already and were not run again\n"
    assert contents(out / "runs") == runs
    rows = one_object(call(f"{line} --json").out)["rows"]
    assert [row["method"] for row in rows] == ["fedavg", "fedprox(mu=1.0)"]
    assert len(rows[0]["accuracy %"]["seeds"]) == 2
    table = list(csv.DictReader(io.StringIO((out / "table.csv").read_text())))
    assert float(table[0]["time × mean"]) == 1


def test_compare_resumes_an_interrupted_cell(call: Call, tmp_path: Path):
    # one after the other: who is interrupted, and in which round, is the test's to say
    line = f"compare {QUICK} --methods fedavg,scaffold --seeds 1 --validation 0.1 --metric best_on_validation --json"
    line += " --jobs 1"
    calm = call(f"{line} --out calm")
    assert calm.code == 0, calm.err
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 1)
        assert call(f"{line} --out c").code == 130
    assert not (tmp_path / "c" / "table.md").exists()
    said = call(f"{line} --out c")
    assert said.code == 0 and "resuming after round 1" in said.err
    for path in (tmp_path / "calm" / "runs").iterdir():
        model = tmp_path / "c" / "runs" / path.name / "model.safetensors"
        assert model.read_bytes() == (path / "model.safetensors").read_bytes()
    accuracy = [[row["accuracy %"] for row in one_object(text.out)["rows"]] for text in (calm, said)]
    assert accuracy[0] == accuracy[1]


@pytest.mark.parametrize("metric", ["last", "last_k", "last_10_percent", "best_on_test"])
def test_compare_by_every_metric(call: Call, metric: str):
    said = call(f"compare {QUICK} --rounds 1 --methods fedavg --seeds 1 --out c --metric {metric} --json")
    assert said.code == 0 and metric.replace("_", " ") in one_object(said.out)["notes"][0].replace(
        "last 10 mean", "last k"
    )


# ------------------------------------------------------------------------------------ split


def test_split_saves_exports_draws_and_is_used_again(call: Call, tmp_path: Path):
    line = "split --split dirichlet:0.3 --clients 5 --seed 3 --out p.json --csv p.csv --picture p.png"
    said = call(line)
    assert said.code == 0 and "wrote p.json" in said.out and "Gini coefficient" in said.out
    rows = list(csv.reader((tmp_path / "p.csv").open()))
    assert rows[0] == ["client", "index", "label"] and len(rows) == 1438
    with Image.open(tmp_path / "p.png") as image:
        assert image.format == "PNG"
    before = contents(tmp_path)
    again = one_object(call(f"{line} --json").out)
    assert contents(tmp_path) == before
    assert sum(map(sum, again["counts"])) == again["samples"] == 1437
    said = call("run --split file:p.json --rounds 1 --model mlp --out run --json --quiet")
    found = one_object(said.out)
    assert (found["clients"], found["split_hash"]) == (5, again["hash"])


@pytest.mark.slow
def test_split_of_a_million_clients(call: Call, tmp_path: Path):
    line = "split --split 'virtual(samples=4, alpha=0.1)' --clients 1000000 --out p.json --picture p.png"
    said = call(line)
    assert said.code == 0 and "1000000 clients, 4000000 samples" in said.out
    assert "figures over 1000 clients, a fixed random choice" in said.out and "may belong to several" in said.out
    found = one_object(call(f"{line} --json").out)
    assert (found["clients"], found["described"], found["sizes"]["max"]) == (1_000_000, 1000, 4)
    assert "counts" not in found and (tmp_path / "p.json").stat().st_size < 300
    with Image.open(tmp_path / "p.png") as image:
        assert image.format == "PNG"
    refused = call("split --split virtual --clients 1000000 --csv p.csv")
    assert refused.code == 2 and "a CSV lists up to" in refused.err and not (tmp_path / "p.csv").exists()
    said = call("run --split file:p.json --sample 3e-6 --rounds 2 --model mlp --local-test holdout --out run --json -q")
    ran = one_object(said.out)
    assert (ran["clients"], ran["split_hash"], ran["personal"]["clients_tested"]) == (1_000_000, found["hash"], 1000)


def test_help_and_page_name_every_split(call: Call):
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    said = call("split --help").out
    for name in (name for name in splits if splits.get(name).__module__.startswith("unskew.")):
        assert name in said and f"`{name}" in page


def test_compare_draws_computed_clients(call: Call, tmp_path: Path):
    flags = "--split virtual --clients 20000 --sample 0.0002 --rounds 1 --model mlp --local-test none --quiet"
    assert call(f"compare --methods fedavg --seeds 1 {flags} --out c").code == 0
    assert (tmp_path / "c" / "split.png").exists()
    assert call(f"compare --methods fedavg --seeds 1 {flags} --out c").code == 0  # the recipe is read back


# ------------------------------------------------------------------------------------ lists


@pytest.mark.parametrize(
    ("command", "name", "word"),
    [
        ("methods", "fedprox", "mu"),
        ("data", "digits", "scikit-learn"),
        ("models", "mlp", "hidden"),
        ("wire", "quantise", "bits"),
    ],
)
def test_lists_and_details(call: Call, command: str, name: str, word: str):
    listed = call(command)
    assert listed.code == 0 and listed.err == "" and f"{name} " in listed.out
    assert name in [row["name"] for row in json.loads(call(f"{command} --json").out)]
    explained = call(f"{command} {name}")
    assert explained.code == 0 and explained.err == "" and word in explained.out
    details = one_object(call(f"{command} {name} --json").out)
    assert details["name"] == name and isinstance(details["options"], list)


def test_models_count_parameters_for_any_shape(call: Call):
    found = one_object(call("models mlp --shape 1,28,28 --classes 9 --json").out)
    assert found["parameters"] == f"{784 * 64 + 64 + 64 * 9 + 9:,}"
    assert call("models --shape 3,100000,100000").code == 0  # takes no memory


def test_data_says_where_it_looked(call: Call, tmp_path: Path):
    said = call(f"data mnist --data-dir {tmp_path} --json")
    assert "not on this machine" in one_object(said.out)["found"]


def test_version_help_and_nothing(call: Call):
    assert call("--version").out.startswith("unskew ")
    for command in ("", "run", "compare", "split", "resume", "methods", "data", "models", "wire"):
        said = call(f"{command} --help")
        assert said.code == 0 and "Usage" in said.out
    nothing = call("")
    assert nothing.code == 2 and nothing.err == "error: no command was given (see --help)\n"


# ------------------------------------------------------------------------------------ the user's own parts

OWN = """
import numpy as np
import torch
from torch import nn

from unskew import Method, param, registries


@registries.methods.register("fed_mine")
class FedMine(Method):
    "My own method."

    strength: float = param(default=1.0, ge=0, doc="how strong it is")


class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.hidden, self.fc = nn.Linear(int(np.prod(shape)), 16), nn.Linear(16, classes)

    def forward(self, x):
        return self.fc(torch.relu(self.hidden(x.flatten(1))))


def features():
    x = np.random.RandomState(0).rand(60, 6).astype(np.float32)
    return x, np.arange(60) % 3, x, np.arange(60) % 3
"""


def test_own_method_model_and_data(call: Call, tmp_path: Path):
    (tmp_path / "mine.py").write_text(OWN)
    said = call(
        "run --plugin mine.py --method 'fed_mine(strength=2)' --data python:mine.py:features --split iid --clients 3 "
        "--model \"python('mine.py:Net', head=fc)\" --rounds 2 --out run --json --quiet"
    )
    assert said.code == 0, said.err
    assert one_object(said.out)["method"] == "fed_mine(strength=2.0)"
    (tmp_path / "run" / "summary.json").unlink()
    said = call("resume run --json --quiet")
    assert said.code == 0 and one_object(said.out)["rounds"] == 2


def test_own_npz_with_natural_clients(call: Call, tmp_path: Path):
    write_arrays(tmp_path)
    said = call("run --data npz:hospitals.npz --split natural --rounds 1 --out a --json --quiet")
    assert said.code == 0 and one_object(said.out)["clients"] == 4
    said = call("run --data npz:good.npz --split iid --clients 3 --rounds 1 --out b --json --quiet")
    assert said.code == 0 and one_object(said.out)["clients"] == 3
    said = call("run --data npz:domains.npz --split domain --clients 6 --rounds 1 --out c --json --quiet")
    assert said.code == 0 and one_object(said.out)["clients"] == 6


def test_own_images(call: Call, tmp_path: Path):
    write_images(tmp_path / "images")
    said = call("run --data 'folder(\"images\", size=8, grey=true)' --split iid --clients 2 --rounds 1 --json -q")
    assert said.code == 0, said.err
    write_images(tmp_path / "wards", ("north", "south", "west"))
    said = call("run --data clients_folder:wards --model mlp --split natural --rounds 1 --json --quiet")
    assert said.code == 0 and one_object(said.out)["clients"] == 3
    shutil.rmtree(tmp_path / "runs")


def test_a_profile_is_shown_and_written(call: Call, tmp_path: Path):
    done = call(f"run --rounds 2 --clients 4 --split iid --model mlp --profile --out {tmp_path / 'run'} --quiet")
    assert done.code == 0 and "where the seconds of all processes went" in done.out
    written = json.loads((tmp_path / "run/profile.json").read_text())
    assert written["total"] == pytest.approx(sum(written["seconds"].values()))
    assert written["seconds"].keys() <= PARTS.keys()


@pytest.mark.parametrize(("flag", "written"), [pytest.param("true", True, marks=pytest.mark.slow), ("false", False)])
def test_compile_takes_true_or_false(call: Call, tmp_path: Path, flag: str, written: bool):
    executor = "stacked" if written else "serial"
    small = "--model 'mlp(hidden=[4])' --rounds 1 --steps 1"  # compiling takes its time
    said = call(f"run {QUICK} {small} --executor {executor} --compile {flag} --out {tmp_path / 'run'}")
    assert said.code == 0
    assert read_file(tmp_path / "run/run.toml")["execution"]["compile"] is written


def test_flags_that_name_several_things_may_be_given_several_times(call: Call):
    said = call(
        f"run {QUICK} --wire 'clip(norm=1.0)' --wire 'quantise(bits=8)' --measure drift --measure rank --out run"
    )
    assert said.code == 0, said.err
    assert [each["name"] for each in saved("run")["wire"]] == ["clip", "quantise"]
    assert [each["name"] for each in saved("run")["measure"]] == ["drift", "rank"]


def test_one_round_is_not_one_rounds(call: Call):
    said = call("run --model mlp --split iid --clients 1 --rounds 1 --quiet --out run")
    assert "1 round" in said.out and "1 rounds" not in said.out


def test_the_help_offers_what_is_taken(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "300")
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    shown = capsys.readouterr().out
    assert "(average | local | reset)" in shown and "(none | proportional | common | holdout)" in shown
