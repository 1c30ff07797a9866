"""What a trial found in slots: parts that nobody trains, states that are forgotten, notes that go nowhere."""

import pytest
import torch

from trials import play, register, said
from unskew import Measure, Method, Transform, Wrapper, reducers, tree
from unskew.base import once
from unskew.base.errors import InputError, SlotError
from unskew.registries import methods

HEAD = {"personal": ("head.*",)}


def method(name, **body):
    register("methods", name, Method, **body)
    return name


def wrapper(name, inner, **body):
    register("methods", name, Wrapper, **body)
    return f"{name}({inner})"


# ------------------------------------------------------------------------- a part of the global model nobody trains


@pytest.mark.parametrize("around", ["{}", "ditto({})", "finetuned({})"])
def test_a_personal_part_of_a_global_model_is_refused(around):
    name = method(f"tt_global_{len(around)}", **HEAD)
    with pytest.raises(InputError, match=f'{name}: nobody trains .*declare output = "personal", or "both" if'):
        play(method=around.format(name))


def test_whose_server_makes_that_part_may_report_it():
    def publish(self, s, server):
        return Method.publish(self, s, server)

    play(method=method("tt_makes", **HEAD, publish=publish), rounds=1)
    play(method=method("tt_fixed", **HEAD, frozen=("head.*",)), rounds=1)
    play(method=method("tt_own", **HEAD, output="personal"), rounds=1)


# --------------------------------------------------------------------------------------- what is forgotten or left out


def count(self, c, params):
    return {"count": {"n": torch.ones(1)}}


@pytest.mark.parametrize("executor", ["serial", "stacked"])
def test_a_keep_that_forgets_the_personal_part_is_a_fault(executor):
    name = method(f"tt_forgets_{executor}", **HEAD, output="personal", keep=count)
    with pytest.raises(SlotError, match=rf"{name}.keep must return the client's own part .*forgets head\.bias"):
        play(method=name, executor=executor)


def test_who_reads_its_own_part_elsewhere_may_keep_it_there():
    def keep(self, c, params):
        return {"mine": tree.select(params, c.names.match(self.personal))}

    def start(self, c):
        return {**c.received["model"], **c.state.get("mine", {})}

    play(method=method("tt_elsewhere", **HEAD, output="personal", keep=keep, start=start, personalise=start))


def empty(self, c, params):
    return {}


def hands_on(self, c, params):
    return {**self.inner.keep(c, params), **count(self, c, params)}


@pytest.mark.parametrize(("slot", "body"), [("keep", empty), ("keep", count)])
@pytest.mark.parametrize("executor", ["serial", "stacked"])
def test_a_wrapper_hands_on_what_the_method_inside_keeps(slot, body, executor):
    name = f"tt_drops_{body.__name__}_{executor}"
    with pytest.raises(SlotError, match=rf"{name}.keep leaves out what scaffold.keep gives \('control'\); hand on"):
        play(method=wrapper(name, "scaffold", keep=body), executor=executor)
    play(method=wrapper(f"{name}_not", "scaffold", keep=hands_on), executor=executor)


def drop(slot):
    return lambda self, *given: {k: v for k, v in getattr(self.inner, slot)(*given).items() if k != "control"}


DROPS = {
    "init": lambda self, s: drop("init")(self, s),
    "download": lambda self, s, server, client: drop("download")(self, s, server, client),
    "upload": lambda self, c, params: drop("upload")(self, c, params),
}


@pytest.mark.parametrize("slot", DROPS)
def test_a_wrapper_hands_on_what_the_method_inside_sends(slot):
    name = f"tt_drops_{slot}"
    with pytest.raises(SlotError, match=rf"{name}.{slot} leaves out what scaffold.{slot} gives \('control'\)"):
        play(method=wrapper(name, "scaffold", **{slot: DROPS[slot]}))


def test_a_wrapper_leaves_the_method_inside_as_it_is():
    def update(self, s, server, merged):
        object.__setattr__(self.inner, "server_lr", 0.001)
        return self.inner.update(s, server, merged)

    with pytest.raises(SlotError, match=r"tt_writes.update changes fedadam.server_lr in place"):
        play(method=wrapper("tt_writes", "fedadam", update=update))
