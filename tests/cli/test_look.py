"""`list`, `show`, `plot`, `predict` and `export` on runs that are there."""

import csv
import json

import numpy as np
import pytest
import torch

import unskew
from small_runs import SMALL
from unskew.base import storage
from unskew.cli import main


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs, and one that was stopped."""
    place = tmp_path_factory.mktemp("look") / "runs"
    unskew.run(**{**SMALL, "out": place / "avg"})
    unskew.run(**{**SMALL, "method": "fedper", "local_test": "holdout", "out": place / "deep" / "per"})

    def stop(row):
        if row["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        unskew.run(**{**SMALL, "seed": 5, "out": place / "cut"}, watch=stop)
    return place


def call(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words)])
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


def test_list_says_what_there_is(runs, capsys):
    code, out, _ = call(capsys, "list", runs, "--json")
    rows = {row["run"].rpartition("/")[2]: row for row in json.loads(out)}
    assert code == 0 and {name: (row["state"], row["done"]) for name, row in rows.items()} == {
        "avg": ("finished", 2), "per": ("finished", 2), "cut": ("unfinished", 1)
    }  # fmt: skip
    assert rows["avg"]["accuracy"] == unskew.open(runs / "avg").summary["accuracy"]["last"]
    assert rows["cut"]["seed"] == 5
    _, out, _ = call(capsys, "list", runs)
    assert "3 runs" in out and "fedper" in out


def test_list_goes_on_where_a_run_is_damaged(runs, capsys, tmp_path):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run.toml").write_text("rounds = [")
    code, out, err = call(capsys, "list", tmp_path, "--json")
    assert code == 0 and json.loads(out)[0]["state"] == "damaged" and "bad" in err


def test_show(runs, capsys):
    code, out, _ = call(capsys, "show", runs / "avg", "--json")
    assert code == 0 and json.loads(out) == unskew.open(runs / "avg").summary
    code, out, _ = call(capsys, "show", runs / "cut")
    assert code == 0 and "not finished; 'unskew resume" in out and "fedavg" in out


@pytest.mark.parametrize("kind", ["png", "pdf", "svg"])
def test_plot(runs, capsys, tmp_path, kind):
    target = tmp_path / f"curves.{kind}"
    code, out, _ = call(capsys, "plot", runs, "-o", target)
    heads = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}
    assert code == 0 and "3 runs" in out and target.read_bytes().startswith(heads[kind])
    assert list(tmp_path.iterdir()) == [target]


def test_predict_tells_the_accuracy_and_writes_lines(runs, capsys, tmp_path):
    target = tmp_path / "p.csv"
    code, out, _ = call(capsys, "predict", runs / "avg", "-o", target, "--json")
    found, digits = json.loads(out), unskew.load("digits")
    assert code == 0 and found["accuracy"] == unskew.open(runs / "avg").summary["accuracy"]["last"]
    with target.open() as file:
        lines = list(csv.DictReader(file))
    right = [line["label"] == line["predicted"] for line in lines]
    assert sum(right) / len(right) == found["accuracy"] and len(lines) == len(digits.test.y)
    np.save(tmp_path / "x.npy", digits.test.x.numpy())
    code, out, _ = call(capsys, "predict", runs / "avg", "--inputs", tmp_path / "x.npy", "--json")
    predicted = [line["predicted"] for line in lines]
    assert [digits.classes[number] for number in json.loads(out)["predictions"]] == predicted


def test_predict_on_other_data(runs, capsys, tmp_path):
    digits = unskew.load("digits")
    np.savez(tmp_path / "new.npz", x_train=digits.train.x[:40], y_train=digits.train.y[:40], x_test=digits.test.x[:50],
             y_test=digits.test.y[:50])  # fmt: skip
    code, out, err = call(capsys, "predict", runs / "avg", "--data", f"npz:{tmp_path / 'new.npz'}", "--json")
    assert code == 0, err
    scores = unskew.open(runs / "avg").predict(digits.test.x[:50])
    assert json.loads(out)["predictions"] == scores.argmax(1).tolist()


def test_a_clients_own_model(runs, capsys, tmp_path):
    code, out, _ = call(capsys, "predict", runs / "deep" / "per", "--client", 2, "--json")
    client = unskew.open(runs / "deep" / "per").client(2)
    own = client.test_samples()
    assert code == 0 and json.loads(out)["predictions"] == client.predict(own.x).argmax(1).tolist()
    code, _, _ = call(capsys, "export", runs / "deep" / "per", "--client", 2, "-o", tmp_path / "m.safetensors")
    written = storage.decode((tmp_path / "m.safetensors").read_bytes())
    assert code == 0
    for name, value in client.model().named_parameters():
        assert torch.equal(written["model"][name], value)
    notes = storage.read_notes((tmp_path / "m.safetensors").read_bytes())
    assert notes["client"] == 2 and notes["classes"] == [str(n) for n in range(10)] and notes["input"] == "uint8"


def test_an_exported_program_gives_the_same_scores(runs, capsys, tmp_path):
    run = unskew.open(runs / "avg")
    code, _, err = call(capsys, "export", runs / "avg", "-o", tmp_path / "m.pt2")
    assert code == 0, err
    program = torch.export.load(tmp_path / "m.pt2").module()
    x = run.data.test.x
    torch.testing.assert_close(program(x), run.predict(x))


def test_an_onnx_file_gives_the_same_scores(runs, capsys, tmp_path):
    from onnx.reference import ReferenceEvaluator

    run = unskew.open(runs / "avg")
    code, _, err = call(capsys, "export", runs / "avg", "-o", tmp_path / "m.onnx")
    assert code == 0, err
    x = run.data.test.x[:30]
    (scores,) = ReferenceEvaluator(str(tmp_path / "m.onnx")).run(None, {"samples": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(scores), run.predict(x), rtol=1e-4, atol=1e-5)


def test_extend_and_the_picture_that_a_run_leaves(runs, capsys, tmp_path):
    code, out, err = call(capsys, "extend", runs / "cut", "--rounds", 3, "--out", tmp_path / "three", "-q")
    assert code == 0 and f"goes on to 3 rounds in {tmp_path / 'three'}, after round 1" in err and "3 rounds" in out
    assert (tmp_path / "three" / "curves.png").read_bytes().startswith(b"\x89PNG")
    code, out, _ = call(capsys, "show", tmp_path / "three")
    assert code == 0 and "extended" in out and "from 2 rounds, after round 1" in out
    line = "run --model mlp(hidden=[8]) --clients 3 --split iid --rounds 1 -q --no-picture"
    start = ["--init", tmp_path / "three" / "model.safetensors", "--init-only", "body.*", "--freeze", "body.1.bias"]
    code, out, err = call(capsys, *line.split(), *start, "--out", tmp_path / "on")
    assert code == 0 and not (tmp_path / "on" / "curves.png").exists(), err
    code, out, _ = call(capsys, "show", tmp_path / "on", "--json")
    assert code == 0 and unskew.open(tmp_path / "on").about["freeze"] == "body.1.bias"
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".") and path.name != ".lock"]


REFUSED = {
    "extend less": ("extend {runs}/avg --rounds 2", "expected more than the 2 rounds of"),
    "extend nothing": ("extend {tmp} --rounds 2", "is not a run folder"),
    "init gone": ("run --init {tmp}/none.safetensors", "init (--init): cannot read"),
    "freeze nothing": ("run --freeze tail.* --out {tmp}/x", "freeze (--freeze): nothing matches 'tail.*'"),
    "list nothing": ("list {tmp}", "there are no runs in"),
    "list no folder": ("list {tmp}/none", "is no folder"),
    "show no run": ("show {tmp}", "is not a run folder"),
    "plot kind": ("plot {runs} -o x.gif", "--out expects the name of a .png, .pdf, .svg file, got 'x.gif'"),
    "plot place": ("plot {runs} -o {tmp}/none/x.png", "cannot write"),
    "export kind": ("export {runs}/avg -o x.bin", "--out expects the name of a .safetensors, .pt2, .onnx file"),
    "export personal": ("export {runs}/deep/per -o {tmp}/x.pt2", "such as that of client 0: --client 0"),
    "predict personal": ("predict {runs}/deep/per", "fedper gives every client a model of its own"),
    "predict both": ("predict {runs}/avg --data digits --inputs x.npy", "both say what to predict"),
    "predict no array": ("predict {runs}/avg --inputs {tmp}/x.npy", "cannot be read as a .npy file"),
    "predict client": ("predict {runs}/deep/per --client 9", "expected a client from 0 to 2, got 9"),
    "predict csv": ("predict {runs}/avg -o x.txt", "--out expects the name of a .csv file"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case, runs, tmp_path, capsys):
    line, message = REFUSED[case]
    code, out, err = call(capsys, *line.format(runs=runs, tmp=tmp_path).split())
    assert code == 2 and message in err and "Traceback" not in err and not out
    assert not list(tmp_path.iterdir())


def test_a_method_whose_prediction_is_more_than_a_network(tmp_path, capsys):
    unskew.run(**{**SMALL, "method": "fedproto(form=original)", "local_test": "holdout", "out": tmp_path / "run"})
    code, _, err = call(capsys, "export", tmp_path / "run", "--client", 0, "-o", tmp_path / "x.safetensors")
    assert code == 2 and "fedproto predicts by more than its network" in err
