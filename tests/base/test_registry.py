"""Text, tables and options of components."""

import dataclasses

import pytest

import small_runs
import unskew
from plugin_files import write_part
from small_runs import EVEN, play
from unskew import Method
from unskew.base.errors import InputError
from unskew.base.registry import options, to_table
from unskew.base.text import parse, split_list
from unskew.core.method import methods
from unskew.data.partition.splits import splits
from unskew.methods.fedprox import FedProx
from unskew.models.base import architectures
from unskew.runs.config import from_table, override, read_assignment
from unskew.runs.sections import Local


def test_text_and_tables_mean_the_same():
    text = methods.build("fedprox(mu=0.3, terms=[prox(0.1), prox])")
    table = methods.build({"name": "fedprox", "mu": 0.3, "terms": [{"name": "prox", "mu": 0.1}, "prox"]})
    assert text == table == methods.build(text)
    assert str(text) == "fedprox(terms=[prox(mu=0.1), prox], mu=0.3)"


def test_nested_text_of_wrappers():
    assert parse("flfa(fedsol(prox=kl(tau=3), rho=2.0))") == {
        "name": "flfa",
        "args": [{"name": "fedsol", "prox": {"name": "kl", "tau": 3}, "rho": 2.0}],
    }
    assert parse("a(x=-1.5, y=true, z=word, w='a b', n=none, l=[1, 2])") == {
        "name": "a", "x": -1.5, "y": True, "z": {"name": "word"}, "w": "a b", "n": None, "l": [1, 2],
    }  # fmt: skip


def test_the_first_positional_argument_is_the_methods_own():
    assert methods.build("fedprox(0.7)").mu == 0.7
    assert splits.build("dirichlet:0.3").alpha == 0.3
    assert splits.build("shards:2").per_client == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fedprx", "unknown method 'fedprx'; did you mean fedprox"),
        ("zzz", "known: "),
        ("fedprox(nu=1)", "fedprox has no argument 'nu'; did you mean mu?"),
        ("fedprox(mu=-1)", "fedprox.mu: input should be greater than or equal to 0, got -1"),
        ("fedprox(mu=much)", "fedprox.mu: input should be a number"),
        ("fedprox(0.1, mu=0.2)", "given twice"),
        ("fedprox(mu=1, mu=2)", "cannot read"),
        ("fedprox(1, 2, 3)", "takes at most 2 arguments"),
        ("fedprox(", "cannot read"),
        ("fedprox(mu=__import__('os'))", "fedprox.mu: input should be a number"),
        ("fedprox(mu=1+1)", "cannot read"),
        ("fedavg(terms=[fedprox])", "unknown term 'fedprox'"),
    ],
)  # fmt: skip
def test_errors_are_one_line_and_name_the_nearest(text, message):
    with pytest.raises(InputError) as caught:
        methods.build(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_options_tell_type_default_bounds_meaning_and_source():
    mu = next(option for option in options(methods.get("fedprox")) if option.name == "mu")
    assert (mu.type, mu.default, mu.bounds) == ("float", "0.01", "≥ 0")
    assert mu.doc and mu.source


def test_outer_commas_only():
    assert split_list("fedavg, fedprox(mu=0.1, terms=[prox(1), prox]),scaffold,") == [
        "fedavg", "fedprox(mu=0.1, terms=[prox(1), prox])", "scaffold",
    ]  # fmt: skip


def test_overrides_by_path():
    table = override({"method": "fedprox(mu=0.3)"}, "method.mu", 0.1)
    assert from_table(table).method == methods.build("fedprox(mu=0.1)")
    nested = override({"method": "fedavg(terms=[prox(0.3)])"}, "method.terms", ["prox(0.2)"])
    assert from_table(nested).method == methods.build("fedavg(terms=[prox(mu=0.2)])")
    assert from_table(override({}, "local.lr", 0.7)).local.lr == 0.7
    assert from_table(override({}, "split.alpha", 2.0)).split == splits.build("dirichlet:2.0")
    with pytest.raises(InputError, match="not a table"):
        override({"rounds": 3}, "rounds.x", 1)


def test_assignments_are_typed():
    assert read_assignment("a.b=0.1") == ("a.b", 0.1)
    assert read_assignment("a=true") == ("a", True)
    assert read_assignment("a=word") == ("a", "word")
    assert read_assignment('a="x=y"') == ("a", "x=y")
    with pytest.raises(InputError, match="path=value"):
        read_assignment("a")


def test_the_hash_names_results_and_not_how_they_are_made():
    base = from_table({})
    assert base.hash == from_table({"execution": {"executor": "pool"}}).hash
    assert base.hash != from_table({"seed": 1}).hash != from_table({"method": "scaffold"}).hash


def test_to_table_is_complete():
    assert to_table(methods.build("scaffold")) == {
        "name": "scaffold", "terms": [], "server_lr": 1.0, "divisor": "momentum",
    }  # fmt: skip


def test_none_as_the_word_for_a_choice():
    model = architectures.build("convnet3(norm=none)")
    assert model.norm == "none"
    assert architectures.build(str(model)) == architectures.build(to_table(model)) == model


def test_a_word_with_a_colon_needs_no_quotes():
    assert parse("flfa(fedavg, select=fixed:body.8+head)") == parse('flfa(fedavg, select="fixed:body.8+head")')
    assert parse('python("mine.py:net", head=fc)')["args"] == ["mine.py:net"]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"mu": -1}, "fedprox(mu=-1)"),
        ({"mu": "a"}, "fedprox(mu='a')"),
        ({"mu": float("inf")}, "fedprox(mu=1e999)"),
        ({"mu": True}, "fedprox(mu=true)"),
        ({"mu": None}, "fedprox(mu=none)"),
        ({"nope": 1}, "fedprox(nope=1)"),
        ({"m": 1}, "fedprox(m=1)"),
        ({"terms": 3}, "fedprox(terms=3)"),
    ],
)
def test_an_object_is_refused_with_the_words_of_its_text(given, text):
    with pytest.raises(InputError) as made:
        FedProx(**given)
    assert "\n" not in str(made.value) and "pydantic" not in str(made.value)
    if "terms" not in given:
        with pytest.raises(InputError) as read:
            methods.build(text)
        assert str(made.value) == str(read.value)


def test_other_ways_to_make_an_object_refuse_alike():
    for make, line in (
        (lambda: FedProx(0.1), "fedprox takes its options by name (terms, mu), got 0.1"),
        (lambda: FedProx(mu=float("nan")), "fedprox.mu: input should be a finite number, got nan"),
        (lambda: FedProx(terms="prox"), "fedprox.terms: input should be a valid tuple, got 'prox'"),
        (lambda: dataclasses.replace(FedProx(), mu=-1), "fedprox.mu: input should be greater than or equal to 0"),
        (lambda: Local(lr=-1), "local.lr: input should be greater than 0, got -1"),
        (lambda: Local(shuffle="yes"), "local.shuffle: input should be true or false, got 'yes'"),
    ):
        with pytest.raises(InputError) as caught:
            make()
        assert line in str(caught.value)


# ------------------------------------------------------------------------------------------- options of a user's method


def test_one_component_where_a_list_is_expected():
    with pytest.raises(InputError, match=r"fedavg.terms: .*write it in brackets, terms=\[prox\]"):
        play(method="fedavg(terms=prox)")


@pytest.mark.parametrize("error", [KeyError, TypeError, RuntimeError])
def test_options_that_cannot_be_made_are_a_line(error, own_names):
    def fail(self):
        raise error("no good")

    with pytest.raises(InputError, match=rf"test_made_\d+: {error.__name__}: .*no good"):
        play(method=small_runs.make("methods", Method, __post_init__=fail))


def test_options_that_change_each_time_are_refused(name):
    text = """
mu: float = param(default=1.0, doc="a number")
other: float | None = param(default=None, doc="filled in")
def __post_init__(self):
    object.__setattr__(self, "mu", FACTOR * self.mu)
    if self.other is None:
        object.__setattr__(self, "other", 3.0)
"""
    plugin = write_part(name, "methods", "Method", text.replace("FACTOR", "2"))
    with pytest.raises(InputError, match=r"__post_init__ changes mu each time, to 2.0 and then to 4.0"):
        unskew.run(name, plugin=plugin, **EVEN)
    assert unskew.run(
        f"{name}b", plugin=write_part(f"{name}b", "methods", "Method", text.replace("FACTOR", "1")), **EVEN
    )


@pytest.mark.parametrize("decorator", ["@dataclass(frozen=True)", "@dataclass"])
def test_a_method_that_is_made_a_dataclass(tmp_path, decorator):
    text = f"""from dataclasses import dataclass
from unskew import Method, registries

@registries.methods.register("made_dataclass")
{decorator}
class M(Method):
    '''x'''
    mu: float = 1.0
"""
    (tmp_path / "made.py").write_text(text)
    with pytest.raises(unskew.InputError, match="leave @dataclass out"):
        unskew.run("made_dataclass", plugin=str(tmp_path / "made.py"), **EVEN)
