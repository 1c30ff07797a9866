"""A federation of real processes on this machine: the commands as a user calls them, one folder, free ports."""

from __future__ import annotations

import io
import itertools
import json
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import psutil
import tomli_w
import torch

import unskew
from unskew import Dataset, Samples
from unskew.base import storage
from unskew.cli import main
from unskew.deploy.flower.processes import find_free_port
from unskew.deploy.folder import DeployFolder
from unskew.deploy.server import OverSites, Terms, prepare_for_sites
from unskew.deploy.site import Site
from unskew.runs import engine
from unskew.runs.arguments import to_run

UNSKEW = Path(sys.executable).parent / "unskew"
ENDS = [0, 90, 150, 300]
NAMES = ("north", "south", "west")


def write_data(folder: Path, sites: int = 3) -> None:
    """Digits in an .npz a site, the server's test samples, and all of it as a simulation has it."""
    digits = unskew.load("digits")
    x, y = digits.train.x[:, 0].numpy(), digits.train.y.numpy()
    test = {"test_images": digits.test.x[:, 0].numpy(), "test_labels": digits.test.y.numpy()}
    for name, (a, b) in zip(NAMES[:sites], itertools.pairwise(ENDS), strict=False):
        np.savez(folder / f"{name}.npz", images=x[a:b], labels=y[a:b])
    end = ENDS[sites]
    clients = np.repeat(np.arange(sites), np.diff(ENDS[: sites + 1]))
    np.savez(folder / "test.npz", train_images=test["test_images"], train_labels=test["test_labels"], **test)
    np.savez(folder / "whole.npz", train_images=x[:end], train_labels=y[:end], train_clients=clients, **test)


def simulate(folder: Path, table: dict) -> engine.Result:
    """The same run with all data in this process."""
    return engine.run(to_run({**table, "data": f"npz:{folder / 'whole.npz'}", "split": "natural"}))


class Federation:
    """Server and sites as processes; all of them end with `close`."""

    def __init__(self, folder: Path, *, sites: int = 3, address: str = "", secure: bool = True) -> None:
        self.folder, self.names = folder, NAMES[:sites]
        write_data(folder, sites)
        self.deploy = DeployFolder(folder / "fed")
        self.processes: dict[str, subprocess.Popen] = {}
        self.prefix: dict[str, list[str]] = {}
        """Words before a site's command: where it runs."""
        self.address = address or f"127.0.0.1:{find_free_port()}"
        self.call("init", str(self.deploy.path), "--sites", ",".join(self.names), "--address", self.address, "--test",
                  str(folder / "test.npz"), "--secure" if secure else "--insecure")  # fmt: skip

    def call(self, *words: str, code: int = 0) -> str:
        """What a command says, in this process; its exit code must be as expected."""
        said = io.StringIO()
        with redirect_stdout(said), redirect_stderr(said):
            try:
                main(["deploy", *words])
            except SystemExit as end:
                assert (end.code or 0) == code, (words, end.code, said.getvalue())
        return said.getvalue()

    def start(self, name: str) -> None:
        """Starts a site, or the `server`."""
        own = self.deploy.path if name == "server" else self.deploy.site(name).path
        words = ["server", str(own)] if name == "server" else [
            "site", str(own), "--data", str(self.folder / f"{name}.npz")]  # fmt: skip
        with (self.folder / f"{name}.out").open("ab") as out:
            self.processes[name] = subprocess.Popen(
                [*self.prefix.get(name, []), UNSKEW, "deploy", *words], stdout=out, stderr=subprocess.STDOUT
            )

    def start_all(self) -> None:
        """Starts the server, waits for it, starts all sites, waits for them."""
        self.start("server")
        self.wait_for("server", "listening at")
        for name in self.names:
            self.start(name)
        for name in self.names:
            self.wait_for(name, "connected to")

    def said(self, name: str) -> str:
        """What a site or the server has printed."""
        return (self.folder / f"{name}.out").read_text()

    def wait_for(self, name: str, text: str, seconds: float = 240, times: int = 1) -> None:
        """Waits until a site or the server has printed a text so many times."""
        deadline = time.monotonic() + seconds
        while self.said(name).count(text) < times:
            assert self.processes[name].poll() is None, self.said(name)
            assert time.monotonic() < deadline, f"{name} never said '{text}': {self.said(name)}"
            time.sleep(0.1)

    def order(self, table: dict, *flags: str) -> subprocess.Popen:
        """Begins a run and does not wait for it."""
        self.deploy.run_file.write_text(tomli_w.dumps(table))
        words = [UNSKEW, "deploy", "run", str(self.deploy.path), *flags]
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, table: dict, *flags: str) -> Path:
        """A whole run; its folder."""
        self.deploy.run_file.write_text(tomli_w.dumps(table))
        return _find_folder(self.call("run", str(self.deploy.path), *flags))

    def finish(self, running: subprocess.Popen, seconds: float = 600) -> Path:
        """Waits for a run's end; its folder."""
        said, _ = running.communicate(timeout=seconds)
        assert running.returncode == 0, said
        return _find_folder(said)

    def kill(self, name: str) -> None:
        """Ends a process and all below it as a power cut does."""
        top = psutil.Process(self.processes.pop(name).pid)
        for process in [*top.children(recursive=True), top]:
            process.kill()
        psutil.wait_procs([top], 10)

    def close(self) -> None:
        """Ends everything."""
        for name in [*(name for name in self.processes if name != "server"), "server"]:
            if name in self.processes:
                self.processes[name].terminate()
        for process in self.processes.values():
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()


def _find_folder(said: str) -> Path:
    return Path(said.split("results in ")[1].strip())


def read_rows(run: Path) -> list[dict]:
    """The rows of rounds, without their times."""
    rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    return [{**row, "seconds": 0} for row in rows]


def assert_same(run: Path, result: engine.Result) -> None:
    """The final model and all rows are those of a result, to the last bit."""
    found = storage.decode((run / "model.safetensors").read_bytes())
    for group in ("model", "buffers"):
        assert found[group].keys() == result.published[group].keys()
        for name, value in result.published[group].items():
            assert torch.equal(found[group][name], value), (group, name)
    keys = ("round", "accuracy", "loss", "personal", "clients", "excluded")
    ours = [{key: row.get(key) for key in keys} for row in read_rows(run)]
    assert ours == json.loads(json.dumps([{key: row.get(key) for key in keys} for row in result.rounds]))


class Direct:
    """Sites in this process; `unasked` are not reached in a round, answers of `lost` do not arrive."""

    def __init__(self, sites: list[Site], unasked: set, lost: set) -> None:
        self.sites, self.unasked, self.lost = sites, unasked, lost

    def exchange(self, requests):
        from unskew.deploy import messages

        for client, data in requests.items():
            head = messages.decode_request(data)[0]
            if (head.round, client) in self.unasked and head.kind == "train":
                continue
            answer = self.sites[client].answer(data)
            if (head.round, client) not in self.lost or head.kind != "train":
                yield client, answer


def play_directly(folder: Path, place: Path, table: dict, unasked: set = frozenset(), lost: set = frozenset()):
    """The same federation in this process, with the same sites missing."""
    parts = [Samples(*_read(folder / f"{name}.npz")) for name in NAMES]
    data = unskew.load(f"npz:{folder / 'test.npz'}")
    server = Dataset("server", data.test, data.test, data.classes, data.mean, data.std)
    transport = Direct([Site(own, place / str(number)) for number, own in enumerate(parts)], unasked, lost)
    prepared = prepare_for_sites(to_run(table), server, len(NAMES))

    def make(config, task):
        return OverSites(config, task, "a1b2c3d4-test", transport, NAMES, Terms())

    return engine.start(prepared, executor=make), transport.sites


def _read(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    with np.load(path) as arrays:
        return torch.from_numpy(arrays["images"])[:, None].contiguous(), torch.from_numpy(arrays["labels"])
