"""Sites and servers that are killed or cut off: each site in a network of its own, with its own address."""

import contextlib
import os
import shutil
import socket
import subprocess
import threading
import time

import numpy as np
import pytest

pytest.importorskip("flwr")

from deploy.federation import NAMES, Federation, assert_same, play_directly, read_rows, simulate
from unskew.base import storage
from unskew.deploy.flower.processes import find_free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
SERVER = "10.213.77.1"
BRIDGE = "unskewbr0"


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=True)


@pytest.fixture(scope="module")
def networks():
    """A bridge with the server's address, and for each site a network namespace with an address of its own."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    try:
        ip("link", "add", BRIDGE, "type", "bridge")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no networks can be made here: {error.stderr.strip()}")
    try:
        ip("addr", "add", f"{SERVER}/24", "dev", BRIDGE)
        ip("link", "set", BRIDGE, "up")
        for number, name in enumerate(NAMES):
            space, outer = f"unskew-{name}", f"unskew{number}"
            ip("netns", "add", space)
            ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", space)
            ip("link", "set", outer, "master", BRIDGE)
            ip("link", "set", outer, "up")
            ip("-n", space, "addr", "add", f"10.213.77.{11 + number}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "eth0", "up")
            ip("-n", space, "link", "set", "lo", "up")
        yield
    finally:
        for number, name in enumerate(NAMES):
            subprocess.run(["ip", "link", "del", f"unskew{number}"], capture_output=True)
            subprocess.run(["ip", "netns", "del", f"unskew-{name}"], capture_output=True)
        subprocess.run(["ip", "link", "del", BRIDGE], capture_output=True)


@pytest.fixture(scope="module")
def federation(networks, tmp_path_factory):
    made = Federation(tmp_path_factory.mktemp("far"), address=f"{SERVER}:{find_free_port()}")
    made.prefix = {name: ["ip", "netns", "exec", f"unskew-{name}"] for name in NAMES}
    try:
        made.start_all()
        yield made
    finally:
        made.close()


def table(method, seed, steps=20, rounds=3):
    local, evaluation = {"batch": 16, "steps": steps}, {"local_test": "holdout", "every": rounds}
    return {"method": method, "model": "cnn8(norm=batch)", "rounds": rounds, "seed": seed, "local": local,
            "evaluation": evaluation}  # fmt: skip


def wait_for_round(federation, name, round_, before):
    federation.wait_for(name, f"round {round_}: training", times=before.count(f"round {round_}: training") + 1)


def test_sites_have_addresses_of_their_own(federation):
    found = ip("-n", "unskew-south", "-br", "addr", "show", "eth0").stdout
    assert "10.213.77.12/24" in found
    assert "north" in federation.call("status", str(federation.deploy.path))


def test_a_killed_site_comes_back_with_its_personal_state(federation, tmp_path):
    """North is killed in round 2 and started again; it is there in round 3 with what it kept in round 1."""
    wanted = table("fedper", 1, steps=200)
    before = federation.said("north")
    running = federation.order(wanted)
    wait_for_round(federation, "north", 2, before)
    federation.kill("north")
    states = sorted(federation.deploy.site("north").state.glob("*/state-*"), key=lambda path: path.stat().st_mtime)
    kept = states[-1].read_bytes()
    assert states[-1].name.startswith("state-000001")
    federation.start("north")
    run = federation.finish(running)
    assert [row.get("excluded") for row in read_rows(run)[1:]] == [[], [0], []]
    assert states[-1].read_bytes() == kept
    expected, _ = play_directly(federation.folder, tmp_path, wanted, unasked={(2, 0)})
    assert_same(run, expected)


def test_a_round_goes_on_without_a_site_that_is_cut_off(federation, tmp_path):
    """South is cut off while it trains in round 2: its answer is lost, its own state is not."""
    wanted = table("scaffold", 2, steps=200)
    before = federation.said("south")
    running = federation.order(wanted, "--round-timeout", "90")
    wait_for_round(federation, "south", 2, before)
    ip("link", "set", "unskew1", "down")
    run = next(federation.deploy.runs.glob("scaffold-*"))
    while len(read_rows(run)) < 3:
        assert running.poll() is None, running.stdout.read()
        time.sleep(0.5)
    ip("link", "set", "unskew1", "up")
    run = federation.finish(running)
    assert read_rows(run)[2]["excluded"] == [1]
    lost = {(row["round"], client) for row in read_rows(run) for client in row.get("excluded", [])}
    trained = {int(path.name[6:12]) for path in federation.deploy.site("south").state.glob("*/state-*")}
    unasked = {each for each in lost if each[0] not in trained}
    expected, _ = play_directly(federation.folder, tmp_path, wanted, unasked=unasked, lost=lost - unasked)
    assert_same(run, expected)


def test_a_killed_server_goes_on_from_its_checkpoint(federation):
    """Link, server's app and all are killed in round 2; the next Flower run goes on with the same sites."""
    wanted = table("scaffold", 3, steps=200)
    before = federation.said("west")
    running = federation.order(wanted)
    wait_for_round(federation, "west", 2, before)
    federation.kill("server")
    said, _ = running.communicate(timeout=300)
    assert running.returncode == 2 and "goes on from the last checkpoint" in said
    federation.start("server")
    federation.wait_for("server", "listening at", times=2)
    run = federation.run(wanted)
    assert_same(run, simulate(federation.folder, wanted))


# ------------------------------------------------------------------------------------------ what leaves a site


class Recorder:
    """Hands a TCP connection on to a server and keeps all bytes of both directions."""

    def __init__(self, server: tuple[str, int]) -> None:
        self.server, self.heard = server, {"up": bytearray(), "down": bytearray()}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self.server)
            except OSError:  # the server has ended before the sites
                near.close()
                continue
            for source, target, kept in ((near, far, "up"), (far, near, "down")):
                threading.Thread(target=self._pump, args=(source, target, self.heard[kept]), daemon=True).start()

    @staticmethod
    def _pump(source: socket.socket, target: socket.socket, kept: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                kept += data
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listener.close()


def test_no_sample_and_no_personal_head_is_in_the_traffic(tmp_path):
    """Plain text on this machine, every byte between sites and server recorded."""
    made = Federation(tmp_path, secure=False)
    host, port = made.address.split(":")
    recorder = Recorder((host, int(port)))
    for name in NAMES:
        site = made.deploy.site(name)
        site.write(site.read().model_copy(update={"server": f"127.0.0.1:{recorder.port}"}))
    try:
        made.start_all()
        run = made.run(table("fedper", 4))
    finally:
        made.close()
        recorder.close()
    up, both = bytes(recorder.heard["up"]), bytes(recorder.heard["up"] + recorder.heard["down"])
    model = storage.decode((run / "model.safetensors").read_bytes())["model"]
    body = next(name for name in model if name.startswith("body") and model[name].numel() > 100)
    assert model[body].numpy().tobytes() in both  # the search finds what does travel: the last test's shared part
    for number, name in enumerate(NAMES):
        with np.load(made.folder / f"{name}.npz") as arrays:
            for image in arrays["images"]:
                assert image.tobytes() not in both
                assert (image / np.float32(255)).astype(np.float32).tobytes() not in both
        states = sorted(made.deploy.site(name).state.glob("*/state-*"))
        assert len(states) == 3, number
        for path in states:
            for own in storage.decode(path.read_bytes()).values():
                for value in own.values():
                    if value.numel() > 4:
                        assert value.numpy().tobytes() not in both
    assert len(up) > 3 * sum(4 * value.numel() for key, value in model.items() if key.startswith("body"))
