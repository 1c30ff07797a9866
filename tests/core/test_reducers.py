"""Reducers: sums and means without overflow, equal shapes and types, and replies that stay as they are."""

import pytest
import torch

import unskew
from plugin_files import write
from small_runs import EXECUTORS, SKEWED, define, make, play, play_one_step
from unskew import Method, reducers
from unskew.base import tree
from unskew.base.errors import InputError, SlotError
from unskew.core.jobs import Reply

pytestmark = pytest.mark.usefixtures("own_names")


# ------------------------------------------------------------------------------------------------------- sums and means

VALUES = {
    "bool": [torch.tensor([True, False]), torch.tensor([True, True]), torch.tensor([True, False])],
    "uint8": [torch.tensor([200, 1], dtype=torch.uint8)] * 3,
    "int32": [torch.tensor([2**31 - 1, 1], dtype=torch.int32)] * 3,
    "float16": [torch.tensor([60000.0, 1.0], dtype=torch.float16)] * 3,
    "bfloat16": [torch.tensor([1.0, 3e37], dtype=torch.bfloat16)] * 3,
}


def reduce_both_ways(kind, values, weights=(1.0, 2.0, 1.0)):
    """What a reducer makes of these tensors one by one and stacked."""
    s = type("S", (), {"num_clients": 6})()
    replies = [Reply(client=i, weight=weight) for i, weight in enumerate(weights)]
    one, many = kind(s), kind(s)
    for value, reply in zip(values, replies, strict=True):
        one.add({"x": value}, reply)
    many.add_stack({"x": torch.stack(values)}, replies)
    return one.result()["x"], many.result()["x"]


@pytest.mark.parametrize("name", VALUES)
def test_small_types_are_summed_without_overflow(name):
    values = VALUES[name]
    exact = torch.stack(values).double()
    one, many = reduce_both_ways(reducers.total, values)
    assert one.dtype is many.dtype and torch.equal(one, many)
    if not values[0].is_floating_point():
        assert one.dtype is torch.int64 and one.tolist() == exact.sum(0).tolist()
    weights = torch.tensor([1.0, 2.0, 1.0], dtype=torch.float64)
    for kind, wanted in ((reducers.mean, weights @ exact / 4), (reducers.mean_over_all_clients, exact.sum(0) / 6)):
        one, many = reduce_both_ways(kind, values)
        assert one.dtype is many.dtype is (values[0].dtype if values[0].is_floating_point() else torch.float32)
        torch.testing.assert_close(one.double(), wanted, rtol=1e-2, atol=0)
        torch.testing.assert_close(many, one, rtol=1e-6 if one.dtype is torch.float32 else 1e-2, atol=0)


def test_sums_of_single_precision_have_the_bits_they_had():
    values = [torch.rand(5, 3) for _ in range(3)]
    one, _ = reduce_both_ways(reducers.mean, values)
    assert torch.equal(one, (values[0] * 1.0).add_(values[1], alpha=2.0).add_(values[2], alpha=1.0) / 4.0)
    assert torch.equal(reduce_both_ways(reducers.total, values)[0], values[0] + values[1] + values[2])


@pytest.mark.parametrize("executor", EXECUTORS)
def test_holders_of_a_class_are_counted(executor):
    def survey(self, c):
        return {"holders": {"n": c.counts > 0}, "share": {"n": c.counts > 0}}

    def digest(self, s, server, surveyed):
        s.record["holders"], s.record["share"] = surveyed["holders"]["n"].tolist(), surveyed["share"]["n"].tolist()
        return server

    mine = define(survey_reducers={"holders": reducers.total, "share": reducers.mean}, survey=survey, digest=digest)
    said = play_one_step(mine, executor=executor).rounds[1]["method"]
    assert said == {"holders": [3] * 10, "share": [1.0] * 10}


# --------------------------------------------------------------------------------------------------------- equal shapes


def send_unlike(odd, usual, which):
    def upload(self, c, params):
        return {**Method.upload(self, c, params), "z": {"a": odd if c.client == which else usual}}

    return upload


RAGGED = {
    "shape": (torch.ones(1), torch.ones(3), reducers.mean, r"must have shape \[\d\], .*, got \[\d\]"),
    "no dimensions": (torch.tensor(1.0), torch.ones(3), reducers.total, r"must have shape .*, got \["),
    "type": (torch.ones(3).double(), torch.ones(3), reducers.mean_over_all_clients, r"must be float\d\d, .*, got"),
    "integers": (torch.ones(3).long(), torch.ones(3), reducers.mean, "must be .*, got "),
    "buffers": (torch.ones(1).long(), torch.ones(3).long(), reducers.buffers, r"must have shape \[\d\]"),
    "joined": (torch.ones(2, 1), torch.ones(1, 3), reducers.concat, r"must have shape .* but for the first dimension"),
    "joined types": (torch.ones(2).double(), torch.ones(1), reducers.concat, "must be float"),
    "joined without dimensions": (torch.tensor(1.0), torch.tensor(1.0), reducers.concat, "must have a first dimension"),
}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("kind", RAGGED)
def test_nothing_is_broadcast_or_converted(kind, which, executor):
    odd, usual, how, said = RAGGED[kind]
    mine = define(upload=send_unlike(odd, usual, which), reducers={**Method.reducers, "z": how}, stackable=False)
    line = rf"client . failed in round 1: mine.upload sends the group 'z' in which 'a' {said}"
    with pytest.raises(SlotError, match=line):
        play_one_step(mine, executor=executor, rounds=1)


def test_a_survey_is_looked_at_too():
    mine = define(
        survey=lambda self, c: {"n": {"a": torch.ones(1 + c.client)}}, survey_reducers={"n": reducers.total},
        stackable=False,
    )  # fmt: skip
    with pytest.raises(SlotError, match=r"client . failed in round 1: mine.survey sends the group 'n' in which 'a'"):
        play_one_step(mine)


def test_what_may_differ_may_differ():
    class Longest(reducers.mean):
        """Takes what it likes."""

        alike = None

        def add(self, value, reply):
            super().add({"a": value["a"].sum()}, reply)

    def upload(self, c, params):
        own = {"a": torch.ones(1 + c.client)}
        return {**Method.upload(self, c, params), "z": own, "y": own, "x": own}

    how = {"z": reducers.per_client, "y": reducers.concat, "x": Longest}
    mine = define(upload=upload, reducers={**Method.reducers, **how}, stackable=False)
    assert play_one_step(mine).rounds
    Longest.alike = "no"
    with pytest.raises(InputError, match=r"Longest.alike must be None, 0 .* or 1 .*, got 'no'"):
        play_one_step(mine)


def test_a_reducer_that_compares_from_the_third_dimension_on_is_refused():
    class Late(reducers.mean):
        alike = 3

    with pytest.raises(InputError, match=r"Late.alike must be None, 0 .* or 1 .*, got 3"):
        play(method=make("methods", Method, reducers={**Method.reducers, "delta": Late}))


# -------------------------------------------------------------------------------------------- what a reducer may change


class InPlace(reducers.Reducer):
    """A mean that adds into the first reply."""

    def __init__(self, s):
        self._sum, self._n = None, 0

    def add(self, value, reply):
        self._n += 1
        if self._sum is None:
            self._sum = value
        else:
            for name, own in value.items():
                self._add(self._sum[name], own)

    def _add(self, to, own):
        to.add_(own)

    def result(self):
        return {name: value / self._n for name, value in self._sum.items()}


class ThroughData(InPlace):
    """The same past torch's counter."""

    def _add(self, to, own):
        to.data.add_(own)


class Last(reducers.Reducer):
    """Changes all but the first at the end."""

    def __init__(self, s):
        self._every = []

    def add(self, value, reply):
        self._every.append(value)

    def result(self):
        for value in self._every[1:]:
            for own in value.values():
                own.mul_(2)
        return self._every[0]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("kind", [InPlace, ThroughData, Last])
@pytest.mark.parametrize("more", [{}, {"measure": "drift"}], ids=["alone", "measured"])
def test_a_reducer_that_adds_into_a_reply_is_found(kind, executor, more):
    mine = define(reducers={**Method.reducers, "delta": kind})
    with pytest.raises(SlotError, match=rf"in round 1: .*reducer {kind.__name__}.* changes .* in place"):
        play_one_step(mine, executor=executor, **more)


def test_a_reducer_that_sums_in_a_copy_is_not():
    class Clean(InPlace):
        """The same on a copy."""

        def add(self, value, reply):
            super().add(tree.copy(value), reply)

    assert play_one_step(define(reducers={**Method.reducers, "delta": Clean})).rounds


class OnClass(reducers.mean):
    """Counts on its class."""

    seen = {}
    made = 0

    def add(self, value, reply):
        self.seen[reply.client] = 1
        super().add(value, reply)


class OnClassWhenMade(reducers.mean):
    """Counts on its class."""

    made = 0

    def __init__(self, s):
        type(self).made += 1
        super().__init__(s)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("kind", [OnClass, OnClassWhenMade])
def test_state_on_the_class_of_a_reducer_is_found(kind, executor):
    kind.made, kind.seen = 0, {}
    mine = define(reducers={**Method.reducers, "delta": kind})
    line = rf"in round 1: reducer {kind.__name__}.* changes {kind.__name__}\.\w+ \(of the class\)"
    with pytest.raises(SlotError, match=line):
        play_one_step(mine, executor=executor)


def test_a_reducer_that_changes_the_initial_model_when_it_is_made_is_named(name):
    lines = ["class Sum(reducers.Reducer):", "    def __init__(self, s):",
             "        s.initial['model']['head.weight'].mul_(1.5)", f"@registries.methods.register('{name}')",
             "class Mine(Method):", "    '''x'''",
             "    reducers = {'delta': Sum, 'buffers': reducers.buffers}"]  # fmt: skip
    with pytest.raises(SlotError, match=r"Sum.__init__ .*s.initial"):
        unskew.run(name, plugin=write(name, "\n".join(lines) + "\n"), **SKEWED)
