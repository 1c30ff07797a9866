"""Values in a user's module that its file does not show: they count, and what its own code changes does not."""

import importlib
import os
import subprocess
import sys
import types

import pytest
import torch
from torch import nn

from unskew.base import user_code
from unskew.base.user_code.finder import Finder

FILE = '''
import os
import types
import enum
from collections import defaultdict
from torch.nn.functional import relu
import torch

ALPHA = 1.0
LAYERS = (8, 8)
TABLE = {"k": 1.0, "deep": {"j": [1, 2]}}
FROM_OUTSIDE = float(os.environ.get("UNSKEW_TEST_ALPHA", "1"))
WEIGHTS = torch.ones(3)
HERE = os.path.dirname(os.path.abspath(__file__))
SPACE = types.SimpleNamespace(k=1.0)
act = relu
CACHE = {}
SEEN = defaultdict(int)
CALLS = 0
LOG = ["begun"]
GIVEN = {}
WORDS = {"some", "words", "in", "any", "order"}


class Colour(enum.Enum):
    RED = 1


CHOICE = Colour.RED


class Settings:
    k = 1.0

    def __init__(self):
        self.rate = 1.0
        self.calls = 0

    def use(self):
        self.calls += 1
        return self.rate


held = Settings()


class Used:
    """What a run uses."""

    scale = 1.0

    def work(self, x):
        global CALLS
        CALLS += 1
        CACHE[x] = x
        SEEN[x] += 1
        LOG.append(x)
        held.use()
        return helper(x) * ALPHA * self.scale


def helper(x):
    return x
'''


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "test_values_module.py").write_text(FILE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("test_values_module")
    sys.modules.pop("test_values_module")


def find(module):
    """What a call of unskew's finds."""
    finder = Finder()
    with user_code.keep_values():
        finder.add(module.Used)
    return finder.loose | {str(path): text for path, text in finder.files.items()}


def put(name, value):
    def change(module):
        *owners, last = name.split(".")
        owner = module
        for one in owners:
            owner = getattr(owner, one)
        setattr(owner, last, value)

    return change


def put_item(module):
    module.TABLE["deep"]["j"][0] = 5


SETTINGS = {
    "a number": put("ALPHA", 3.0),
    "another type": put("ALPHA", 1),
    "a tuple": put("LAYERS", (8, 16)),
    "inside a dict": put_item,
    "computed when loaded": put("FROM_OUTSIDE", 2.0),
    "a tensor": lambda module: module.WEIGHTS.mul_(2),
    "a namespace": put("SPACE.k", 2.0),
    "a function that it refers to": put("act", torch.tanh),
    "a function of its own": put("helper", lambda x: 2 * x),
    "a method": put("Used.work", lambda self, x: x),
    "a class attribute": put("Used.scale", 2.0),
    "of another class": put("Settings.k", 2.0),
    "of an object": put("held.rate", 2.0),
    "an imported function": put("relu", torch.tanh),
    "a new name": put("BETA", 2.0),
    "an empty dict that nobody else fills": lambda module: module.GIVEN.update(k=1),
    "a set": lambda module: module.WORDS.add("more"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_set_from_outside_counts(module, name):
    before = find(module)
    assert find(module) == before
    SETTINGS[name](module)
    assert find(module) != before


def test_what_a_run_changes_does_not_count(module):
    """A counter, a cache, a list; but whatever is set between two calls."""
    before = find(module)
    for number in range(3):
        with user_code.keep_values():
            module.Used().work(number)
            module.NEW = number
            module.__dict__.pop("SPACE", None)
        assert find(module) == before
    assert module.CALLS == 3 and module.held.calls == 3 and module.NEW == 2
    module.CALLS = 7
    assert find(module) != before


def test_what_is_under_way_is_not_seen(module):
    """The values count from before the call: code of the user's has run when a run's hash is asked for."""
    before = find(module)
    finder = Finder()
    with user_code.keep_values():
        module.Used().work(1)
        finder.add(module.Used)
    assert finder.loose.items() <= before.items()


def test_what_another_file_changes_does_not_count(tmp_path, monkeypatch):
    (tmp_path / "test_state_module.py").write_text("COUNT = 0\nFOUND = {}\nRATE = 1.0\n")
    text = "import test_state_module as state\n\n\nclass Used:\n    def work(self):\n        state.COUNT += 1\n"
    (tmp_path / "test_user_module.py").write_text(text + "        state.FOUND[1] = 2\n        return state.RATE\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("test_user_module")
    before = find(module)
    with user_code.keep_values():
        module.Used().work()
    assert module.state.COUNT == 1 and find(module) == before
    module.state.RATE = 2.0
    assert find(module) != before
    sys.modules.pop("test_user_module")
    sys.modules.pop("test_state_module")


def test_the_order_of_a_set_does_not_count(tmp_path):
    """It differs from process to process."""
    (tmp_path / "test_words_module.py").write_text(f"WORDS = {set('abcdefgh')!r}\n\n\nclass Used:\n    pass\n")
    text = "import test_words_module as m\nfrom unskew.base.user_code.finder import Finder\n"
    text += "f = Finder()\nf.add(m.Used)\n"
    seen = {
        subprocess.run(
            [sys.executable, "-c", text + "print(sorted(f.loose), sorted(f.files.values()))"],
            cwd=tmp_path, env={**os.environ, "PYTHONHASHSEED": str(seed)}, capture_output=True, text=True, check=True,
        ).stdout
        for seed in range(3)
    }  # fmt: skip
    assert len(seen) == 1 and " in " not in seen.pop()


def test_what_cannot_be_looked_at_does_no_harm(module):
    class Hostile(dict):
        def __getattr__(self, name):
            raise RuntimeError(name)

        def items(self):
            raise RuntimeError

    Hostile.__module__ = module.__name__
    module.HOSTILE, module.LIST = Hostile(), [Hostile()]
    before = find(module)
    module.ALPHA = 9.0
    assert find(module) != before


def test_a_file_of_constants_counts_once(tmp_path, monkeypatch):
    """What the file says itself needs no second hash: runs from before keep theirs."""
    (tmp_path / "test_constants_module.py").write_text('A, B = 1, "x"\nC = {"k": 1}\n\n\nclass Used:\n    k: int = 3\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("test_constants_module")
    assert list(find(module)) == [str(tmp_path / "test_constants_module.py")]
    module.A = 2
    assert "A in test_constants_module.py" in find(module)
    sys.modules.pop("test_constants_module")


def test_a_folder_that_was_moved_counts_the_same(tmp_path, monkeypatch):
    found = []
    for folder in ("one", "another"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "test_moved_module.py").write_text(FILE)
        monkeypatch.syspath_prepend(str(tmp_path / folder))
        importlib.invalidate_caches()
        module = importlib.import_module("test_moved_module")
        finder = Finder()
        finder.add(module.Used)
        found.append((finder.loose, sorted(finder.files.values())))
        sys.modules.pop("test_moved_module")
    assert found[0] == found[1]


def load_loose(text, name="__main__"):
    """A class of a script."""
    module = types.ModuleType("test_no_file")
    module.__dict__["nn"] = nn
    exec(text, module.__dict__)
    module.Net.__module__ = name
    return module.Net


def test_a_file_that_a_scripts_function_imports_counts(tmp_path, monkeypatch):
    (tmp_path / "test_lazy_helper.py").write_text("def gain():\n    return 1.0\n")
    monkeypatch.chdir(tmp_path)
    text = "class Net:\n    def forward(self, x):\n        from test_lazy_helper import gain\n        return gain()\n"
    finder = Finder()
    finder.add(load_loose(text))
    assert [path.name for path in finder.files] == ["test_lazy_helper.py"]


@pytest.mark.parametrize(
    "call, expected",
    [
        ("np.random.default_rng()", True),
        ("np.random.RandomState()", True),
        ("random.Random()", True),
        ("default_rng()", True),
        ("np.random.default_rng(3)", False),
        ("np.random.default_rng([c, x])", False),
        ("random.Random(x)", False),
        ("default_rng(seed=x)", False),
    ],
)
def test_a_generator_without_a_seed_is_found(call, expected):
    finder = Finder()
    finder.add(load_loose(f"class Net:\n    def forward(self, x):\n        return {call}.random()\n"))
    assert bool(finder.unseeded) is expected


def test_a_module_of_the_same_package_that_nothing_imports_does_not_count(tmp_path, monkeypatch):
    package = tmp_path / "test_own_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "used.py").write_text("from . import helper\n\n\nclass Used:\n    pass\n")
    (package / "helper.py").write_text("K = 1\n")
    (package / "plots.py").write_text("SIZE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("test_own_package.used")
    before = find(module)
    assert {path.rpartition("/")[2] for path in before} == {"__init__.py", "used.py", "helper.py"}
    importlib.import_module("test_own_package.plots")
    assert find(module) == before
    for name in ("", ".used", ".helper", ".plots"):
        sys.modules.pop(f"test_own_package{name}")


def test_what_differs_from_process_to_process_does_not_count(tmp_path):
    (tmp_path / "test_fleeting_module.py").write_text("""
import datetime, logging, os, random, tempfile, time, uuid, weakref
START = time.time()
STAMP = datetime.datetime.now().strftime("%s%f")
RUN, PROCESS, PLACE = uuid.uuid4().hex, os.getpid(), tempfile.gettempdir() + str(os.getpid())
ADDRESS = id(START)
HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DRAWN = random.Random(os.getpid())
log = logging.getLogger(__name__)
GAIN = {len: 1.0, max: 2.0, frozenset("abcdef"): 3.0}


class Timer:
    def __init__(self):
        self.begun = time.perf_counter()


class Key:
    pass


TIMER = Timer()
KEYS = {Key(): 1.0}
WEAK = weakref.WeakKeyDictionary()


class Used:
    pass
""")
    text = "import test_fleeting_module as m\nfrom unskew.base import user_code\n"
    text += "from unskew.base.user_code.finder import Finder\nf = Finder()\n"
    text += "with user_code.keep_values():\n    f.add(m.Used)\nprint(f.loose)"
    seen = {
        subprocess.run(
            [sys.executable, "-c", text], cwd=tmp_path, env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in range(2)
    }  # fmt: skip
    assert len(seen) == 1 and "GAIN in test_fleeting_module.py" in seen.pop()
