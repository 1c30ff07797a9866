"""Torch's settings that slots, plugins and programs leave set do not reach runs, and runs give them back."""

import pytest
import torch
from torch import nn

import unskew
from small_runs import EXECUTORS, FEW, digits_net, equal, play, register
from unskew import Method

pytestmark = pytest.mark.usefixtures("own_names")


def leave_autocast(*given):
    torch.autocast("cpu", dtype=torch.bfloat16).__enter__()


def leave_double(*given):
    torch.set_default_dtype(torch.float64)


def leave_without_gradients(*given):
    torch.set_grad_enabled(False)


def leave_deterministic(*given):
    torch.use_deterministic_algorithms(True, warn_only=True)


LEFT = [leave_autocast, leave_double, leave_without_gradients, leave_deterministic]


@pytest.mark.parametrize("leave", LEFT)
@pytest.mark.parametrize("slot", ["weight", "update"])
def test_what_a_slot_leaves_set_in_torch_is_put_back(slot, leave):
    def own(self, *given):
        found = getattr(Method, slot)(self, *given)
        leave()
        return found

    kind, nesting = register("methods", "mine", Method, **{slot: own}), torch.autocast_increment_nesting()
    plain = play()
    for executor in EXECUTORS[:2]:
        assert equal(plain, play(method=kind(), executor=executor))
    assert not torch.is_autocast_enabled("cpu") and not torch.are_deterministic_algorithms_enabled()
    assert torch.is_grad_enabled() and torch.get_default_dtype() is torch.float32
    assert torch.autocast_decrement_nesting() == nesting - 1


@pytest.mark.parametrize("leave", LEFT)
def test_what_watch_leaves_set_in_torch_is_put_back(leave):
    plain, watched = play(), play(watch=leave)
    assert equal(plain, watched) and plain.rounds[-1]["loss"] == watched.rounds[-1]["loss"]
    assert not torch.is_autocast_enabled("cpu") and not torch.are_deterministic_algorithms_enabled()


def test_defaults_that_a_plugin_sets_do_not_reach_runs(tmp_path):
    expected = unskew.run(model="mlp", **FEW).summary["loss"]
    for name, line in {"dtype": "torch.set_default_dtype(torch.float64)", "place": "torch.set_default_device('meta')",
                       "graph": "torch.set_grad_enabled(False)"}.items():  # fmt: skip
        plugin = tmp_path / f"sets_{name}.py"
        plugin.write_text(f"import torch\n{line}\n")
        assert unskew.run(model="mlp", plugin=plugin, **FEW).summary["loss"] == expected
        assert torch.empty(1).dtype is torch.float32 and torch.empty(1).device.type == "cpu"


@pytest.mark.parametrize("set_device", [torch.set_default_device, lambda name: torch.device(name).__enter__()])
def test_a_default_device_that_the_program_has_set(tmp_path, set_device):
    expected = unskew.run(model="mlp", **FEW).summary["loss"]
    net = digits_net(nn.ReLU())
    context = set_device("meta")
    try:
        assert unskew.run(model="mlp", **FEW).summary["loss"] == expected
        unskew.compare(["fedavg"], seeds=1, out=tmp_path / "all", model=net, head="3", **FEW)
        assert torch.empty(1).device.type == "meta"  # it is the program's again
    finally:
        torch.set_default_device(None) if context is None else torch.device("meta").__exit__(None, None, None)
