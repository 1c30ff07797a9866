"""Client states: memory, paging, snapshots."""

import random
from pathlib import Path

import pytest
import torch

from unskew.base import storage
from unskew.base.errors import InputError
from unskew.runs import pages
from unskew.runs.client_store import StateStore
from unskew.runs.pages import Pages


def state(value, size=100):
    return {"own": {"b": torch.full((size,), float(value)), "a": torch.tensor(value)}, "empty": {}}


def check(store, client, value):
    found = store.get(client)
    assert float(found["own"]["b"][0]) == value and list(found["own"]) == ["b", "a"] and found["empty"] == {}


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_unknown_clients_have_no_state_and_cost_nothing(tmp_path):
    store = StateStore(tmp_path / "states")
    assert store.get(7) == {}
    store.put(7, {}, 1)
    assert len(store.snapshot()) == 0 and not (tmp_path / "states").exists()
    store.prune()


def test_states_beyond_the_limit_are_paged_and_come_back(tmp_path):
    store = StateStore(tmp_path, limit=5000)  # two states of 412 bytes in two tensors fit
    for client in range(10):
        store.put(client, state(client), 1)
    assert len(store._memory) == 2 and files(tmp_path) == ["states-000001"]
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
    for table, value in ((first, 2), (second, 50)):
        again = StateStore(tmp_path)
        again.restore(table)
        check(again, 2, value)
        check(again, 3, 3)


def test_states_can_be_replaced_by_nothing(tmp_path):
    store = StateStore(tmp_path)
    store.put(1, state(1), 1)
    store.put(1, {}, 2)
    again = StateStore(tmp_path)
    again.restore(store.snapshot())
    assert again.get(1) == {}


# ------------------------------------------------------------------------------------ pages


@pytest.fixture
def small(monkeypatch):
    """Files of about a thousand bytes, cleared as soon as there is more waste than that."""
    monkeypatch.setattr(pages, "_LARGEST", 1000)
    monkeypatch.setattr(pages, "_SLACK", 1000)


def test_pages_stay_small_and_whole_however_often_clients_come_back(tmp_path, small):
    kept, rng, expected = Pages(tmp_path, keep=False), random.Random(0), {}
    for _ in range(3000):
        client = rng.randrange(40)
        expected[client] = rng.randbytes(rng.randrange(1, 200))
        kept.write(client, expected[client])
    assert {client: kept.read(client) for client in expected} == expected
    held = sum(map(len, expected.values()))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2 * held + 1000 + 200
    pages.check(tmp_path, kept.sync())


def test_two_checkpoints_always_work_and_older_files_go(tmp_path, small):
    kept, rng, expected, tables = Pages(tmp_path), random.Random(1), {}, []
    for number in range(60):
        for _ in range(30):
            client = rng.randrange(20)
            expected[client] = rng.randbytes(rng.randrange(1, 200))
            kept.write(client, expected[client])
        tables.append((kept.sync(), dict(expected)))
        kept.prune()
        for table, then in tables[-2:]:
            pages.check(tmp_path, table)
            reader = Pages(tmp_path)
            reader.restore(table)
            assert {client: reader.read(client) for client in then} == then
        if number % 10 == 9:  # an end and a resumption, once from the checkpoint before the last
            kept.write(0, b"written after the checkpoint")
            if number == 29:
                tables.pop()
            kept = Pages(tmp_path)
            kept.restore(tables[-1][0])
            expected = dict(tables[-1][1])
    held = sum(map(len, expected.values()))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2 * (2 * held + 1000) + 30 * 200


def test_a_resumed_store_never_writes_into_a_file_of_before(tmp_path):
    first = Pages(tmp_path)
    first.write(1, b"one")
    table = first.sync()
    first.write(1, b"lost in the crash")
    again = Pages(tmp_path)
    again.restore(table)
    again.write(2, b"two")
    assert again.read(1) == b"one" and again.read(2) == b"two"
    assert files(tmp_path) == ["states-000001", "states-000002"]


def test_a_failed_write_changes_nothing(tmp_path, monkeypatch):
    kept = Pages(tmp_path)
    kept.write(1, b"one")
    real = Path.open

    def full(path, mode="r", *rest):
        stream = real(path, mode, *rest)
        if mode == "ab":
            stream.write(b"hal")
            stream.close()
            raise OSError(28, "No space left on device")
        return stream

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(OSError, match="No space"):
        kept.write(1, b"half")
    monkeypatch.undo()
    assert kept.read(1) == b"one"
    kept.write(2, b"two")
    assert kept.read(1) == b"one" and kept.read(2) == b"two"
    pages.check(tmp_path, kept.sync())


@pytest.mark.parametrize("damage", ["bit", "cut", "gone"])
def test_damaged_pages_are_named(tmp_path, damage):
    kept = Pages(tmp_path)
    for client in range(3):
        kept.write(client, bytes([client]) * 100)
    table, path = kept.sync(), tmp_path / "states-000001"
    data = path.read_bytes()
    path.unlink() if damage == "gone" else path.write_bytes(data[:250] + (b"x" * 50 if damage == "bit" else b""))
    message = "cannot read .*states-000001" if damage == "gone" else "states-000001 is damaged: .* client 2"
    with pytest.raises(InputError, match=message):
        pages.check(tmp_path, table)
    with pytest.raises(InputError, match=message):
        kept.read(2)


def test_the_work_per_visit_does_not_grow_with_the_clients(tmp_path):
    """Counted in bytes written: the table of all clients is written by checkpoints alone."""
    kept = Pages(tmp_path)
    for client in range(5000):
        kept.write(client, b"x" * 100)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 500_000 and len(files(tmp_path)) == 1
    table = kept.sync()
    assert tuple(table.shape) == (5000, 5) and table.dtype == torch.int64


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
