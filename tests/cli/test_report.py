"""`unskew report` from the command line: from folders alone, and the page that comparisons leave."""

import json
import re
from pathlib import Path

import pytest

from cli.calling import Call, assert_refused

TINY = "--clients 4 --rounds 2 --epochs 1 --model mlp --split iid"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)


def drawn(path: str) -> dict:
    return json.loads(re.search(r'id="facts">(.*?)</script>', Path(path).read_text(), re.S)[1])["settings"][0]


def test_a_report_of_a_comparison_and_a_run(call: Call):
    assert call(f"compare --methods fedavg,fedprox --seeds 2 {TINY} --measure drift --out c --quiet").code == 0
    assert call(f"run --method fedsol {TINY} --out alone --quiet").code == 0
    said = call("report c alone -o both.html")
    assert said.code == 0 and "wrote both.html: 5 runs" in said.out and "there is no interval" in said.out
    own, both = drawn("c/report.html"), drawn("both.html")
    assert list(own["axes"]) == ["fedavg", "fedprox"]
    assert [method["name"] for method in both["methods"]][-1] == "fedsol"
    assert own["measured"][0]["name"] == "drift" and own["splits"].keys() == {"0", "1"}
    summary = json.loads(next(Path("c/runs").glob("fedavg-seed0*/summary.json")).read_text())
    assert own["quantities"][0]["curves"]["fedavg"][0][-1] == round(100 * summary["accuracy"]["last"], 2)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("report nowhere", "nowhere is no folder"),
        ("report empty", "there are no runs in empty"),
        ("report empty -o report.pdf", "--out expects the name of an .html file"),
    ],
)
def test_bad_input_is_one_line(call: Call, line: str, words: str):
    Path("empty").mkdir(exist_ok=True)
    assert_refused(call(line), words)


def test_condensed_images_are_recorded_for_the_report(call: Call):
    method = '"fedaf(steps=1, ipc=1, server_epochs=1)"'
    assert call(f"run --method {method} {TINY} --measure condensed --out images --quiet").code == 0
    assert call("report images -o r.html").code == 0
    (images,) = drawn("r.html")["images"].values()
    assert [image["label"] for image in images] == list("0123456789")
    assert all(len(image["pixels"]) == 64 and {0, 255} <= set(image["pixels"]) for image in images)
    assert call(f"run --method {method} {TINY} --out plain --quiet").code == 0
    assert call("report plain -o r.html").code == 0
    assert "record" in Path("r.html").read_text() and "--measure condensed" in Path("r.html").read_text()


def test_where_clients_send_no_images_a_line_says_so(call: Call):
    said = call(f"run --method fedavg {TINY} --measure condensed --out without --quiet")
    assert said.code == 0 and "send no images" in said.err
