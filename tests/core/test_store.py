"""Client states: memory, paging, snapshots."""

import pytest
import torch

from unskew.core import wire
from unskew.core.store import StateStore
from unskew.errors import InputError


def state(value, size=100):
    return {"own": {"b": torch.full((size,), float(value)), "a": torch.tensor(value)}, "empty": {}}


def check(store, client, value):
    found = store.get(client)
    assert float(found["own"]["b"][0]) == value and list(found["own"]) == ["b", "a"] and found["empty"] == {}


def test_unknown_clients_have_no_state_and_cost_nothing(tmp_path):
    store = StateStore(tmp_path / "states")
    assert store.get(7) == {}
    store.put(7, {}, 1)
    assert store.snapshot() == {} and not (tmp_path / "states").exists()


def test_states_beyond_the_limit_are_paged_and_come_back(tmp_path):
    store = StateStore(tmp_path, limit=1000)  # two states of 408 bytes fit
    for client in range(10):
        store.put(client, state(client), 1)
    assert len(list(tmp_path.iterdir())) == 8
    for client in (0, 9, 3, 3, 5):
        check(store, client, client)
    store.put(0, state(100), 2)
    for client in range(1, 10):
        check(store, client, client)
    check(store, 0, 100)


def test_a_snapshot_outlives_later_changes_until_it_is_pruned(tmp_path):
    store = StateStore(tmp_path, limit=500)
    for client in range(4):
        store.put(client, state(client), 1)
    first = store.snapshot()
    store.put(2, state(50), 2)
    second = store.snapshot()
    assert first.keys() == second.keys() and first[2] != second[2]
    store.prune(set(first.values()))
    older = StateStore(tmp_path)
    older.restore(first)
    check(older, 2, 2)
    store.prune(set())
    check(store, 2, 50)
    with pytest.raises(InputError, match="cannot read"):
        StateStore.restore(older, first) or older.get(2)


def test_a_damaged_file_is_named(tmp_path):
    name = wire.write_certified(tmp_path, "x", wire.encode(state(1)))
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(InputError, match="damaged"):
        wire.read_certified(path)


def test_encoding_is_deterministic_and_keeps_order_types_and_shared_memory():
    shared = torch.arange(6.0)
    groups = {
        "z": {"b": shared, "a": shared[2:], "t": shared.view(2, 3).t()},
        "a": {"n": torch.tensor(3), "h": torch.ones(2, dtype=torch.bfloat16)},
    }
    assert wire.encode(groups, {"round": 1, "x": "y"}) == wire.encode(groups, {"round": 1, "x": "y"})
    back = wire.decode(wire.encode(groups, {"round": 1}))
    assert [(g, list(t)) for g, t in back.items()] == [("z", ["b", "a", "t"]), ("a", ["n", "h"])]
    for group, tree in groups.items():
        for name, value in tree.items():
            assert torch.equal(back[group][name], value) and back[group][name].dtype == value.dtype
    assert wire.notes(wire.encode(groups, {"round": 1})) == {"round": 1}
