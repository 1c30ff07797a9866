"""What a third trial by a newcomer found: sums, states and files that became something else without a word."""

import json
import os
import signal
import struct
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import unskew
from unskew import Method, Processor, reducers, registries
from unskew.base import storage, tree
from unskew.base.errors import InputError
from unskew.core.jobs import Reply

SMALL = {"data": "digits", "model": "mlp(hidden=[8])", "clients": 3, "split": "iid", "rounds": 2, "lr": 0.1,
         "local.steps": 1, "local_test": "none"}  # fmt: skip
ALL = ("serial", "pool", "stacked")

pytestmark = pytest.mark.usefixtures("own_names")


def make(bases=Method, **slots):
    """A method as a user defines it."""
    kind = type("Mine", (bases,), {"__module__": "mine", "__doc__": "Mine.", **slots})
    return registries.methods.register("mine")(kind)()


def play(method, **options):
    return unskew.run(method, **{**SMALL, **options})


def same(one, other):
    """Whether two states are equal to the last bit."""
    return one.keys() == other.keys() and all(
        one[group].keys() == other[group].keys() and all(torch.equal(v, other[group][n]) for n, v in own.items())
        for group, own in one.items()
    )


# ---------------------------------------------------------------------------------------------- sums and means

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


# ------------------------------------------------------------------------------------------------ equal shapes


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


# ----------------------------------------------------------------------------------------- the order in memory


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


def resumed(method, folder, **options):
    """The same run, cut after its second round and taken up again."""

    def stop(row):
        if row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(method, out=folder, watch=stop, checkpoint_every=1, **options)
    return unskew.resume(folder)


@pytest.mark.parametrize("executor", ALL)
@pytest.mark.parametrize("slot", TURNED)
def test_a_resumed_run_has_the_same_bits_whatever_the_order_in_memory(slot, executor, tmp_path, caplog):
    mine, options = make(**TURNED[slot]), {"executor": executor, "rounds": 4, "local_test": "proportional"}
    options["model"] = "mlp(hidden=[33])"
    whole = play(mine, **options)
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

    options = {**SMALL, "model": Turned(), "head": "fc", "rounds": 4}
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
    whole = play("fedavg", wire="keeps", rounds=4)
    assert same(whole.server, resumed("fedavg", tmp_path / "run", wire="keeps", rounds=4).server)


# ------------------------------------------------------------------------------------------ files of a finished run


def zero(path):
    data = bytearray(path.read_bytes())
    data[-100:] = bytes(100)
    path.write_bytes(data)


def flip(path):
    data = bytearray(path.read_bytes())
    data[-7] ^= 1
    path.write_bytes(data)


def drop(path):
    groups = storage.decode(path.read_bytes())
    groups["model"].popitem()
    path.write_bytes(storage.encode(groups, storage.read_notes(path.read_bytes())))


@pytest.mark.parametrize("change", [zero, flip, drop])
def test_a_changed_model_of_a_finished_run_is_noticed(change, tmp_path):
    play("fedavg", out=tmp_path / "run")
    model = tmp_path / "run/model.safetensors"
    whole = model.read_bytes()
    change(model)
    with pytest.raises(InputError, match=r"model.safetensors was changed: .*; restore what was changed, or remove"):
        unskew.resume(tmp_path / "run")
    (tmp_path / "run/summary.json").unlink()
    unskew.resume(tmp_path / "run")
    assert model.read_bytes() == whole


def test_compare_notices_it_too(tmp_path):
    compare = partial(unskew.compare, ["fedavg"], seeds=1, out=tmp_path / "c", **SMALL)
    compare()
    (model,) = (tmp_path / "c").rglob("model.safetensors")
    flip(model)
    with pytest.raises(InputError, match=r"model.safetensors was changed"):
        compare()


def test_edited_rows_of_a_finished_run_are_noticed(tmp_path, caplog):
    first = play("fedavg", out=tmp_path / "run")
    rows = tmp_path / "run/rounds.jsonl"
    text = rows.read_text()
    rows.write_text(text.replace('"train_loss": ', '"train_loss": 1', 1))
    with pytest.raises(InputError, match=r"rounds.jsonl was edited: .* restore it, or remove it and summary.json"):
        unskew.resume(tmp_path / "run")
    rows.unlink()
    (tmp_path / "run/summary.json").unlink()
    again = unskew.resume(tmp_path / "run")
    assert again.summary["files"] == first.summary["files"]
    (tmp_path / "run/clients.jsonl").unlink()
    caplog.clear()
    assert unskew.resume(tmp_path / "run").summary["files"] == first.summary["files"]
    assert "clients.jsonl lost rows: it has 0 of 6" in caplog.text


def test_rounds_that_are_run_again_leave_no_older_checkpoints(tmp_path):
    play("scaffold", out=tmp_path / "run", checkpoint_every=1)
    for _ in range(3):  # which of two of a round came first by name was chance
        (tmp_path / "run/rounds.jsonl").unlink()
        (tmp_path / "run/summary.json").unlink()
        unskew.resume(tmp_path / "run")
        assert len(list((tmp_path / "run/checkpoint").glob("round-*"))) == 2
        assert unskew.resume(tmp_path / "run").summary["rounds"] == 2


def test_what_is_recorded_of_the_files_does_not_depend_on_times(tmp_path):
    def files(name, **options):
        return play("scaffold", out=tmp_path / name, **options).summary["files"]

    assert files("serial") == files("pool", executor="pool") == resumed("scaffold", tmp_path / "cut").summary["files"]
    assert "files" not in play("scaffold").summary


def test_runs_of_older_versions_have_no_digests(tmp_path):
    play("fedavg", out=tmp_path / "run")
    path = tmp_path / "run/summary.json"
    summary = json.loads(path.read_text())
    del summary["files"]
    path.write_text(json.dumps(summary))
    assert "files" not in unskew.resume(tmp_path / "run").summary


# ----------------------------------------------------------------------------------------------------- reducers


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


# ------------------------------------------------------------------------------------------------------- splits

SPLITS = {
    "floats": (np.arange(99) + 0.7, [33] * 3, "must return indices as a list of whole numbers, got float64 of shape"),
    "sizes": (np.arange(99), [33.5, 33.0, 32.5], "must return sizes as a list of whole numbers, got float64"),
    "truth": (np.ones(1438, bool), [1438, 0, 0], "must return indices as a list of whole numbers, got bool"),
    "nested": ([[0, 1], [2]], [2, 1, 0], "must return indices as a list of whole numbers"),
    "too few": (np.arange(99), [33] * 2, "a size for each of 3 clients, .* the 99 indices; got 2 that add up to 66"),
    "too many": (np.arange(99), [50] * 3, "got 3 that add up to 150"),
    "negative": (np.arange(99), [100, -1, 0], "got 3 that add up to 99, the smallest -1"),
    "out of range": (np.arange(99) + 10**6, [33] * 3, ": sample indices must be in"),
    "twice": (np.zeros(99, int), [33] * 3, ": sample 0 is held 99 times"),
}


# ------------------------------------------------------------------------------------------------------ signals


class Alarm(TimeoutError):
    """What a program's handler raises."""


@pytest.fixture
def alarm():
    """A handler that raises."""

    def handler(*_):
        raise Alarm("mine")

    before = signal.signal(signal.SIGALRM, handler)
    yield lambda: os.kill(os.getpid(), signal.SIGALRM)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("place", ["encode", "write_atomic", "sync_folder"])
def test_what_a_handler_raises_while_a_checkpoint_is_written_passes(place, alarm, tmp_path, monkeypatch):
    calls, usual = [], getattr(storage, place)

    def struck(*args, **options):
        if calls.append(place) or len(calls) == 3:
            alarm()
            for _ in range(1000):
                pass
        return usual(*args, **options)

    monkeypatch.setattr(storage, place, struck)
    with pytest.raises(Alarm, match=r"mine"):
        play("scaffold", out=tmp_path / "run", checkpoint_every=1, rounds=4)
    monkeypatch.undo()
    assert same(unskew.resume(tmp_path / "run").server, play("scaffold", rounds=4).server)


def test_what_the_system_says_is_still_a_line(tmp_path, monkeypatch):
    def refuse(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage, "write_certified", refuse)
    with pytest.raises(InputError, match=r"cannot write a checkpoint .*: No space left on device"):
        play("scaffold", out=tmp_path / "run")


def test_what_a_handler_raises_while_a_worker_is_awaited_passes(alarm):
    def slow(self, c, params):
        if c.round == 2:
            os.kill(os.getppid(), signal.SIGALRM)
        return Method.train(self, c, params)

    with pytest.raises(Alarm, match=r"mine"):
        play(make(train=slow), executor="pool", rounds=3)


# -------------------------------------------------------------------------------------------------------- names


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

    mine, options = make(init=init, keep=keep, loss=loss), {"rounds": 4, "executor": executor}
    whole = play(mine, **options)
    assert same(whole.server, resumed(mine, tmp_path / "run", **options).server)


def test_names_in_files_are_as_they_were():
    data = storage.encode({"model": {"a.b": torch.ones(1)}, "previous/model": {"c": torch.ones(1)}})
    header = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
    assert header.keys() == {"__metadata__", "model/a.b", "previous/model/c"}


def test_names_that_checkpoints_use_are_refused(tmp_path):
    mine = make(init=lambda self, s: {**Method.init(self, s), "client states": {"snapshot": torch.ones(1)}})
    with pytest.raises(InputError, match=r"must not be named 'client states': checkpoints use it"):
        play(mine, out=tmp_path / "run")
    assert not Path(tmp_path / "run").exists()


# ------------------------------------------------------------------------------------------- one line for the rest


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
