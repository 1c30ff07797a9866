"""Clients' states on disk: versions, snapshots, damage, full disks."""

import random
import signal
import sqlite3
import subprocess
import sys

import pytest
import torch

from unskew.base.errors import InputError
from unskew.runs import state_file
from unskew.runs.state_file import NAME, StateFile


def held(file, clients):
    return {client: file.read(client) for client in clients}


def rows(folder):
    """How many rows a process that opens the file now sees."""
    with sqlite3.connect(folder / NAME) as database:
        return database.execute("SELECT count(*) FROM states").fetchone()[0]


def test_without_a_folder_there_is_one_row_for_each_client():
    file, rng, expected = StateFile(None), random.Random(0), {}
    assert file.read(3) is None
    for _ in range(3000):
        client = rng.randrange(40)
        expected[client] = rng.randbytes(rng.randrange(200))
        file.write(client, expected[client])
    assert held(file, expected) == expected and file.read(40) is None
    assert file._run("SELECT count(*) FROM states").fetchone() == (len(expected),)
    file.close()


def test_two_checkpoints_always_work_and_older_rows_go(tmp_path):
    file, rng, expected, snapshots = StateFile(tmp_path), random.Random(1), {}, []
    for number in range(60):
        for _ in range(30):
            client = rng.randrange(20)
            expected[client] = rng.randbytes(rng.randrange(1, 200))
            file.write(client, expected[client])
        snapshots.append((file.snapshot(), dict(expected)))
        for snapshot, _ in snapshots[-2:]:
            state_file.check(tmp_path, snapshot)
        file.prune()
        if number % 10 == 9:  # an end and a resumption, once from the checkpoint before the last
            file.write(0, b"written after the checkpoint")
            file.close()
            if number == 29:
                snapshots.pop()
            for snapshot, then in snapshots[-2:]:
                state_file.check(tmp_path, snapshot)
                reader = StateFile(tmp_path)
                reader.restore(snapshot)
                assert held(reader, then) == then
                reader.close()
            file = StateFile(tmp_path)
            file.restore(snapshots[-1][0])
            expected = dict(snapshots[-1][1])
    file.close()
    assert rows(tmp_path) <= 3 * len(expected)


def test_a_resumed_file_drops_what_was_written_after_the_snapshot(tmp_path):
    first = StateFile(tmp_path)
    first.write(1, b"one")
    snapshot = first.snapshot()
    first.write(1, b"more")
    first.write(2, b"two")
    first.snapshot()  # of a checkpoint that was never written
    first.close()
    again = StateFile(tmp_path)
    again.restore(snapshot)
    assert held(again, (1, 2)) == {1: b"one", 2: None}
    fresh = StateFile(tmp_path / "other")
    assert fresh.read(1) is None and fresh.snapshot().tolist() == [0, 0, 0] and not (tmp_path / "other").exists()


def test_a_file_without_a_checkpoint_is_started_over(tmp_path):
    lost = StateFile(tmp_path)
    lost.write(1, b"one")
    lost.snapshot()
    lost.close()
    fresh = StateFile(tmp_path)
    fresh.write(2, b"two")
    assert held(fresh, (1, 2)) == {1: None, 2: b"two"}
    assert fresh.snapshot().tolist()[:2] == [1, 1]


def test_what_a_killed_process_wrote_after_its_snapshot_is_undone(tmp_path):
    """It has written more than SQLite keeps in memory, so that the file itself was changed already."""
    script = (
        "import os, sys, signal; from pathlib import Path; from unskew.runs import state_file\n"
        "state_file._CACHE = 100; file = state_file.StateFile(Path(sys.argv[1]))\n"
        "for client in range(300): file.write(client, b'a' * 3000)\n"
        "print(*file.snapshot().tolist(), flush=True); file.prune()\n"
        "for client in range(300): file.write(client, b'b' * 5000)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (tmp_path / NAME).stat().st_size > 2_000_000 and (tmp_path / f"{NAME}-journal").exists()
    snapshot = torch.tensor([int(number) for number in done.stdout.split()])
    state_file.check(tmp_path, snapshot)
    again = StateFile(tmp_path)
    again.restore(snapshot)
    assert set(held(again, range(300)).values()) == {b"a" * 3000}


def test_after_a_failed_write_nothing_more_is_written(tmp_path):
    """SQLite may have undone the writes before it, too: a snapshot would lack them."""
    file = StateFile(tmp_path)
    file.write(1, b"one")
    snapshot = file.snapshot()
    file._run("PRAGMA max_page_count = 4")
    with pytest.raises(OSError, match="No space left on device"):
        file.write(2, bytes(100_000))
    with pytest.raises(OSError, match="No space left on device"):
        file.snapshot()
    file.close()
    state_file.check(tmp_path, snapshot)


def test_a_state_that_is_too_large_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(state_file, "LARGEST", 10)
    with pytest.raises(InputError, match="the state of client 3 takes 11 bytes; at most 10"):
        StateFile(tmp_path).write(3, bytes(11))


DAMAGES = {
    "bit": "the state of client 2 does not match its checksum",
    "cut": "is damaged: ",
    "gone": "cannot read .*unable to open",
    "header": "is damaged: file is not a database",
    "index": "is damaged: ",
    "older": "its states are not those of the checkpoint",
    "client": "the state of client 7 does not match its checksum",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named(tmp_path, damage):
    file, path = StateFile(tmp_path), tmp_path / NAME
    for client in range(3):
        file.write(client, bytes([65 + client]) * 2000)
    file.snapshot()
    older = path.read_bytes()
    file.write(2, b"Z" * 2000)
    snapshot = file.snapshot()
    file.close()
    data = path.read_bytes()
    if damage == "bit":
        at = data.index(b"Z" * 100) + 1000
        path.write_bytes(data[:at] + b"!" + data[at + 1 :])
    elif damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "gone":
        path.unlink()
    elif damage == "header":
        path.write_bytes(b"x" * 100 + data[100:])
    elif damage == "older":
        path.write_bytes(older)
    else:
        with sqlite3.connect(path) as database:
            if damage == "client":
                database.execute("UPDATE states SET client = 7 WHERE client = 0")
            else:
                (root,) = database.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'by_client'").fetchone()
        if damage == "index":
            end = root * state_file._PAGE  # an index grows from the end of its page
            path.write_bytes(data[: end - 100] + bytes(100) + data[end:])
    with pytest.raises(InputError, match=DAMAGES[damage]):
        state_file.check(tmp_path, snapshot)


def test_damaged_bytes_are_noticed_when_they_are_read(tmp_path):
    file = StateFile(tmp_path)
    file.write(2, b"Z" * 2000)
    snapshot = file.snapshot()
    file.close()
    data = (tmp_path / NAME).read_bytes()
    at = data.index(b"Z" * 100) + 1000
    (tmp_path / NAME).write_bytes(data[:at] + b"!" + data[at + 1 :])
    file.restore(snapshot)
    with pytest.raises(InputError, match=rf"{NAME} is damaged: the state of client 2"):
        file.read(2)


def test_the_work_per_visit_does_not_grow_with_the_clients(tmp_path):
    """Counted in bytes: a snapshot is three numbers, and the file holds little beside the states."""
    file = StateFile(tmp_path)
    for client in range(5000):
        file.write(client, b"x" * 300)
    assert file.snapshot().tolist()[:2] == [5000, 5000]
    assert (tmp_path / NAME).stat().st_size < 5000 * 300 * 1.25
