"""A site's node that is watched: one whose main thread has died is not waited for."""

import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")

from unskew.deploy.flower import attendance

HALF_DEAD = """
import threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
def flower_supernode(): raise KeyboardInterrupt
import sys
sys.exit(flower_supernode())
"""


def test_a_node_that_only_lingers_is_started_again(tmp_path, monkeypatch):
    monkeypatch.setattr(attendance, "LINGER", 1.0)
    log, script = tmp_path / "node.log", tmp_path / "flower-supernode"
    script.write_text(HALF_DEAD)
    with log.open("wb") as file:
        node = subprocess.Popen([sys.executable, script], stderr=file)
    try:
        folder, about = SimpleNamespace(log=log), SimpleNamespace(name="north", server="here")
        began = time.monotonic()
        attendance._Node(folder, about, print)._watch(node, SimpleNamespace(works=True), 0)
        assert time.monotonic() - began < 20 and node.poll() is None  # it would have stayed for a minute
    finally:
        node.kill()
        node.wait()
