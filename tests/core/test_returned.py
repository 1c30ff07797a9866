"""What slots return: tensors that can be used, trees without gaps, groups that somebody reads."""

import pytest
import torch

import unskew
from plugin_files import write_part
from small_runs import EVEN, EXECUTORS, define, make, play, play_one_step, register
from unskew import Method, reducers
from unskew.base.errors import SlotError

pytestmark = pytest.mark.usefixtures("own_names")


# ----------------------------------------------------------------------------------------------------- trees and groups


def nested():
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


def init_nested(self, s):
    return {**Method.init(self, s), "z": {"a": nested()}}


def upload_nested(self, c, params):
    return {**Method.upload(self, c, params), "z": {"a": nested()}}


def put_nested(self, s, server, merged):
    s.per_client.put(0, {"z": {"a": nested()}})
    return server


def part_of_gradient(self, c, params, batch):
    return dict(list(Method.gradient(self, c, params, batch).items())[:1])


def empty_delta(self, c, params):
    return {**Method.upload(self, c, params), "delta": {}}


def part_of_delta(self, c, params):
    reply = Method.upload(self, c, params)
    return {**reply, "delta": dict(list(reply["delta"].items())[:1])}


def download_nan(self, s, server, client):
    return {**Method.download(self, s, server, client), "z": {"a": torch.full((1,), float("nan"))}}


FAULTS = {
    "nested init": ({"init": init_nested}, "mine.init .*'z' .*got a nested tensor under 'a'; pad it"),
    "nested upload": ({"upload": upload_nested, "reducers": {**Method.reducers, "z": reducers.mean}},
                      "mine.upload .*'z' .*got a nested tensor under 'a'; pad it"),
    "nested put": ({"update": put_nested}, "in round 1: ValueError: s.per_client.put takes dense tensors"),
    "part of a gradient": ({"gradient": part_of_gradient}, r"mine\.\w+ returns a tree without .*, which would not"),
    "empty delta": ({"upload": empty_delta}, "mine.upload returns 'delta' without .*, which the server would leave"),
    "part of delta": ({"upload": part_of_delta}, "mine.upload returns 'delta' without .*, which the server would"),
    "NaN in a message": ({"download": download_nan},
                         r"for client .: mine.download sends NaN or infinite numbers \(group 'z'\)"),
}  # fmt: skip


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("fault", FAULTS)
def test_one_line_names_the_slot(fault, executor):
    slots, said = FAULTS[fault]
    with pytest.raises(SlotError, match=said) as error:
        play_one_step(define(**slots), executor=executor)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_parts_are_legal_where_somebody_reads_them(executor):
    def update(self, s, server, merged):
        return Method.update(self, s, server, merged)

    def train(self, c, params):
        return unskew.sgd(c, params, lambda c, p, batch: part_of_gradient(self, c, p, batch))

    assert play_one_step(define(upload=part_of_delta, update=update, train=train), executor=executor).rounds


def test_a_survey_that_sends_too_much_is_named():
    def survey(self, c):
        return {"a": {"x": torch.ones(1)}, "b": {"x": torch.ones(1)}}

    kind = register("methods", "mine", Method, survey=survey, survey_reducers={"a": reducers.total})
    with pytest.raises(SlotError, match=r"mine\.survey sends \['b'\] but has no reducer for it"):
        play(method=kind())


def test_a_brief_does_not_replace_the_message():
    name = make(
        "methods",
        Method,
        survey=lambda self, c: {"counts": {"n": c.counts.double()}},
        digest=lambda self, s, server, merged: server,
        brief=lambda self, s, server, client: {"model": {k: v * 0 for k, v in server["model"].items()}},
        survey_reducers={"counts": unskew.reducers.total},
    )
    with pytest.raises(SlotError, match="brief sends group 'model', which download has sent already"):
        play(method=name)


# --------------------------------------------------------------------------------------------------- weights and scores


def test_weights_that_nobody_can_read_are_a_line():
    weigh = make("methods", Method, weigh=lambda self, s, replies: [torch.ones((), device="meta")] * len(replies))
    with pytest.raises(SlotError, match="weigh must return a list of 3 weights"):
        play(method=weigh)


def test_a_weight_that_is_a_boolean_is_told_by_its_type():
    def weight(self, c, params):
        return torch.tensor(True)

    with pytest.raises(SlotError, match=r"a number or a tensor of one without dimensions, got .* shape \[\] \(bool\)"):
        play(method=make("methods", Method, weight=weight))


@pytest.mark.parametrize("dtype", ["int64", "bool", "complex64"])
def test_scores_of_another_type_are_told_by_it(dtype):
    def predict(self, c, params, x):
        return c.forward(params, x, "eval").logits.to(getattr(torch, dtype))

    with pytest.raises(SlotError, match=rf"a floating tensor of shape .*, got a tensor of shape .* \({dtype}\)"):
        play(method=make("methods", Method, predict=predict))


def test_a_complex_weight_is_none(name):
    text = "def weight(self, c, params):\n    return torch.tensor(1 + 2j)"
    with pytest.raises(SlotError, match="weight must return a number or a tensor of one without dimensions"):
        unskew.run(name, plugin=write_part(name, "methods", "Method", text), **EVEN)


def test_scores_may_come_with_their_graph(name):
    text = """
def predict(self, c, params, x):
    with torch.enable_grad():
        return torch.nn.Parameter(torch.ones(())) * super().predict(c, params, x)
"""
    found = unskew.run(name, plugin=write_part(name, "methods", "Method", text), **EVEN)
    plain = unskew.run("fedavg", **EVEN)
    assert found.rounds[-1]["accuracy"] == plain.rounds[-1]["accuracy"]
    assert found.rounds[-1]["loss"] == plain.rounds[-1]["loss"]


@pytest.mark.parametrize("slot", ["loss", "criterion", "weight", "predict"])
def test_what_has_no_data_names_the_slot(tmp_path, slot):
    given = {"loss": "c, params, batch", "criterion": "c, out, batch", "weight": "c, params", "predict": "c, params, x"}
    text = f"""import torch
from unskew import Method, registries

@registries.methods.register("on_meta_{slot}")
class M(Method):
    '''x'''
    def {slot}(self, {given[slot]}):
        return torch.as_tensor(super().{slot}({given[slot]})).to("meta")
"""
    (tmp_path / "meta.py").write_text(text)
    with pytest.raises(unskew.SlotError, match=rf"on_meta_{slot}.{slot} must return .* without data \(device meta\)"):
        unskew.run(f"on_meta_{slot}", plugin=str(tmp_path / "meta.py"), **EVEN)
