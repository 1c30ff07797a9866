"""Parts that methods keep apart: somebody trains them, nothing forgets them, wrappers hand them on."""

import pytest
import torch

from small_runs import make, play
from unskew import Method, Wrapper, tree
from unskew.base.errors import InputError, SlotError

pytestmark = pytest.mark.usefixtures("own_names")

HEAD = {"personal": ("head.*",)}


def count(self, c, params):
    return {"count": {"n": torch.ones(1)}}


# -------------------------------------------------------------------------------------------- parts of the global model


@pytest.mark.parametrize("around", ["{}", "ditto({})", "finetuned({})"])
def test_a_personal_part_of_a_global_model_is_refused(around):
    name = make("methods", Method, **HEAD)
    with pytest.raises(InputError, match=f'{name}: nobody trains .*declare output = "personal", or "both" if'):
        play(method=around.format(name))


def test_whose_server_makes_that_part_may_report_it():
    def publish(self, s, server):
        return Method.publish(self, s, server)

    play(method=make("methods", Method, **HEAD, publish=publish), rounds=1)
    play(method=make("methods", Method, **HEAD, frozen=("head.*",)), rounds=1)
    play(method=make("methods", Method, **HEAD, output="personal"), rounds=1)


# -------------------------------------------------------------------------------------------------- states and messages


@pytest.mark.parametrize("executor", ["serial", "stacked"])
def test_a_keep_that_forgets_the_personal_part_is_a_fault(executor):
    name = make("methods", Method, **HEAD, output="personal", keep=count)
    with pytest.raises(SlotError, match=rf"{name}.keep must return the client's own part .*forgets head\.bias"):
        play(method=name, executor=executor)


def test_who_reads_its_own_part_elsewhere_may_keep_it_there():
    def keep(self, c, params):
        return {"mine": tree.select(params, c.names.match(self.personal))}

    def start(self, c):
        return {**c.received["model"], **c.state.get("mine", {})}

    play(method=make("methods", Method, **HEAD, output="personal", keep=keep, start=start, personalise=start))


def empty(self, c, params):
    return {}


def hands_on(self, c, params):
    return {**self.inner.keep(c, params), **count(self, c, params)}


@pytest.mark.parametrize(("slot", "body"), [("keep", empty), ("keep", count)])
@pytest.mark.parametrize("executor", ["serial", "stacked"])
def test_a_wrapper_hands_on_what_the_method_inside_keeps(slot, body, executor):
    name = make("methods", Wrapper, **{slot: body})
    with pytest.raises(SlotError, match=rf"{name}.keep leaves out what scaffold.keep gives \('control'\); hand on"):
        play(method=f"{name}(scaffold)", executor=executor)
    name = make("methods", Wrapper, keep=hands_on)
    play(method=f"{name}(scaffold)", executor=executor)


def drop(slot):
    return lambda self, *given: {k: v for k, v in getattr(self.inner, slot)(*given).items() if k != "control"}


DROPS = {
    "init": lambda self, s: drop("init")(self, s),
    "download": lambda self, s, server, client: drop("download")(self, s, server, client),
    "upload": lambda self, c, params: drop("upload")(self, c, params),
}


@pytest.mark.parametrize("slot", DROPS)
def test_a_wrapper_hands_on_what_the_method_inside_sends(slot):
    name = make("methods", Wrapper, **{slot: DROPS[slot]})
    with pytest.raises(SlotError, match=rf"{name}.{slot} leaves out what scaffold.{slot} gives \('control'\)"):
        play(method=f"{name}(scaffold)")
