"""States come back to the last bit, whatever their order in memory and whatever their names."""

import json
import struct
from pathlib import Path

import pytest
import torch
from torch import nn

import unskew
from small_runs import EXECUTORS, ONE_STEP, define, play_one_step, resumed, same
from unskew import Method, Processor, registries
from unskew.base import storage, tree
from unskew.base.errors import InputError

pytestmark = pytest.mark.usefixtures("own_names")


# -------------------------------------------------------------------------------------------------- the order in memory


def turn(value):
    return value.T.contiguous().T if value.dim() == 2 else value


def turn_tree(values):
    return {name: turn(value) for name, value in values.items()}


def turned_init(self, s):
    return {**Method.init(self, s), "model": turn_tree(s.initial["model"])}


def turned_update(self, s, server, merged):
    found = Method.update(self, s, server, merged)
    return {**found, "model": turn_tree(found["model"]), "view": {"v": torch.arange(7.0)[1:]}}


def turned_keep(self, c, params):
    return {"personal": turn_tree(tree.select(params, c.names.match(self.personal)))}


def turned_train(self, c, params):
    return turn_tree(Method.train(self, c, params))


def turned_put(self, s, server, merged):
    s.per_client.put(0, {"a": turn_tree(merged["delta"])})
    found = Method.update(self, s, server, merged)
    kept = s.per_client.get(0)["a"]
    assert all(value.is_contiguous() for value in kept.values())
    return found


TURNED = {
    "init": {"init": turned_init},
    "update": {"update": turned_update},
    "keep": {"keep": turned_keep, "personal": ("head.*",), "output": "personal"},
    "train": {"train": turned_train, "personal": ("body.*",), "output": "personal"},
    "put": {"update": turned_put},
}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("slot", TURNED)
def test_a_resumed_run_has_the_same_bits_whatever_the_order_in_memory(slot, executor, tmp_path, caplog):
    mine, options = define(**TURNED[slot]), {"executor": executor, "rounds": 4, "local_test": "proportional"}
    options["model"] = "mlp(hidden=[33])"
    whole = play_one_step(mine, **options)
    again = resumed(mine, tmp_path / "run", **options)
    assert same(whole.server, again.server)
    assert [row.get("loss") for row in whole.rounds] == [row.get("loss") for row in again.rounds]
    assert all(value.is_contiguous() for own in again.server.values() for value in own.values())


class Turned(nn.Module):
    """A network whose weights lie in another order."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.fc = nn.Linear(64, 33), nn.Linear(33, 10)
        self.body.weight = nn.Parameter(turn(self.body.weight.detach()))

    def forward(self, x):
        return self.fc(self.body(x.flatten(1)).relu())


def test_so_has_a_network_of_the_users(tmp_path):
    def stop(row):
        if row["round"] == 2:
            raise KeyboardInterrupt

    options = {**ONE_STEP, "model": Turned(), "head": "fc", "rounds": 4}
    whole = unskew.run(**options)
    with pytest.raises(KeyboardInterrupt):
        unskew.run(**options, out=tmp_path / "run", watch=stop, checkpoint_every=1)
    assert same(whole.server, unskew.resume(tmp_path / "run", model=Turned(), head="fc").server)
    assert all(value.is_contiguous() for value in whole.server["model"].values())


def test_settled_groups_stay_as_they_are():
    groups = {"a": {"x": torch.rand(3, 4), "y": torch.zeros(())}}
    assert tree.settle(groups) is groups
    more = {"y": torch.arange(9.0)[1:], "z": torch.ones(1).expand(5), "w": groups["a"]["x"]}
    odd = {"a": {"x": torch.rand(4, 3).T, **more}}
    settled = tree.settle(odd)
    assert same(odd, settled) and settled["a"]["w"] is groups["a"]["x"]
    assert all(value.is_contiguous() and not value.data_ptr() % 64 for value in settled["a"].values())


def test_what_a_wire_keeps_is_settled(tmp_path):
    class Keeps(Processor):
        """Keeps what it sends."""

        def encode(self, c, groups, memory, stream):
            sent = {
                g: {n: v + 0.1 * memory[g][n] if g in memory else v for n, v in own.items()}
                for g, own in groups.items()
            }
            return sent, {g: turn_tree(own) for g, own in sent.items()}

        def decode(self, groups):
            return groups

    Keeps.__module__ = "mine"
    registries.processors.register("keeps")(Keeps)
    whole = play_one_step("fedavg", wire="keeps", rounds=4)
    assert same(whole.server, resumed("fedavg", tmp_path / "run", wire="keeps", rounds=4).server)


# ---------------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize("executor", ("serial", "pool"))
def test_names_with_a_slash_are_told_apart(executor, tmp_path):
    def init(self, s):
        more = {"a/b": {"c": torch.zeros(1)}, "a": {"b/c": torch.ones(2), "b/c'": torch.ones(3)}}
        return {**Method.init(self, s), **more}

    def keep(self, c, params):
        return {"a/b": {"c": torch.zeros(1)}, "a": {"b/c": torch.ones(1)}}

    def loss(self, c, params, batch):
        kept = sum(value.sum() for own in c.state.values() for value in own.values())
        return Method.loss(self, c, params, batch) * (1 + kept)

    mine, options = define(init=init, keep=keep, loss=loss), {"rounds": 4, "executor": executor}
    whole = play_one_step(mine, **options)
    assert same(whole.server, resumed(mine, tmp_path / "run", **options).server)


def test_names_in_files_are_as_they_were():
    data = storage.encode({"model": {"a.b": torch.ones(1)}, "previous/model": {"c": torch.ones(1)}})
    header = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
    assert header.keys() == {"__metadata__", "model/a.b", "previous/model/c"}


def test_names_that_checkpoints_use_are_refused(tmp_path):
    mine = define(init=lambda self, s: {**Method.init(self, s), "client states": {"snapshot": torch.ones(1)}})
    with pytest.raises(InputError, match=r"must not be named 'client states': checkpoints use it"):
        play_one_step(mine, out=tmp_path / "run")
    assert not Path(tmp_path / "run").exists()
