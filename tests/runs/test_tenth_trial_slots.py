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
