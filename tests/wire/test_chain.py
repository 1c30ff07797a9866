"""The wire of a run: order, what is touched, what is refused, many clients decoded at once."""

from functools import partial

import pytest
import torch

from awkward import play
from unskew.base.errors import InputError, SlotError
from unskew.core import reducers
from unskew.core.jobs import Stack
from unskew.core.method import Method, methods
from unskew.runs.config import from_table, read_processors
from unskew.wire.base import Processor, mark, processors, unmark
from unskew.wire.chain import Chain, build_chain
from wire.drawing import Drawing


class Noted(Processor):
    """Says when it is called."""

    def encode(self, c, groups, memory, stream):
        return {name: {**own, f"{self.name}": torch.zeros(1)} for name, own in groups.items()}, {}

    def decode(self, groups):
        assert all(list(own)[-1] == self.name for own in groups.values())
        return {name: dict(list(own.items())[:-1]) for name, own in groups.items()}


class First(Noted):
    name = "first"


class Second(Noted):
    name = "second"


def test_decoding_goes_the_other_way():
    chain = Chain(((First(), ("delta",)), (Second(), ("delta", "absent"))))
    groups = {"delta": {"w": torch.ones(1)}, "buffers": {"b": torch.ones(1)}}
    sent, kept = chain.encode(Drawing(), groups, {})
    assert list(sent["delta"]) == ["w", "first", "second"] and sent["buffers"] == groups["buffers"] and kept == {}
    assert chain.decode(sent) == groups


@pytest.mark.parametrize("shape", [(), (3,), (8, 1, 3, 3)])
def test_names_hold_shapes(shape):
    assert unmark(mark("body.0.weight [2] values", shape, "codes")) == ("body.0.weight [2] values", shape, "codes")
    assert unmark("body.0.weight") == ("body.0.weight", (), "")


TOUCHED = {
    "fedavg": ("delta",),
    "scaffold": ("delta", "control"),
    "fedblade": ("delta",),
    "fedas": ("delta",),
    "fedper": ("delta",),
    "flfa(scaffold, select=lowest)": ("delta", "control"),
    "fedsol": ("delta",),
    "finetuned(fedavg)": ("delta",),
}


@pytest.mark.parametrize("spec", TOUCHED)
def test_what_is_touched_by_default(spec):
    chain = build_chain(read_processors("clip"), methods.build(spec))
    assert chain.links[0][1] == TOUCHED[spec]


def test_a_user_s_reducer_says_whether_it_averages():
    class median(reducers.Reducer):
        averages = True

    class own(reducers.Reducer):
        """Does not say."""

    class Own(Method):
        reducers = {"delta": partial(median, 3), "counts": reducers.total, "mine": own, "again": ("mine", own)}

    assert build_chain(read_processors("quantise"), Own()).links[0][1] == ("delta",)


REFUSED = {
    ("fedavg", "quantise(groups=[control])"): r"'control', but fedavg sends delta, buffers; name some of delta",
    ("scaffold", "clip(groups=[delta, nosuch])"): r"'nosuch', but scaffold sends delta, buffers, control",
    ("fedas", "quantise(groups=[weight])"): r"'weight', but fedas sends delta, buffers; name some of delta",
    ("fedavg", "topk(groups=[buffers])"): r"'buffers', which fedavg's server does not average",
    ("fedblade", "topk(groups=[prototypes])"): r"'prototypes', which fedblade's server does not average",
    ("fedaf", "quantise"): r"fedaf sends data, logits, soft, none of it averaged; leave quantise out",
    ("feddm", "clip(groups=[data])"): r"feddm sends data, none of it averaged; leave clip out",
    ("fedavg", "quantise,clip"): r"clip follows quantise on delta, and nothing may follow it there; name clip before",
    ("fedavg", "topk,topk(share=0.5)"): r"topk is named twice for delta; name it once",
}


@pytest.mark.parametrize(("spec", "wire"), REFUSED)
def test_refused(spec, wire):
    with pytest.raises(InputError, match=REFUSED[spec, wire]):
        build_chain(read_processors(wire), methods.build(spec))


def test_other_groups_may_have_another_end():
    wire = read_processors("quantise(groups=[delta]),topk(groups=[control]),quantise(groups=[control])")
    assert len(build_chain(wire, methods.build("scaffold")).links) == 3
    assert build_chain((), methods.build("fedaf")) is None


@pytest.mark.parametrize("wire", ["quantise(bits=5)", "quantise", "topk(share=0.3),quantise(bits=4)", "clip(norm=0.5)"])
def test_a_stack_is_decoded_like_each_of_its_clients(wire):
    chain = build_chain(read_processors(wire), methods.build("fedavg"))
    each = [
        chain.encode(Drawing(k), {"delta": {"w": torch.randn(4, 3), "b": torch.randn(())}, "buffers": {}}, {})[0]
        for k in range(3)
    ]
    stacked = {group: {name: torch.stack([one[group][name] for one in each]) for name in own}
               for group, own in each[0].items()}  # fmt: skip
    stack, finite = Stack(stacked, 3, True).decode(chain)
    assert finite == [True] * 3 and stack.sound
    for k, one in enumerate(each):
        for name, value in chain.decode(one)["delta"].items():
            assert torch.equal(stack.take(k)["delta"][name], value)


def test_text_tables_and_objects_build_the_same_run():
    text = from_table({"wire": "clip(norm=2.0),quantise(bits=4)"})
    listed = from_table({"wire": ["clip(norm=2.0)", {"name": "quantise", "bits": 4}]})
    objects = from_table({"wire": text.wire})
    assert text == listed == objects and str(text.wire[1]) == "quantise(bits=4)"
    assert from_table({"wire": text.wire[0]}).wire == text.wire[:1]


def test_the_hash_knows_the_wire_only_where_there_is_one():
    plain, empty, quantised = from_table({}), from_table({"wire": ""}), from_table({"wire": "quantise"})
    assert plain.hash == empty.hash != quantised.hash
    assert quantised.hash != from_table({"wire": "quantise(bits=7)"}).hash


def each(groups, do):
    return {group: {name: do(value) for name, value in own.items()} for group, own in groups.items()}


def fail(groups):
    raise RuntimeError("no\nway")


def keep(groups):
    return groups


FAULTY = {
    "loses": (keep, lambda g: {k: dict(list(own.items())[1:]) for k, own in g.items()}, "weight as .*, got nothing"),
    "squeezes": (keep, lambda g: each(g, lambda v: v.flatten()[:1]), r"as \[16, 2, 3, 3\] float32, got \[1\] float32"),
    "fails": (
        keep,
        fail,
        r"client \d failed in round 1: RuntimeError: no way, in wire processor test_faulty.decode \(.*line",
    ),
    "halves": (lambda g: each(g, torch.Tensor.half), keep, "got .* float16"),
}


@pytest.mark.parametrize("executor", ["serial", "pool", "stacked"])
@pytest.mark.parametrize("fault", FAULTY)
def test_a_processor_that_does_not_decode_what_it_encoded_is_refused(fault, executor):
    encode, decode, line = FAULTY[fault]

    @processors.register("test_faulty")
    class Faulty(Processor):
        """Faulty."""

        def encode(self, c, groups, memory, stream):
            return encode(groups), {}

        def decode(self, groups):
            return decode(groups)

    try:
        with pytest.raises(SlotError, match=line) as error:
            play("fedavg", wire="test_faulty", rounds=1, execution={"executor": executor, "workers": 1})
        assert "\n" not in str(error.value)
    finally:
        del processors._classes["test_faulty"]


def test_a_processor_without_encode_is_refused():
    @processors.register("test_idle")
    class Idle(Processor):
        """Does nothing."""

    try:
        with pytest.raises(InputError, match="does nothing; define encode"):
            play("fedavg", wire="test_idle", rounds=1)
    finally:
        del processors._classes["test_idle"]
