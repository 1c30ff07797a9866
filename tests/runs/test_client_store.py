"""Client states: in memory, on disk, in snapshots."""

import pytest
import torch

from unskew.base import storage
from unskew.base.errors import InputError
from unskew.runs.client_store import StateStore


def state(value, size=100):
    return {"own": {"b": torch.full((size,), float(value)), "a": torch.tensor(value)}, "empty": {}}


def check(store, client, value):
    found = store.get(client)
    assert float(found["own"]["b"][0]) == value and list(found["own"]) == ["b", "a"] and found["empty"] == {}


def test_unknown_clients_have_no_state_and_cost_nothing(tmp_path):
    store = StateStore(tmp_path / "states")
    assert store.get(7) == {}
    store.put(7, {}, 1)
    assert store.snapshot().tolist() == [0, 0, 0] and not (tmp_path / "states").exists()
    store.prune()


@pytest.mark.parametrize("with_folder", [True, False])
def test_states_beyond_the_limit_leave_memory_and_come_back(tmp_path, with_folder):
    store = StateStore(tmp_path if with_folder else None, limit=5000)  # two states of 412 bytes in two tensors fit
    for client in range(10):
        store.put(client, state(client), 1)
    assert len(store._memory) == 2
    for client in (0, 9, 3, 3, 5):
        check(store, client, client)
    store.put(0, state(100), 2)
    for client in range(1, 10):
        check(store, client, client)
    check(store, 0, 100)
    assert len(store._memory) == 2


def test_tiny_states_do_not_pass_for_nothing(tmp_path):
    store = StateStore(tmp_path, limit=10_000)
    for client in range(100):
        store.put(client, {"own": {"a": torch.tensor(client)}}, 1)
    assert len(store._memory) < 10
    assert [int(store.get(client)["own"]["a"]) for client in range(100)] == list(range(100))


def test_a_snapshot_outlives_later_changes(tmp_path):
    store = StateStore(tmp_path, limit=5000)
    for client in range(4):
        store.put(client, state(client), 1)
    first = store.snapshot()
    store.put(2, state(50), 2)
    second = store.snapshot()
    store.prune()
    store.close()
    for snapshot, value in ((second, 50), (first, 2)):
        again = StateStore(tmp_path)
        again.restore(snapshot)
        check(again, 2, value)
        check(again, 3, 3)
        again.close()


def test_states_can_be_replaced_by_nothing(tmp_path):
    store = StateStore(tmp_path)
    store.put(1, state(1), 1)
    store.put(1, {}, 2)
    snapshot = store.snapshot()
    store.close()
    store.restore(snapshot)
    assert store.get(1) == {}


def test_a_damaged_file_is_named(tmp_path):
    name = storage.write_certified(tmp_path, "x", storage.encode(state(1)))
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(InputError, match="damaged"):
        storage.read_certified(path)


def test_encoding_is_deterministic_and_keeps_order_types_and_shared_memory():
    shared = torch.arange(6.0)
    groups = {
        "z": {"b": shared, "a": shared[2:], "t": shared.view(2, 3).t()},
        "a": {"n": torch.tensor(3), "h": torch.ones(2, dtype=torch.bfloat16)},
    }
    assert storage.encode(groups, {"round": 1, "x": "y"}) == storage.encode(groups, {"round": 1, "x": "y"})
    back = storage.decode(storage.encode(groups, {"round": 1}))
    assert [(g, list(t)) for g, t in back.items()] == [("z", ["b", "a", "t"]), ("a", ["n", "h"])]
    for group, tree in groups.items():
        for name, value in tree.items():
            assert torch.equal(back[group][name], value) and back[group][name].dtype == value.dtype
    assert storage.read_notes(storage.encode(groups, {"round": 1})) == {"round": 1}
