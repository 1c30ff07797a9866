"""What does a real federation cost beyond local training? Seconds of a round and bytes on the wire, on loopback.

    python -m benchmarks.deployment [--model fedavg_cnn] [--rounds 6] [--insecure] [--out deployment.json]

Three sites and the server are processes of their own, with TLS and keys; all bytes between them go through a counter.
A round's overhead is its time for the sites' work less the longest training at a site. The model's bytes are those that
rounds.jsonl counts: what the method sends down and up.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from unskew.deploy.flower.processes import find_free_port
from unskew.deploy.folder import DeployFolder

UNSKEW = str(Path(sys.executable).parent / "unskew")
SITES = ("north", "south", "west")


class Counter:
    """Hands TCP connections on to a server and counts their bytes."""

    def __init__(self, port: int) -> None:
        self.up, self.down, self._server = 0, 0, port
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            try:
                far = socket.create_connection(("127.0.0.1", self._server))
            except OSError:  # the server has ended before the sites
                near.close()
                continue
            threading.Thread(target=self._pump, args=(near, far, "up"), daemon=True).start()
            threading.Thread(target=self._pump, args=(far, near, "down"), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                with self._lock:
                    setattr(self, way, getattr(self, way) + len(data))
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


def main() -> None:
    """Measures and prints; ends all processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="fedavg_cnn")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--samples", type=int, default=200, help="at each site")
    parser.add_argument("--insecure", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="unskew-deployment-") as folder:
        found = measure(Path(folder), given)
    print(json.dumps(found, indent=1))
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n")


def measure(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """The figures of one federation."""
    write_data(folder, given.samples)
    port, place = find_free_port(), folder / "fed"
    counter = Counter(port)
    run = {"method": "fedavg", "model": given.model, "rounds": given.rounds, "local": {"epochs": 1, "batch": 32},
           "evaluation": {"local_test": "none", "every": given.rounds}}  # fmt: skip
    (folder / "run.toml").write_text(tomli_w.dumps(run))
    subprocess.run(
        [UNSKEW, "deploy", "init", str(place), "--sites", ",".join(SITES), "--address", f"127.0.0.1:{port}", "--run",
         str(folder / "run.toml"), "--test", str(folder / "test.npz"), "--insecure" if given.insecure else "--secure"],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    started = []
    try:
        started.append(_start(folder, "server", "server", str(place)))
        _wait(folder / "server.out", "listening at")
        for name in SITES:
            site = DeployFolder(place).site(name)
            site.write(site.read().model_copy(update={"server": f"127.0.0.1:{counter.port}"}))
            started.append(_start(folder, name, "site", str(site.path), "--data", str(folder / f"{name}.npz")))
        for name in SITES:
            _wait(folder / f"{name}.out", "connected to")
        began = time.monotonic()
        training = subprocess.Popen([UNSKEW, "deploy", "run", str(place), "--quiet"], stdout=subprocess.DEVNULL)
        marks = _follow(place, counter, training, given.rounds)
        whole = time.monotonic() - began
        return summarise(next((place / "runs").iterdir()), marks, whole, given)
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(60)


def write_data(folder: Path, samples: int) -> None:
    """Random images of MNIST's size, so that nothing is to be downloaded."""
    rng = np.random.default_rng(0)
    for name in (*SITES, "test"):
        images = rng.integers(0, 256, (samples, 28, 28), dtype=np.uint8)
        labels = np.arange(samples) % 10
        arrays = {"images": images, "labels": labels}
        np.savez(folder / f"{name}.npz", **arrays)


def _start(folder: Path, name: str, *words: str) -> subprocess.Popen[bytes]:
    with (folder / f"{name}.out").open("wb") as out:
        return subprocess.Popen([UNSKEW, "deploy", *words], stdout=out, stderr=subprocess.STDOUT)


def _wait(path: Path, text: str, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while text not in path.read_text():
        if time.monotonic() > deadline:
            raise SystemExit(f"'{text}' was never said: {path.read_text()}")
        time.sleep(0.2)


def _follow(place: Path, counter: Counter, training: subprocess.Popen[bytes], rounds: int) -> list[tuple[int, int]]:
    """The bytes up and down so far when each round's row appears."""
    marks: list[tuple[int, int]] = []
    while len(marks) <= rounds:
        rows = [path.read_text().count("\n") for path in (place / "runs").glob("*/rounds.jsonl")]
        marks += [(counter.up, counter.down)] * (sum(rows) - len(marks))
        if training.poll() not in (None, 0):
            raise SystemExit("the run failed")
        time.sleep(0.05)
    training.wait(120)
    return marks


def summarise(run: Path, marks: list[tuple[int, int]], whole: float, given: argparse.Namespace) -> dict[str, Any]:
    """Medians over the rounds but the first, in which sites also build the run."""
    rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    clients = [json.loads(line) for line in (run / "clients.jsonl").read_text().splitlines()]
    longest = {row["round"]: max(c["seconds"] for c in clients if c["round"] == row["round"] and "seconds" in c)
               for row in rows[1:]}  # fmt: skip
    over = [row["seconds"]["local"] - longest[row["round"]] for row in rows[2:]]
    counted = sum(row["bytes_down"] + row["bytes_up"] for row in rows[2:])
    wire = sum(marks[-1]) - sum(marks[1])
    return {
        "model": given.model, "sites": len(SITES), "secure": not given.insecure, "rounds": given.rounds,
        "load": os.getloadavg()[0], "cores": os.cpu_count(),
        "overhead_seconds": {"median": statistics.median(over), "min": min(over), "max": max(over)},
        "training_seconds": statistics.median(list(longest.values())[1:]),
        "whole_run_seconds": whole,
        "bytes_a_round": {"counted": counted / len(over), "wire": wire / len(over), "ratio": wire / counted},
    }  # fmt: skip


if __name__ == "__main__":
    main()
