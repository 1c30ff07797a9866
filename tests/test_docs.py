"""The documentation keeps up with the code: pages, options, links, and the run file with every key."""

import ast
import dataclasses
import inspect
import re
from pathlib import Path

import pytest
import torch

import unskew
from unskew.base.registry import Component, default_of, options
from unskew.core.method import Method, methods
from unskew.core.slots import DECLARATIONS, NAMES, SLOTS
from unskew.core.wrapper import Wrapper
from unskew.methods.catalogue import read_facts
from unskew.runs.config import RECORDED, SECTIONS, Run, from_table, tomllib

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+)$", re.M)
FENCED = re.compile(r"^```.*?^```", re.M | re.S)

# a method that a test or a user's file registered is not ours to document
OURS = [name for name in methods if methods.get(name).__module__.startswith("unskew.methods.")]


@pytest.mark.parametrize("name", OURS)
def test_a_method_has_a_page_that_names_every_option(name):
    page = ROOT / "docs" / "methods" / f"{name}.md"
    assert page.is_file(), f"write docs/methods/{name}.md"
    text = page.read_text(encoding="utf-8")
    missing = [option.name for option in options(methods.get(name)) if f"`{option.name}`" not in text]
    assert not missing, f"{page.name} does not mention {missing}"
    assert f"methods/{name}.md" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_resolve(page):
    for target in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        place = (page.parent / path).resolve() if path else page
        assert place.exists(), f"{target} leads nowhere"
        if anchor:
            assert anchor in anchors(place), f"{target}: there is no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_examples_import_is_there(page):
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S):
        for line in ast.walk(ast.parse(block)):
            # nesterov is the page's own file
            if isinstance(line, ast.ImportFrom) and line.module.startswith("unskew") and "nesterov" not in line.module:
                exec(ast.unparse(line), {})


def test_the_methods_on_the_page_are_the_built_in_ones(tmp_path, own_names):
    page = (ROOT / "docs" / "write_a_method.md").read_text(encoding="utf-8")
    plugin = tmp_path / "mine.py"
    plugin.write_text("\n\n".join(re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)))

    def play(method, **options):
        small = {"model": "cnn8(norm=batch)", "clients": 3, "rounds": 2, "local_test": "holdout", "lr": 0.05}
        return unskew.run(method, plugin=plugin, **{**small, **options})

    moon, by_hand, as_term = (play(each) for each in ("moon", "my_moon", "fedavg(terms=[my_contrast])"))
    for ours in (by_hand, as_term):  # which look at samples in other batches, or normalise in another way
        for name, value in moon.server["model"].items():
            torch.testing.assert_close(ours.server["model"][name], value, rtol=1e-3, atol=1e-5)
    fedavg = play("fedavg")
    assert not all(torch.allclose(moon.server["model"][n], v, atol=1e-4) for n, v in fedavg.server["model"].items())

    ditto, ours = play("ditto"), play("my_ditto")
    assert all(torch.equal(ours.server["model"][name], value) for name, value in fedavg.server["model"].items())
    assert [row["personal"] for row in ours.rounds] == [row["personal"] for row in ditto.rounds]
    own = ditto.client_model(1).state_dict()
    assert all(torch.equal(value, own[name]) for name, value in ours.client_model(1).state_dict().items())
    assert play("signs", lr=0.001, rounds=1).rounds[1]["train_loss"] > 0


def test_the_guide_s_table_is_fresh(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks import facts

    page = (ROOT / "docs" / "methods" / "index.md").read_text(encoding="utf-8")
    assert facts.TABLE.search(page)[0] == facts.write_table(read_facts()), "run python -m benchmarks.facts"


def test_the_guide_knows_every_method():
    page = (ROOT / "docs" / "methods" / "index.md").read_text(encoding="utf-8")
    assert not [name for name in OURS if f"`{name}`" not in page], "run python -m benchmarks.facts"


def anchors(page):
    """The anchors of a page's headings, made as GitHub makes them."""
    headings = HEADING.findall(FENCED.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_run_file_in_the_docs_has_every_key():
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    table = tomllib.loads(re.search(r"^```toml\n(.*?)^```", text, re.M | re.S)[1])
    from_table(table)
    assert {*table, *RECORDED} == {field.name for field in dataclasses.fields(Run)}
    for key, section in SECTIONS.items():
        assert set(table[key]) == {field.name for field in dataclasses.fields(section)}, key
        assert not stale(text, key, section), key


def stale(text, key, section):
    """Keys whose line shows another value than the default and does not say so."""
    lines = re.search(rf"^\[{key}\](.*?)(?=^\[|^```)", text, re.M | re.S)[1].splitlines()
    shown = {line.split(" ")[0]: tomllib.loads(line) for line in lines if "=" in line and "default" not in line}
    written = {name: default_of(section, name) for name in shown}
    written = {name: str(value) if isinstance(value, Component) else value for name, value in written.items()}
    return [name for name, row in shown.items() if row[name] != written[name]]


def test_contributing_lists_every_slot_and_declaration():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = [f"| `{slot.call}` | {slot.where} | {slot.returns} | {slot.default} |" for slot in SLOTS]
    assert "| slot | where | returns | default |\n|---|---|---|---|\n" + "\n".join(rows) + "\n" in text
    assert all(f"| `{name}` |" in text for name in DECLARATIONS)


def test_every_slot_is_in_the_list_and_every_wrapper_forwards_it():
    helpers = {"shared", "receive", "loss_terms", "used_terms"}
    public = {name for name, value in vars(Method).items() if callable(value) and not name.startswith("_")}
    assert public - helpers == set(NAMES)
    for slot in SLOTS:
        inside, outside = (list(inspect.signature(vars(kind)[slot.name]).parameters)[1:] for kind in (Method, Wrapper))
        assert f"{slot.name}({', '.join(inside)})" == slot.call and outside == ["args"]
    assert set(DECLARATIONS) <= set(vars(Wrapper))
