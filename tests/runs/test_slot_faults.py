"""Faults in slots: one line names the slot, the round and what is wrong, on every executor."""

import sys

import pytest
import torch

import unskew
from plugin_files import write_part
from small_runs import EXECUTORS, SKEWED, make, play, register
from unskew import Method, registries
from unskew.base.errors import InputError, SlotError
from unskew.core import reducers

pytestmark = pytest.mark.usefixtures("own_names")

FOUR = {"data": "digits", "model": "mlp", "clients": 4, "split": "iid", "rounds": 2, "epochs": 1, "lr": 0.1}


class NoResult(reducers.mean):
    """Gives nothing."""

    def result(self):
        return {}


def survey(self, c):
    return {"a": {"x": torch.ones(1)}}


def add_unknown(self, s, server, client):
    return {"model": {"zzz": torch.zeros(10)}}


def add_part(self, s, server, client):
    return {"model": {"head.bias": torch.zeros(10)}}


def criterion_through_data(self, c, out, batch):
    out.features.data.mul_(0)
    return batch.cross_entropy(out.logits)


def criterion_in_place(self, c, out, batch):
    out.logits.mul_(2)
    return batch.cross_entropy(out.logits)


def weight_from_list(self, c, params):
    self._seen.append(1)
    return c.num_samples * len(self._seen)


def weight_from_class(self, c, params):
    type(self)._n += 1
    return c.num_samples


def weight_with_threads(self, c, params):
    torch.set_num_threads(2)
    return c.num_samples


def put(client):
    def update(self, s, server, merged):
        s.per_client.put(client, {"a": {"b": torch.ones(1)}})
        return server

    return update


def put_in_download(self, s, server, client):
    s.per_client.put(0, {})
    return server


def send_more(self, c, params):
    return {**Method.upload(self, c, params), "extra": {"a": torch.ones(1)}}


def weighing(value):
    return lambda self, s, replies: value


def weight_of(value):
    return lambda self, c, params: torch.tensor(value, dtype=torch.float64)


USABLE = "0 or from 1e-30 to 1e30, got"
FAULTS = {
    "empty result": ({"reducers": {"delta": NoResult}}, r"NoResult.result returns a tree without body.1.bias"),
    "unknown in brief": (
        {"survey_reducers": {"a": reducers.total}, "survey": survey, "brief": add_unknown},
        "brief returns 'model' with the unknown name 'zzz'",
    ),
    "part in brief": (
        {"survey_reducers": {"a": reducers.total}, "survey": survey, "brief": add_part},
        "brief returns 'model' without body.1.bias",
    ),
    "output by data": ({"criterion": criterion_through_data}, "criterion changes out.features in place"),
    "output": ({"criterion": criterion_in_place}, "criterion changes out.logits in place"),
    "list of the class": ({"weight": weight_from_list, "_seen": []}, r"weight changes Faulty._seen \(of the class\)"),
    "number of the class": ({"weight": weight_from_class, "_n": 0}, r"weight changes Faulty._n \(of the class\)"),
    "threads": ({"weight": weight_with_threads}, r"weight sets the number of torch's threads \(2\)"),
    "no client": ({"update": put("x")}, "clients by their numbers, from 0 to 3, got 'x', in .*update"),
    "client 99": ({"update": put(99)}, "clients by their numbers, from 0 to 3, got 99, in .*update"),
    "client True": ({"update": put(True)}, "clients by their numbers, from 0 to 3, got True, in .*update"),
    "put while reading": (
        {"download": put_in_download},
        "put is for init, digest and update; download, brief and publish only read",
    ),
    "unread group": ({"upload": send_more}, r"upload sends \['extra'\] but has no reducer for it"),
    "no weights": ({"weigh": weighing(None)}, f"weigh must return a list of 4 weights, .* {USABLE} None"),
    "too few weights": ({"weigh": weighing([1.0])}, f"weigh must return a list of 4 weights, .* {USABLE} 1"),
    "huge weights": ({"weigh": weighing([1e308] * 4)}, f"weigh must return a list of 4 weights, .* {USABLE} 4"),
    "huge weight": ({"weight": weight_of(1e308)}, rf"weight must return a number that is {USABLE} 1e\+308"),
    "tiny weight": ({"weight": weight_of(1e-320)}, f"weight must return a number that is {USABLE} 9.9"),
}


@pytest.mark.parametrize("executor", ["serial", "pool", "stacked"])
@pytest.mark.parametrize("fault", FAULTS)
def test_one_line_names_the_slot(fault, executor):
    slots, said = FAULTS[fault]
    kind = registries.methods.register("faulty")(type("Faulty", (Method,), {"__module__": "mine", **slots}))
    with pytest.raises(SlotError, match=said) as error:
        unskew.run(kind(), executor=executor, **FOUR)
    assert "\n" not in str(error.value) and "in round 1" in str(error.value)
    assert torch.get_num_threads() == 1


# ----------------------------------------------------------------------------------------------------------- exceptions


def refuse(self, *given):
    raise InputError("not so")


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("slot", ["upload", "criterion", "update", "weigh"])
def test_an_input_error_in_a_round_is_the_slot_s(slot, executor):
    kind = register("methods", "mine", Method, **{slot: refuse})
    with pytest.raises(SlotError, match=rf"InputError: not so, in mine\.{slot} \(.*line"):
        play(method=kind(), executor=executor)


def test_an_input_error_in_init_refuses_the_run():
    with pytest.raises(InputError, match="not so"):
        play(method=register("methods", "mine", Method, init=refuse)())


def test_an_exit_in_own_terms_is_a_line():
    with pytest.raises(InputError, match="own_terms fails: SystemExit"):
        play(method=make("methods", Method, own_terms=lambda self: sys.exit(0)))


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["remodel = lambda self, model, num_classes: 1 / 0"], "ZeroDivisionError: division by zero .*{name}.py"),
        (["@property", "def output(self): raise ValueError('boom')"], "ValueError: boom, in {name}.output"),
        (["def code_used(self): raise ValueError('boom')"], "ValueError: boom, in {name}.code_used"),
    ],
)
def test_what_fails_before_the_rounds_is_one_line_too(lines, says, name):
    with pytest.raises(SlotError, match="your own code failed: " + says.format(name=name)):
        unskew.run(name, plugin=write_part(name, "methods", "Method", "\n".join(lines)), **SKEWED)


def test_code_used_that_gives_no_tuple_is_refused(name):
    plugin = write_part(name, "methods", "Method", "def code_used(self): return 3")
    with pytest.raises(InputError, match=rf"{name}.code_used must return a tuple of modules, classes and functions"):
        unskew.run(name, plugin=plugin, **SKEWED)
