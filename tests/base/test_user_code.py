"""The user's code by content: what counts, what does not, and that it is what is loaded."""

import dataclasses
import importlib
import subprocess
import sys
import time
import types

import pytest

import unskew
from unskew.base import user_code
from unskew.base.user_code.finder import Finder
from unskew.core.method import methods
from unskew.core.term import terms
from unskew.models.base import architectures
from unskew.runs.config import from_table

PLUGIN = """
from unskew import Method, Term, registries
import {name}_helper
from {name}_package.inner import value

@registries.methods.register("{name}")
class Mine(Method):
    "Mine."

@registries.terms.register("{name}_term")
class MyTerm(Term):
    "Mine."
    def __call__(self, c, params, batch, out):
        return 0.0
"""


@pytest.fixture
def plugin(tmp_path, own_names):
    """A plugin with a neighbour and a package beside it; names of its own, as modules are the process's."""
    name = f"uc_{time.monotonic_ns()}"
    (tmp_path / f"{name}_package").mkdir()
    (tmp_path / f"{name}_package" / "__init__.py").write_text("")
    (tmp_path / f"{name}_package" / "inner.py").write_text("from .deep import value\n")
    (tmp_path / f"{name}_package" / "deep.py").write_text("value = 1\n")
    (tmp_path / f"{name}_package" / "unused.py").write_text("value = 1\n")
    (tmp_path / f"{name}_helper.py").write_text("import numpy\n\nK = 1\n")
    (tmp_path / f"{name}.py").write_text(PLUGIN.format(name=name))
    return tmp_path / f"{name}.py"


def found(plugin, **table):
    return from_table({"plugins": [str(plugin)], **table}).find_code()


def test_only_code_that_the_run_uses_counts(plugin):
    name = plugin.stem
    assert found(plugin) == found(plugin, method="fedprox") == {}
    used = found(plugin, method=name)
    assert {key.rpartition("/")[2] for key in used} == {
        f"{name}.py", f"{name}_helper.py", "inner.py", "deep.py", "__init__.py",
    }  # fmt: skip
    assert found(plugin, method=f"fedavg(terms=[{name}_term])") == used
    assert found(plugin, method=f"finetuned({name})") == used  # nested


def test_every_file_that_it_imports_counts_and_no_other(plugin):
    name = plugin.stem
    before = found(plugin, method=name)
    assert found(plugin, method=name) == before
    package = plugin.parent / f"{name}_package"
    for path in (plugin, plugin.parent / f"{name}_helper.py", package / "deep.py"):
        text = path.read_text()
        path.write_text(text + "\nX = 2\n")
        changed = found(plugin, method=name)
        assert [key for key in before if changed[key] != before[key]] == [
            next(key for key in before if key.endswith(path.name))
        ]
        path.write_text(text)
        assert found(plugin, method=name) == before
    (package / "unused.py").write_text("value = 2\n")
    assert found(plugin, method=name) == before


def test_an_edit_of_the_same_size_within_a_moment_is_seen(plugin):
    helper = plugin.parent / f"{plugin.stem}_helper.py"
    seen = set()
    for number in range(5):
        helper.write_text(f"import numpy\n\nK = {number}\n")
        seen.add(tuple(found(plugin, method=plugin.stem).values()))
        method = methods.get(plugin.stem)
        assert number == vars(sys.modules[method.__module__])[f"{plugin.stem}_helper"].K
    assert len(seen) == 5


def test_where_code_lies_is_not_what_it_does(plugin):
    here = found(plugin, method=plugin.stem)
    run = from_table({"plugins": [str(plugin)], "method": plugin.stem}).resolve(unskew.load("digits"))
    assert run.code == here and run.hash != from_table({"method": plugin.stem}).hash
    moved = {f"elsewhere/{name}": value for name, value in here.items()}
    assert dataclasses.replace(run, code=moved, begun_in="/").hash == run.hash


def test_functions_behind_python(tmp_path):
    file = tmp_path / "net.py"
    file.write_text("def net(shape, classes):\n    return 1\n")
    one = from_table({"model": f"python:{file}:net"}).find_code()
    file.write_text("def net(shape, classes):\n    return 2\n")
    two = from_table({"model": f"python:{file}:net", "data": f"python:{file}:net"}).find_code()
    assert one.keys() == two.keys() == {"net.py"} and one != two


def test_runs_without_code_of_the_users_record_none():
    run = from_table({"method": "flfa(fedsol)", "wire": "clip", "model": "cnn8"}).resolve(unskew.load("digits"))
    assert run.code == {} and run.begun_in == ""
    text = run.to_toml()
    assert "[code]" not in text and "code_changes" not in text and "begun_in" not in text


def test_a_module_edited_after_its_import_counts_as_it_was_loaded(tmp_path, monkeypatch, own_names):
    name = f"uc_{time.monotonic_ns()}"
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "from unskew import Method\n\n\nclass Mine(Method):\n    'Mine.'\n    _K = 1\n    def _f(self): return 1\n"
    (tmp_path / f"{name}.py").write_text(text)
    module = importlib.import_module(name)
    (tmp_path / f"{name}.py").write_text(text.replace("return 1", "return 2"))
    stale = user_code.find([module.Mine()])
    assert user_code.find([module.Mine()]) == stale
    importlib.invalidate_caches()
    del sys.modules[name]
    module = importlib.import_module(name)
    fresh = user_code.find([module.Mine()])
    assert fresh.keys() == stale.keys() and fresh != stale
    (tmp_path / f"{name}.py").write_text(text.replace("return 1", "return 2") + "\nK = 5\n")
    assert user_code.find([module.Mine()]) == fresh  # not reloaded: it still runs what it ran


SCRIPT = """
import unskew
from unskew.base import user_code

factor = {factor}
unused = {unused}

def helper(x):
    return {helper}

class Base(unskew.Method):
    'Mine.'
    personal = {personal}

class Mine(Base):
    'Mine.'
    def weight(self, c, params):
        return [helper(factor) for _ in range(1)][0]

print(user_code.find([Mine()]))
seeds = {seeds}
"""
SAID = {"factor": 1, "unused": 1, "helper": "x", "personal": (), "seeds": 3}


def said(**changes):
    made = types.ModuleType("__main__")
    lines = []
    exec(SCRIPT.format(**{**SAID, **changes}), vars(made) | {"print": lines.append})
    return lines[0]


def test_a_script_counts_by_what_the_class_uses():
    plain = said()
    assert set(plain) == {"__main__.Mine", "__main__.Base"} and said() == plain
    assert said(unused=2) == said(seeds=4) == plain
    for change in ({"factor": 2}, {"helper": "x + 1"}):
        changed = said(**change)
        assert changed["__main__.Mine"] != plain["__main__.Mine"]
        assert changed["__main__.Base"] == plain["__main__.Base"]
    assert said(personal=("head.*",)) != plain


def test_tensors_that_the_code_names_count_by_their_values():
    plain = said(factor="__import__('torch').arange(3)")
    assert said(factor="__import__('torch').arange(3)") == plain != said(factor="__import__('torch').arange(4)")


def test_a_real_script(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT.format(**SAID))
    done = [
        subprocess.run([sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert done[0].stdout == done[1].stdout and "__main__.Mine" in done[0].stdout


def test_values_held_by_a_class_made_in_a_function_count():
    def make(mu):
        class Made(unskew.Method):
            "Made."

            def weight(self, c, params):
                return mu

        return Made()

    assert user_code.find([make(1)]) == user_code.find([make(1)]) != user_code.find([make(2)])


def test_modules_handed_over_count_by_their_classes():
    from unskew.models.user_module import GivenModule

    class Own(unskew.Model):
        "Of a test."

    assert GivenModule.of(Own(None, None)).code_used() == (Own,)
    assert user_code.find([architectures.build("mlp")]) == {}
    assert user_code.find([terms.build("prox")]) == {}


def test_a_plugin_that_was_moved_is_the_same_code(tmp_path):
    text = (
        "import functools\n\n\ndef net(shape, classes):\n    return twice(1)\n\n\ntwice = functools.partial(net, 2)\n"
    )
    seen = []
    for folder in ("one", "another"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "moved.py").write_text(text)
        seen.append(from_table({"model": f"python:{tmp_path / folder}/moved.py:net"}).find_code())
    assert seen[0] == seen[1] and list(seen[0]) == ["moved.py", "twice in moved.py"]


# ------------------------------------------------------------------------------------ in whatever way the code names it

WAYS = """
import collections, dataclasses, enum, functools, threading, types, torch
from torch import nn

@dataclasses.dataclass
class Options:
    rate: float = VALUE
    rates: list = dataclasses.field(default_factory=lambda: [VALUE])
class Lazy:
    @functools.cached_property
    def value(self): return VALUE
class Locked:
    def __init__(self):
        self.function, self.lock = (lambda: VALUE), threading.Lock()
class Listed(list): pass

class Plain:
    def f(self): return VALUE
class Heir(Plain): pass
class Called:
    def __call__(self): return VALUE
class Kind(enum.Enum):
    ONE = VALUE
class Held:
    inner = Plain()
class Holding:
    def __init__(self): self.own = Plain()
class Meta(type):
    @property
    def value(cls): return VALUE
class Made(metaclass=Meta): pass
class Net(nn.Module):
    def forward(self, x): return VALUE * x
class Words(dict):
    def __getitem__(self, key): return VALUE
@functools.lru_cache
def cached(): return VALUE
@torch.no_grad()
def without(): return VALUE
def make(value):
    def inner(): return value
    return inner
def wrap(function):
    @functools.wraps(function)
    def inner(): return VALUE * function()
    return inner
@wrap
def wrapped(): return 1.0
one = functools.singledispatch(lambda x: VALUE)
plain, heir, called, holding, net, words, closure, bound = (
    Plain(), Heir(), Called(), Holding(), Net(), Words(), make(VALUE), Plain().f)
layers, listed, space = nn.Sequential(Net()), [1.0, lambda: VALUE], types.SimpleNamespace(f=lambda: VALUE)
lazy, locked, marked = Lazy(), Locked(), Listed()
marked.value = VALUE
made = collections.defaultdict(lambda: VALUE)
sparse = torch.tensor([VALUE, 0.0]).to_sparse()
first, second = [1.5], [2.5]
trio = (first, second, first if VALUE == 1.5 else second)
pair = collections.namedtuple("pair", "value")(VALUE)

class Used:
    def slot(self): return NAMED
"""
NAMED = [
    "plain.f()", "heir.f()", "called()", "Kind.ONE.value", "Held.inner.f()", "holding.own.f()", "Made.value",
    "net(1.0)", "layers(1.0)", "words['a']", "cached()", "without()", "closure()", "bound()", "wrapped()", "one(1)",
    "listed[1]()", "space.f()", "pair.value", "Options().rate", "Options().rates[0]", "lazy.value",
    "locked.function()", "marked.value", "made['a']", "float(sparse.to_dense()[0])", "trio[2][0]",
]  # fmt: skip


@pytest.mark.parametrize("named", NAMED)
def test_what_the_code_of_a_script_names_counts(named, monkeypatch):
    """In whatever way: an object's methods too, and the code that decorators keep."""

    def describe(value):
        monkeypatch.setitem(sys.modules, "a_script", types.ModuleType("a_script"))
        space = vars(sys.modules["a_script"])
        exec(compile(WAYS.replace("VALUE", value).replace("NAMED", named), "a script", "exec"), space)
        finder = Finder()
        finder.add(space["Used"])
        assert space["Used"]().slot() == float(value)
        return finder.loose

    assert describe("1.5") == describe("1.5") != describe("2.5")
