"""What slots return and change, seen from Python: what is refused, what is accepted, and what is kept of the run."""

from collections import OrderedDict
from functools import cached_property

import pytest
import torch

import unskew
from awkward import play
from unskew import Method, Observer, Outcome, SlotError, reducers, sgd, tree
from unskew.base.errors import ClientError
from unskew.core.checks.returned import CHECKS
from unskew.core.method import methods
from unskew.core.slots import NAMES


def fault(name, **slots):
    """Registers a method with these slots."""
    body = {"__doc__": "A fault.", "__module__": __name__, **slots}
    if name in methods:
        del methods._classes[name]
    methods.register(name)(type(name, (Method,), body))
    return name


def quick(method, **options):
    return unskew.run(method, data="digits", model="mlp", clients=4, rounds=options.pop("rounds", 2), **options)


def test_every_slot_is_checked_somewhere():
    elsewhere = {"remodel", "gradient", "loss", "criterion", "own_terms", "correction", "weigh"}
    assert CHECKS.keys() | elsewhere == set(NAMES)


# -------------------------------------------------------------------------------------------- the exception


@pytest.mark.parametrize("executor", ["serial", "pool", "stacked"])
def test_a_clients_error_says_everything(executor, tmp_path):
    def upload(self, c, params):
        if c.round == 2:
            raise ValueError("no luck")
        return Method.upload(self, c, params)

    with pytest.raises(
        ClientError, match=r"client \d failed in round 2: ValueError: no luck, in test_ask_raises"
    ) as caught:
        quick(fault("test_ask_raises", upload=upload), executor=executor, out=tmp_path / "run")
    error = caught.value
    assert (error.method, error.slot, error.round) == ("test_ask_raises", "upload", 2) and error.client in range(4)
    assert "Traceback" in error.details and "no luck" in error.details and error.folder == str(tmp_path / "run")
    assert executor == "pool" or isinstance(error.__cause__, ValueError)
    assert [*(tmp_path / "run/checkpoint").glob("round-000001*")]  # round 1 is kept


def test_a_servers_error_says_everything():
    def update(self, s, server, merged):
        return merged["nosuch"]

    with pytest.raises(
        SlotError, match=r"the server failed in round 1: KeyError: 'nosuch', in test_ask_update"
    ) as caught:
        quick(fault("test_ask_update", update=update))
    error = caught.value
    assert (error.method, error.slot, error.round, error.client) == ("test_ask_update", "update", 1, None)
    assert isinstance(error.__cause__, KeyError)


def test_a_watch_function_that_fails_is_named():
    def watch(row):
        raise ValueError("no luck")

    with pytest.raises(
        SlotError, match=r"an observer failed .*ValueError: no luck, in observer Callback.finished .*line"
    ):
        quick("fedavg", watch=watch)


def test_what_was_changed_in_place_is_not_saved(tmp_path):
    def update(self, s, server, merged):
        if s.round == 2:
            for value in server["model"].values():
                value.zero_()
            raise ValueError("after the change")
        return Method.update(self, s, server, merged)

    with pytest.raises(SlotError, match="after the change") as caught:
        quick(fault("test_ask_spoils", update=update), out=tmp_path / "run", rounds=3)
    assert caught.value.spoilt
    fault("test_ask_spoils")  # mended
    resumed, whole = unskew.resume(tmp_path / "run"), quick("test_ask_spoils", rounds=3)
    assert all(torch.equal(resumed.server["model"][name], value) for name, value in whole.server["model"].items())


# ---------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("executor", ["serial", "stacked"])
def test_an_observer_only_looks(executor):
    class Spoils(Observer):
        def trained(self, c, params):
            for value in params.values():
                value.mul_(0)

    with pytest.raises(ClientError, match=r"observer Spoils.trained changes params\[.*\] in place") as caught:
        quick("fedavg", watch=Spoils(), executor=executor)
    assert caught.value.spoilt


def test_a_cached_property_is_no_change_and_an_observer_may_remember():
    class Remembers(Observer):
        seen = 0

        def trained(self, c, params):
            self.seen += 1

    def half(self):
        return 0.5

    def weight(self, c, params):
        return self._half * c.num_samples

    cached = cached_property(half)
    cached.__set_name__(None, "_half")
    quick(fault("test_ask_cached", _half=cached, weight=weight), watch=(looks := Remembers()))
    assert looks.seen == 8


def test_forgotten_statistics_are_refused():
    def upload(self, c, params):
        return {"delta": Method.upload(self, c, params)["delta"]}

    with pytest.raises(SlotError, match=r"test_ask_buffers.upload must return 'buffers' beside 'delta'"):
        play(fault("test_ask_buffers", upload=upload))


def test_an_outcome_is_checked_too():
    def train(self, c, params):
        return Outcome(sgd(c, params, self.gradient), {"own": torch.zeros(3)})

    with pytest.raises(
        SlotError, match=r"test_ask_outcome.train must return groups .* got a tree with the tensor 'own'"
    ):
        play(fault("test_ask_outcome", train=train))


def test_weigh_only_reads():
    def weigh(self, s, replies):
        for reply in replies:
            reply.groups["delta"]["head.weight"].zero_()
        return [1.0] * len(replies)

    for executor in ("serial", "stacked"):
        with pytest.raises(SlotError, match=r"test_ask_weigh.weigh changes the reply of client \d"):
            play(fault("test_ask_weigh", weigh=weigh), execution={"executor": executor})


def test_a_group_that_nobody_sends_is_said(caplog):
    play(fault("test_ask_unsent", reducers={**Method.reducers, "extra": reducers.mean}))
    assert (
        "test_ask_unsent has a reducer for 'extra', which no client sent in round 1; they sent buffers, delta"
        in caplog.text
    )


# --------------------------------------------------------------------------------------- what is accepted


def test_dicts_of_any_kind_and_tensors_with_a_graph_are_accepted():
    def upload(self, c, params):
        reply = Method.upload(self, c, params)
        delta = OrderedDict((name, torch.nn.Parameter(value)) for name, value in reply["delta"].items())
        return OrderedDict(reply, delta=delta)

    def keep(self, c, params):
        return {"own": {name: value.clone().requires_grad_() * 2 for name, value in params.items()}}

    def weight(self, c, params):
        return 3

    ours, plain = (
        play(fault("test_ask_dicts", upload=upload, keep=keep, weight=weight)),
        play(fault("test_ask_weight", weight=weight)),
    )
    assert all(torch.equal(ours.server["model"][name], value) for name, value in plain.server["model"].items())


def test_the_loop_may_train_something_else():
    def train(self, c, params):
        return {"images": torch.zeros(3)}

    def upload(self, c, params):
        return {"data": params}

    def update(self, s, server, merged):
        assert merged["data"]["images"].numel()
        return {**server, "model": tree.scale(server["model"], 0.5)}

    play(fault("test_ask_else", train=train, upload=upload, update=update, reducers={"data": reducers.concat}))
