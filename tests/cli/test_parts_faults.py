"""Faults in what plugins define beside slots, and in declarations: one line, the documented code, no traceback."""

# ruff: noqa: E501 - the tables have a line for a fault

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cli.calling import Call

HEAD = """
import time
import numpy as np
import torch
from unskew import About, Architecture, Measure, Method, Model, Source, Split, Term, Wrapper, param, reducers, registries, tree

"""
LINE = "run --plugin mine.py --model mlp --clients 4 --split dirichlet:0.5 --rounds 2 --batch 64 -q --executor serial"


@pytest.fixture
def play(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes a plugin and runs it."""
    monkeypatch.chdir(tmp_path)

    def run(plugin: str, arguments: str, line: str = LINE):
        (tmp_path / "mine.py").write_text(HEAD + plugin)
        return call(f"{line} --out {tmp_path / 'run'} {arguments}")

    yield run
    (tmp_path / "mine.py").unlink(missing_ok=True)  # the next test's has the same names


def refused(said, expected: str, code: int) -> None:
    assert "Traceback" not in said.err and said.out == ""
    assert said.err.startswith("error: ") and said.err.count("\n") == 1, said.err
    assert re.search(expected, said.err), said.err
    assert said.code == code


# ---------------------------------------------------------------------------------------------- measures

MEASURE = '@registries.measures.register("mine")\nclass Mine(Measure):\n    "Mine."\n    {}\n'
FIGURES = {
    "None": r"must return a dict .* got None \(is a return missing\?\)",
    "[1, 2]": r"must return a dict .* got list \[1, 2\]",
    "'a'": r"must return a dict .* got str 'a'",
    "{'a': torch.ones(2)}": r".*'a' .* got a tensor of shape \[2\]",
    "{'a': np.ones(2)}": r".*'a' .* got ndarray",
    "{'a': {1}}": r".*'a' .* got set \{1\}",
    "{'a': 1j}": r".*'a' .* got complex 1j",
    "{'a': 'b'}": r".*'a' .* got str 'b'",
    "{'a': torch.tensor(1j)}": r".*'a' .* got a tensor",
    "{'a': {'b': object()}}": r".*'a.b' .* got object",
    "{'a': [1, 'b']}": r".*'a' .* got str 'b'",
    "{3: 1.0}": r".* names must be strings, got the name 3",
}


@pytest.mark.parametrize("value", FIGURES)
def test_figures_that_are_none(play, value):
    said = play(MEASURE.format(f"def figures(self, look):\n        return {value}"), "--measure mine")
    refused(
        said,
        rf"a measure failed before the first round: measure mine.figures {FIGURES[value]}.*\(mine.py, line \d+\)",
        1,
    )


SUMMARIES = {
    "None": "must return", "3": "must return", "{'a': object()}": "gives figures in which 'a' must be a number",
}  # fmt: skip


@pytest.mark.parametrize("value", SUMMARIES)
def test_a_summary_that_is_none(play, value):
    said = play(MEASURE.format(f"def summarise(self, rows):\n        return {value}"), "--measure mine")
    refused(said, rf"a measure failed in round 2: measure mine.summarise {SUMMARIES[value]}", 1)


def test_figures_as_numpy_and_torch_have_them(play, tmp_path):
    body = "def figures(self, look):\n        return {'a': np.float32(0.5), 'b': torch.tensor(2), 'c': None, 'd': [1, np.int64(2)], 'e': {'f': True}}"
    assert play(MEASURE.format(body), "--measure mine").code == 0
    rows = [json.loads(line) for line in (tmp_path / "run/rounds.jsonl").read_text().splitlines()]
    assert all(row["measures"] == {"a": 0.5, "b": 2, "c": None, "d": [1, 2], "e": {"f": True}} for row in rows)


HOOKS = {
    "figures without look": ("def figures(self):\n        return {}", r"plugin mine.py: Mine.figures must take \(self, look\), got \(self\)"),
    "reducers as a dict": ("reducers = {}", r"plugin mine.py: Mine.reducers must be a function, reducers\(self\); got \{\}"),
    "bind gives nothing": ("def bind(self, task):\n        pass", r"measure mine.bind must return an Observer, got None"),
    "reducers that are none": ("def reducers(self):\n        return None", r"Mine.reducers must return a dict .* got None"),
    "text noted": ("def trained(self, c, params):\n        c.diagnostics.note('a', 'b')", r"client 0 failed in round 1: measure mine.trained notes under 'a' .* no single number: 'b'"),
    "a vector noted": ("def trained(self, c, params):\n        c.diagnostics.note('a', torch.ones(3))", r"mine.trained notes under 'a' .* no single number: a tensor of shape \[3\]"),
    "a taken name": ("def step(self, c, params, batch, grads):\n        c.diagnostics.note('samples', 7)", r"measure mine.step notes something under 'samples' .* is taken in a client's row; choose another name"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOOKS)
def test_hooks_of_a_measure(play, case):
    body, expected = HOOKS[case]
    said = play(MEASURE.format(body), "--measure mine")
    refused(said, expected, said.code)
    assert said.code in (1, 2)


@pytest.mark.parametrize("body", [
    "def finished(self, row):\n        row['accuracy'] = 1.0",
    "def figures(self, look):\n        look.row['accuracy'] = 1.0\n        look.clients and look.clients[0].update(samples=-1)\n        [row.update(accuracy=1.0) for row in look.earlier]\n        return {}",
    "def summarise(self, rows):\n        rows[-1]['accuracy'] = 1.0\n        return {}",
])  # fmt: skip
def test_a_measure_changes_no_row(play, call, body, tmp_path):
    said = play(MEASURE.format(body), "--measure mine --json")
    plain = call(f"{LINE} --out {tmp_path / 'plain'} --json")
    assert said.code == plain.code == 0
    assert json.loads(said.out)["accuracy"] == json.loads(plain.out)["accuracy"]

    def rows(name):
        found = [
            json.loads(line) for run in ("run", "plain") for line in (tmp_path / run / name).read_text().splitlines()
        ]
        return [{key: value for key, value in row.items() if key not in ("seconds", "measures")} for row in found]

    for name in ("rounds.jsonl", "clients.jsonl"):
        found = rows(name)
        assert found[: len(found) // 2] == found[len(found) // 2 :]


# ------------------------------------------------------------------------------- splits, models, data sets

SPLIT = '@registries.splits.register("mine")\nclass Mine(Split):\n    "Mine."\n    def assign(self, dataset, clients, rng):\n        count = len(dataset.train)\n        {}\n'
DRAWN = {
    "the clock": "np.random.default_rng(time.time_ns()).permutation(count)",
    "a generator without seed": "np.random.default_rng().permutation(count)",
}


@pytest.mark.parametrize("case", DRAWN)
def test_a_split_that_could_not_be_made_again(play, case):
    body = f"return {DRAWN[case]}, np.diff(np.linspace(0, count, clients + 1).astype(int))"
    said = play(SPLIT.format(body), "--split mine")
    refused(said, r"split mine gives something else when it is asked again; draw from the rng that it is given", 2)


@pytest.mark.parametrize(("sizes", "got"), [("np.array([count])", 1), ("np.full(3, count // 3)", 3)])
def test_a_split_of_another_number_of_clients(play, sizes, got):
    said = play(
        SPLIT.format(f"sizes = {sizes}\n        return rng.permutation(count)[:sizes.sum()], sizes"), "--split mine"
    )
    refused(said, rf"split mine.assign must return a size for each of 4 clients, .*got {got} that add up", 2)


@pytest.mark.parametrize("returned", ["None", "rng.permutation(count)", "(1, 2, 3)"])
def test_a_split_that_gives_no_pair(play, returned):
    refused(
        play(SPLIT.format(f"return {returned}"), "--split mine"),
        r"split mine.assign must return \(indices, sizes\), got",
        2,
    )


MODEL = """
{above}
@registries.architectures.register("mine")
class Mine(Architecture):
    "Mine."
    def build(self, shape, num_classes):
        {body}
"""
NET = "Model(torch.nn.Flatten(), torch.nn.Linear(64, 10))"


def test_a_model_that_could_not_be_made_again(play):
    body = f"net = {NET}\n        torch.nn.init.constant_(net.head.bias, np.random.default_rng().random())\n        return net"
    said = play(MODEL.format(above="", body=body), "", LINE.replace("mlp", "mine"))
    refused(
        said, r"model mine gives other weights when it is asked again \('head.bias' differs\); draw them with torch", 2
    )


def test_a_model_that_is_one_object(play):
    said = play(MODEL.format(above=f"NET = {NET}", body="return NET"), "", LINE.replace("mlp", "mine"))
    refused(said, r"model mine must build a new module each time, and gives the same one again", 2)


def test_cells_of_one_seed_have_one_split(play, call, tmp_path, monkeypatch):
    plugin = SPLIT.format("return np.array([int(i) for i in open('order.txt')]), np.full(4, count // 4)")
    for name, order in (("a", range(1436)), ("b", reversed(range(1436)))):
        (tmp_path / "order.txt").write_text("\n".join(map(str, order)))
        line = "compare --plugin mine.py --methods fedavg,fedprox --seeds 1 --model mlp --clients 4 --rounds 1 -q"
        line = line if name == "b" else line.replace(",fedprox", "")
        said = play(plugin, "--split mine --executor serial", line)
    refused(
        said,
        r"fedprox.* and .*fedavg.* of seed 0 have different splits, so that they cannot be compared; choose another --out",
        2,
    )


# ------------------------------------------------------------------------------------ what would never run

METHOD = '@registries.methods.register("mine")\nclass Mine({kind}):\n    "Mine."\n    {body}\n'
IDLE = {
    "a survey that nobody merges": ("Method", "def survey(self, c):\n        return {'a': {'b': c.counts}}", "mine", r"mine.survey would never be called: .* declare survey_reducers"),
    "a digest without survey": ("Method", "def digest(self, s, server, surveyed):\n        return server", "mine", r"mine.digest would never be called"),
    "a brief without survey": ("Method", "def brief(self, s, server, client):\n        return {}", "mine", r"mine.brief would never be called"),
    "personal models of a global method": ("Method", "def personalise(self, c):\n        return c.received['model']", "mine", r"mine.personalise would never be called: output is \"global\"; .*\"tuned\""),
    "inside a wrapper": ("Method", "def survey(self, c):\n        return {}", "finetuned(mine)", r"mine.survey would never be called"),
}  # fmt: skip


@pytest.mark.parametrize("case", IDLE)
def test_slots_that_would_never_be_called(play, case):
    kind, body, method, expected = IDLE[case]
    refused(play(METHOD.format(kind=kind, body=body), f"--method '{method}'"), expected, 2)


def test_slots_of_a_wrapper_that_are_not_called_here(play):
    body = "def personalise(self, c):\n        return self.inner.personalise(c)"
    said = play(METHOD.format(kind="Wrapper", body=body), "--method 'mine(fedavg)'")
    assert said.code == 0
    assert said.err.count("warning: mine.personalise is not called around fedavg: ") == 1
    assert play(METHOD.format(kind="Wrapper", body=body), f"--method 'mine(fedper)' --out {'other'}").err == ""


def test_a_wrapper_that_forgets_the_inner_methods_preparation(play):
    inside = (
        METHOD.format(kind="Method", body="def prepare(self, c):\n        return c.with_made(x={'a': torch.ones(1)})")
        .replace("Mine", "Inner")
        .replace('"mine"', '"inner"')
    )
    said = play(
        inside + METHOD.format(kind="Wrapper", body="def prepare(self, c):\n        return c"), "--method 'mine(inner)'"
    )
    refused(
        said,
        r"client \d failed in round 1: mine.prepare leaves out what inner.prepare makes \(c.made\[\"x\"\]\); hand on self.inner.prepare\(c\)",
        1,
    )


# ------------------------------------------------------------------------------------------------ options

OPTIONS = {
    "above its bound": ("mu: float = param(default=5, le=1, doc='x')", r"Mine.mu: its default .* less than or equal to 1, got 5"),
    "half a number": ("k: int = param(default=1.5, doc='x')", r"Mine.k: its default .* valid integer.*, got 1.5"),
    "text for a number": ("q: float = 'x'", r"Mine.q: its default .* valid number.*, got 'x'"),
    "a truth for a number": ("q: int = True", r"Mine.q: its default .* a number, got true"),
    "a number for a truth": ("q: bool = 1", r"Mine.q: its default .* true or false, got 1"),
    "a function": ("f: object = param(default=len, doc='x')", r"Mine.f: its default .* plain values .* got <built-in function len>"),
    "a function made there": ("f: object = lambda x: x", r"Mine.f: its default .* plain values .* got <function"),
    "an object": ("f: object = param(default=object(), doc='x')", r"Mine.f: its default .* plain values .* got <object object"),
    "a name": ("name: str = param(default='x', doc='x')", r"Mine.name: an option cannot be called 'name'"),
    "args": ("args: int = param(default=1, doc='x')", r"Mine.args: an option cannot be called 'args'"),
    "an initialiser": ("def __init__(self):\n        pass", r"Mine.__init__ would be ignored: .*__post_init__"),
}  # fmt: skip


@pytest.mark.parametrize("case", OPTIONS)
def test_options_that_could_not_be_written_down(play, case):
    body, expected = OPTIONS[case]
    refused(play(METHOD.format(kind="Method", body=body), "--method mine"), rf"plugin mine.py: .*{expected}", 2)


def test_a_check_of_options_is_said_in_its_words(play):
    body = "mu: float = 1.0\n    def __post_init__(self):\n        raise ValueError('mu is odd')"
    refused(play(METHOD.format(kind="Method", body=body), "--method mine"), r"error: mine: mu is odd$", 2)


def test_a_whole_number_as_the_default_of_a_float_can_be_resumed(play, call, tmp_path):
    body = "mu: float = 1\n    def update(self, s, server, merged):\n        if s.round == 2 and open('stop').read():\n            raise ValueError('stop')\n        return super().update(s, server, merged)"
    (tmp_path / "stop").write_text("yes")
    assert play(METHOD.format(kind="Method", body=body), "--method mine").code == 1
    (tmp_path / "stop").write_text("")
    assert call(f"resume {tmp_path / 'run'} -q").code == 0


@pytest.mark.parametrize(("line", "expected"), [
    ("@registries.methods.register(3)\nclass Mine(Method):\n    'x'", r"register expects a name such as \"mine\" \(a-z, 0-9, _\), got 3"),
    ("@registries.methods.register('')\nclass Mine(Method):\n    'x'", r"register expects a name such as .*, got ''"),
    ("@registries.methods.register('a b')\nclass Mine(Method):\n    'x'", r"register expects a name such as .*, got 'a b'"),
    ("@registries.methods.register('Mine')\nclass Mine(Method):\n    'x'", r"register expects a name .* got 'Mine'"),
    ("@registries.methods.register\nclass Mine(Method):\n    'x'", r"register expects a name, got the class Mine; write @registries.methods.register\(\"mine\"\)"),
    ("@registries.methods.register('mine')\ndef mine():\n    pass", r"method 'mine' must be a class that derives from Method, got function mine"),
    ("@registries.methods.register('mine')\nclass Mine(Term):\n    'x'", r"method 'mine' must be a class that derives from Method, got the class Mine"),
])  # fmt: skip
def test_what_cannot_be_registered(play, line, expected):
    refused(play(line, ""), expected, 2)


# ----------------------------------------------------------------------------- what a run cannot hold or name

ODD = {
    "complex, kept": ("def keep(self, c, params):\n        return {'a': {'b': torch.zeros(2, dtype=torch.complex64)}}", r"client \d failed in round 1: mine.keep must return .* got complex64 in 'b'"),
    "complex, at first": ("def init_client(self, c):\n        return {'a': {'b': torch.zeros(2, dtype=torch.complex64)}}", r"mine.init_client must return .* got complex64 in 'b'"),
    "float8 at the server": ("def init(self, s):\n        return {**super().init(s), 'a': {'b': torch.zeros(2).to(torch.float8_e5m2)}}", r"mine.init must return .* got float8_e5m2 in 'b'"),
    "sparse, sent": ("def upload(self, c, params):\n        return {'delta': {n: v.to_sparse() for n, v in super().upload(c, params)['delta'].items()}}", r"mine.upload must return .*got a sparse tensor under 'body.1.weight'; make it dense with .to_dense"),
    "sparse, at the server": ("def update(self, s, server, merged):\n        return {**super().update(s, server, merged), 'x': {'a': torch.eye(2).to_sparse()}}", r"mine.update must return .*got a sparse tensor under 'a'"),
    "meta, surveyed": ("survey_reducers = {'a': reducers.total}\n    def survey(self, c):\n        return {'a': {'b': torch.zeros(2, device='meta')}}", r"mine.survey must return .*got a tensor without data \(device meta\) under 'b'"),
    "meta, briefed": ("survey_reducers = {'a': reducers.total}\n    def survey(self, c):\n        return {'a': {'b': torch.zeros(2)}}\n    def brief(self, s, server, client):\n        return {'z': {'b': torch.zeros(2, device='meta')}}", r"mine.brief must return .*got a tensor without data"),
    "an odd exception": ("def train(self, c, params):\n        raise type('Odd', (BaseException,), {})('odd')", r"client \d failed in round 1: .*Odd: odd, in mine.train \(mine.py, line \d+\)"),
    "the end of a generator": ("def train(self, c, params):\n        raise GeneratorExit", r"client \d failed in round 1: .*GeneratorExit, in mine.train"),
    "no text": ("def train(self, c, params):\n        raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})()", r"client \d failed in round 1: Odd: Odd, in mine.train"),
    "a record that is no JSON": ("def update(self, s, server, merged):\n        s.record['a'] = object()\n        return super().update(s, server, merged)", r"the server failed in round 1: mine.update gives a record \(s.record\) in which 'a' must be a number, text, list or dict of such, got object"),
    "terms that are none": ("def own_terms(self):\n        pass", r"mine.own_terms must give a tuple of terms, got None"),
    "terms in a list": ("def own_terms(self):\n        return 3", r"mine.own_terms must give a tuple of terms, got 3"),
}  # fmt: skip


@pytest.mark.parametrize("executor", ["serial", "pool"])
@pytest.mark.parametrize("case", ODD)
def test_what_a_run_cannot_hold_or_name(play, case, executor):
    body, expected = ODD[case]
    said = play(METHOD.format(kind="Method", body=body), f"--method mine --executor {executor}")
    refused(said, expected, 2 if "terms" in case else 1)


def test_a_keyboard_interrupt_of_a_slot_in_a_worker(play):
    said = play(
        METHOD.format(kind="Method", body="def train(self, c, params):\n        raise KeyboardInterrupt"),
        "--method mine --executor pool",
    )
    refused(said, r"client \d failed in round 1: KeyboardInterrupt: KeyboardInterrupt, in mine.train", 1)


def test_a_reducer_that_takes_nothing(play):
    plugin = "class Own(reducers.mean):\n    def __init__(self):\n        pass\n"
    refused(play(plugin, ""), r"plugin mine.py: Own.__init__ must take \(self, s\), got \(self\)", 2)


@pytest.mark.parametrize("given", ["None", "(1, 2, 3, 4)"])
def test_data_that_are_none(play, given):
    plugin = f'@registries.sources.register("mine")\nclass Mine(Source):\n    "Mine."\n    about = About("1 / 1", 2, (1, 8, 8), licence="CC0")\n    def load(self, find):\n        return {given}\n'
    refused(play(plugin, "--data mine"), r"data mine: load must return an unskew.Dataset, got", 2)


@pytest.mark.parametrize("executor", ["serial", "pool"])
def test_a_plugin_that_prints_leaves_json_alone(tmp_path, executor):
    body = "def train(self, c, params):\n        print('in train')\n        __import__('os').system('echo by a program')\n        return super().train(c, params)"
    (tmp_path / "mine.py").write_text(HEAD + "print('at import')\n" + METHOD.format(kind="Method", body=body))
    line = f"{LINE} --method mine --executor {executor} --out run --json"
    done = subprocess.run([sys.executable, "-m", "unskew", *line.split()], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["method"] == "mine"
    assert all(text in done.stderr for text in ("at import", "in train", "by a program"))


def test_a_plugin_that_prints_may_do_so(play):
    body = "def update(self, s, server, merged):\n        print('in update')\n        return super().update(s, server, merged)"
    assert "in update" in play(METHOD.format(kind="Method", body=body), "--method mine").out
    said = play(METHOD.format(kind="Method", body=body), "--method mine --json --out other")
    assert json.loads(said.out) and "in update" in said.err


@pytest.mark.parametrize("command", ["run --method mine", "compare --methods mine --seeds 1"])
def test_a_slot_that_changes_the_folder_loses_nothing(play, tmp_path, command):
    (tmp_path / "elsewhere").mkdir()
    body = "def update(self, s, server, merged):\n        __import__('os').chdir('/')\n        return super().update(s, server, merged)"
    line = LINE.replace("run ", f"{command} ", 1).replace("mine.py", str(tmp_path / "mine.py"))
    said = play(METHOD.format(kind="Method", body=body), "--out elsewhere/run", line)
    assert said.code == 0, said.err
    assert list((tmp_path / "elsewhere/run").rglob("summary.json"))
