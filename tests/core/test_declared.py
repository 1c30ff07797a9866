"""Names that a plugin's classes may have, and what a method may declare."""

# ruff: noqa: E501 - the table has a line for a fault

from functools import cached_property
from typing import ClassVar

import pytest

import unskew
from unskew import Measure, Method, Observer, Processor, Split, Term, Wrapper, helper, param, reducers
from unskew.base.errors import DeclarationError, InputError
from unskew.core.method import methods

# ------------------------------------------------------------------------------------------------ names


@pytest.mark.parametrize(
    "base, body, line",
    [
        (Method, {"uplaod": lambda self, c, params: {}}, r"Mine.uplaod is no slot.* did you mean upload\?.*unskew.helper"),
        (Wrapper, {"updat": lambda self, s, server, merged: {}}, r"Mine.updat is no slot.* did you mean update\?"),
        (Method, {"plot": lambda self: 1}, "Mine.plot is no slot, so nothing would call it"),
        (Method, {"los": staticmethod(lambda c, params, batch: 1)}, r"Mine.los is no slot.* did you mean loss\?"),
        (Method, {"strat": classmethod(lambda cls, c: 1)}, r"Mine.strat is no slot.* did you mean start\?"),
        (Method, {"offer": property(lambda self: ())}, r"Mine.offer is no slot.* did you mean offers\?"),
        (Method, {"cached": cached_property(lambda self: 3)}, "Mine.cached is no slot"),
        (Method, {"reducer": {}}, r"Mine.reducer is neither.* did you mean reducers\?.*ClassVar"),
        (Method, {"stackabel": False}, r"Mine.stackabel is neither.* did you mean stackable\?"),
        (Method, {"buffer_polcy": "local"}, r"Mine.buffer_polcy .* did you mean buffer_policy\?"),
        (Method, {"table": 3}, "Mine.table is neither a declaration nor an option"),
        (Method, {"__annotations__": {"stackabel": bool}, "stackabel": False}, r"is an option.* did you mean stackable\?"),
        (Method, {"__annotations__": {"stackabel": "bool"}, "stackabel": False}, r"did you mean stackable\?"),
        (Method, {"__annotations__": {"weight": float}, "weight": param(default=1.0, doc="w")}, "hides the slot"),
        (Method, {"__annotations__": {"output": str}, "output": "global"}, "hides the declaration"),
        (Method, {"upload": 3}, r"Mine.upload must be a function, upload\(c, params\)"),
        (Method, {"upload": lambda self, c: {}}, r"Mine.upload must take \(self, c, params\), got \(self, c\)"),
        (Method, {"loss": staticmethod(lambda c: 1)}, r"Mine.loss must take \(c, params, batch\)"),
        (Method, {"proximal": lambda self, c, params, batch: {}}, r"Mine.proximal was renamed; define correction"),
        (Method, {"merge_personal": lambda self, c: {}}, r"renamed; define receive"),
        (Method, {"outer_terms": lambda self: ()}, r"renamed; define loss_terms"),
        (Term, {"map": lambda self, names: ()}, r"Mine.map is never called; did you mean maps\?"),
        (Term, {"proximl": True}, r"did you mean proximal\?"),
        (Measure, {"figure": lambda self, look: {}}, r"did you mean figures\?"),
        (Observer, {"finnished": lambda self, row: None}, r"did you mean finished\?"),
        (Processor, {"encod": lambda self, c, groups, memory, stream: None}, r"did you mean encode\?"),
        (reducers.Reducer, {"results": lambda self: {}}, r"did you mean result\?"),
        (Split, {"asign": lambda self, dataset, clients, rng: None}, r"did you mean assign\?"),
    ],
)  # fmt: skip
def test_a_name_that_nothing_would_use_is_refused(base, body, line):
    with pytest.raises(InputError, match=line) as error:
        type("Mine", (base,), dict(body))
    assert "\n" not in str(error.value)
    assert isinstance(error.value, DeclarationError)


def test_helpers_constants_and_options_are_free():
    class Mine(Method):
        """Everything that is allowed."""

        factor: float = param(default=1.0, doc="an option")
        weights: float = param(default=1.0, doc="near to a slot, but declared")
        plain: int = 3
        table: ClassVar[tuple[int, ...]] = (1, 2)
        _private = 3

        @helper
        def plot(self):
            return 1

        @helper
        @property
        def width(self):
            return 2

        @staticmethod
        @helper
        def area(x):
            return 3 * x

        def _own(self):
            return 4

        def shared(self, context, params):
            return params

    class Child(Mine):
        """A helper may be overridden."""

        table = (3,)

        def plot(self):
            return 5

    class Watching(Observer):
        def draw(self):
            return 6

    made = unskew.registries.methods.register("test_declared_free")(Child)()
    assert (made.plot(), made.width, made.area(1), made.table, made.plain) == (5, 2, 3, (3,), 3)
    assert Watching().draw() == 6


def test_mixins_may_hold_anything_but_misspelt_slots():
    class Drawing:
        def plot(self):
            return 1

    class Slip:
        def uplaod(self, c, params):
            return {}

    type("Mine", (Drawing, Method), {})
    with pytest.raises(InputError, match=r"Slip.uplaod is no slot; did you mean upload\?"):
        type("Mine", (Slip, Method), {})


# -------------------------------------------------------------------------------------------- declarations

WRONG = {
    "output": ("personl", r"output must be one of 'global', .* got 'personl'"),
    "buffer_policy": ("avg", r"buffer_policy must be one of None, 'average'.* got 'avg'"),
    "personal": ("head.*", r"personal must be a tuple of strings such as \(\"head"),
    "frozen": (["head.*"], r"frozen must be a tuple of strings"),
    "stackable": (1, r"stackable must be True or False, got 1"),
    "takes_terms": (None, r"takes_terms must be True or False"),
    "offers": ("x", r"offers must be a tuple of strings"),
    "reducers": ([reducers.mean], r"reducers must be a dict such as"),
    "survey_reducers": ({"counts": 3}, r"the reducer of 'counts' must be a subclass"),
    "division": ("head", r"division must be a Division"),
}


@pytest.mark.parametrize("name", WRONG)
def test_declarations_that_mean_nothing_are_refused_before_the_run(name, tmp_path):
    value, line = WRONG[name]
    made = methods.register(f"test_wrong_{name}")(type("Mine", (Method,), {name: value, "__doc__": "Wrong."}))
    with pytest.raises(InputError, match=f"test_wrong_{name}.*{line}" if name != "survey_reducers" else line):
        unskew.run(made(), clients=3, rounds=1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("what", ["personal", "frozen"])
def test_patterns_that_match_nothing_are_refused(what):
    body = {what: ("hed.*",), "output": "personal" if what == "personal" else "global", "__doc__": "Wrong."}
    made = methods.register(f"test_pattern_{what}")(type("Mine", (Method,), body))
    with pytest.raises(InputError, match=rf"test_pattern_{what}.{what}: no parameter matches 'hed.\*'; the model has"):
        unskew.run(made(), clients=3, rounds=1)


def test_a_wrapper_around_a_wrong_declaration_is_refused_too():
    methods.register("test_wrong_inside")(type("Mine", (Method,), {"output": "personl", "__doc__": "Wrong."}))
    with pytest.raises(InputError, match="output must be one of"):
        unskew.run("flfa(test_wrong_inside)", clients=3, rounds=1)
