"""Flower's own commands with the right flags: the server's link, the sites' nodes, a run of the app."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from unskew.base import storage
from unskew.base.errors import InputError
from unskew.deploy.channel import listen
from unskew.deploy.flower import handover, warm
from unskew.deploy.folder import DeployFolder, Deployment
from unskew.deploy.site_folder import AboutSite, SiteFolder

CONNECTION = "unskew"
"""What the server is called in Flower's own file of connections."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
_PARENT_DEATH = 1
"""PR_SET_PDEATHSIG"""


def find_command(name: str) -> str:
    """A command of Flower's, beside this interpreter or on the path."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None or importlib.util.find_spec("flwr") is None:
        raise InputError(
            "deployment needs Flower; install it with: pip install 'unskew[flower]' (Python 3.11 or newer)"
        )
    return found


def make_environment(home: Path) -> dict[str, str]:
    """Nothing is sent out, nothing installed, and Flower's state is in a folder of its own."""
    return {
        **os.environ, "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "OMP_NUM_THREADS": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",  # of 1 s; the relay holds each look
        "PATH": os.pathsep.join([str(home / "bin"), str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    }  # fmt: skip


def split_address(address: str, secure: bool) -> tuple[str, int]:
    """Host and port; plain text is for this machine alone."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InputError(f"expected an address such as 10.0.0.5:18000, got '{address}'")
    if not secure and host not in LOOPBACK:
        raise InputError(f"without TLS only 127.0.0.1 may be used, got '{host}'; make the deployment with --secure")
    return host.strip("[]"), int(port)


def find_free_port() -> int:
    """A port of this machine that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def end(process: subprocess.Popen[bytes], seconds: float = 20) -> None:
    """Ends one of Flower's processes, in its own way if that works in time, and what it leaves behind."""
    if process.poll() is None:
        process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    with contextlib.suppress(ProcessLookupError):  # its helpers may outlive it by minutes, and hold its log
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _find_warm(name: str, home: Path) -> str:
    """A command of Flower's that is forked from the warm process, if there ever was one."""
    found = home / "bin" / name
    return str(found) if found.exists() else find_command(name)


def _start(
    words: Sequence[str], home: Path, log: Path, folder: Path, *sockets: socket.socket
) -> subprocess.Popen[bytes]:
    """A process that ends with this one, and is not in the way of Ctrl-C; it is handed these open sockets."""
    home.mkdir(exist_ok=True)
    with log.open("ab") as file:
        return subprocess.Popen(
            words, env=make_environment(home), cwd=folder, stdin=subprocess.DEVNULL, stdout=file,
            stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=_end_with_parent if _libc else None,
            pass_fds=[each.fileno() for each in sockets],
        )  # fmt: skip


def start_warm(role: str, home: Path, log: Path, folder: Path) -> subprocess.Popen[bytes]:
    """The process from which Flower's commands are forked, and files named as these commands that ask it to."""
    place = home / "bin"
    place.mkdir(parents=True, exist_ok=True)
    script = [sys.executable, "-I", "-S", handover.__file__, str(home / "warm")]
    for name in warm.COMMANDS[role]:
        command = shlex.join([*script, find_command(name)])
        storage.write_atomic(place / name, f'#!/bin/sh\nexec {command} "$@"\n'.encode())
        (place / name).chmod(0o700)
    with listen(home / "warm") as listener:  # open at once: who comes early waits in line
        words = [sys.executable, "-m", warm.__name__, role, str(listener.fileno())]
        return _start(words, home, log, folder, listener)


def start_executor(
    home: Path, door: socket.socket, above: subprocess.Popen[bytes], log: Path, folder: Path
) -> subprocess.Popen[bytes]:
    """Flower's process that starts apps, as the door before its server or node says; it ends with the one above."""
    host, port = door.getsockname()[:2]
    words = [_find_warm("flower-superexec", home), "--insecure", "--runtime-api-address", f"{host}:{port}",
             "--parent-pid", str(above.pid)]  # fmt: skip
    return _start(words, home, log, folder)


def _end_with_parent() -> None:
    assert _libc is not None
    _libc.prctl(_PARENT_DEATH, int(signal.SIGTERM))


# -------------------------------------------------------------------------------------------- the server


def start_link(folder: DeployFolder, about: Deployment, port: int) -> subprocess.Popen[bytes]:
    """Flower's server process, which carries messages, on the loopback address alone; it keeps nothing on disk."""
    words = [find_command("flower-superlink"), "--host", "127.0.0.1", "--port", str(port), "--isolation", "process",
             "--disable-runtime-dependency-installation"]  # fmt: skip
    if about.secure:
        at = folder.server
        words += ["--ssl-ca-certfile", str(at / "ca.crt"), "--ssl-certfile", str(at / "server.crt"), "--ssl-keyfile",
                  str(at / "server.key"), "--enable-supernode-auth"]  # fmt: skip
    else:
        words.append("--insecure")
    folder.home.mkdir(exist_ok=True)
    _write_connection(folder, about, port)
    return _start(words, folder.home, folder.link_log, folder.server)


def _write_connection(folder: DeployFolder, about: Deployment, port: int) -> None:
    own: dict[str, Any] = {"address": f"127.0.0.1:{port}"}
    own |= {"root-certificates": str(folder.server / "ca.crt")} if about.secure else {"insecure": True}
    text = tomli_w.dumps({"superlink": {"default": CONNECTION, CONNECTION: own}})
    storage.write_atomic(folder.home / "config.toml", text.encode())


def call_flower(folder: DeployFolder, *words: str, seconds: float = 120) -> Any:
    """What a command of Flower's answers, as JSON."""
    try:
        done = subprocess.run(
            [_find_warm("flwr", folder.home), *words, "--format", "json"], env=make_environment(folder.home),
            cwd=folder.server, capture_output=True, text=True, timeout=seconds,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise InputError(f"Flower did not answer '{words[0]}' within {seconds:g} s; see {folder.link_log}") from None
    try:
        start = done.stdout.index("{")
        return json.loads(done.stdout[start:])
    except ValueError:
        said = (done.stdout + done.stderr).strip().splitlines()
        raise InputError(f"Flower refused '{words[0]}': {said[-1] if said else 'it says nothing'}") from None


def is_listening(about: Deployment) -> bool:
    """Whether somebody answers at the server's address."""
    return _answers(*split_address(about.address, about.secure))


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=2):
            return True
    except OSError:
        return False


def wait_for_link(folder: DeployFolder, port: int, link: subprocess.Popen[bytes], seconds: float = 60) -> None:
    """Until Flower's server answers."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if link.poll() is not None:
            raise InputError(f"Flower's server ended at once; see the end of {folder.link_log}")
        if _answers("127.0.0.1", port):
            return
        time.sleep(0.1)
    raise InputError(f"Flower's server did not answer at port {port} within {seconds:g} s; see {folder.link_log}")


def register_sites(folder: DeployFolder, about: Deployment) -> None:
    """Makes the sites' keys known to a server that was just started, and keeps which node is which site."""
    known = {}
    for name in about.sites:
        answer = call_flower(folder, "supernode", "register", str(folder.site(name).path / "key.pub"), CONNECTION)
        if "node-id" not in answer:
            raise InputError(f"Flower refused the key of site '{name}': {answer.get('error-message', answer)}")
        known[name] = int(answer["node-id"])
    storage.write_atomic(folder.nodes_file, json.dumps(known).encode())


def read_nodes(folder: DeployFolder) -> dict[str, int]:
    """Which node is which site, where keys say it."""
    known: dict[str, int] = json.loads(folder.nodes_file.read_text()) if folder.nodes_file.exists() else {}
    return known


def list_nodes(folder: DeployFolder) -> dict[int, dict[str, Any]]:
    """What the server knows of nodes, by their numbers."""
    answer = call_flower(folder, "supernode", "ls", CONNECTION)
    if not answer.get("success"):
        raise InputError(f"Flower refused the list of sites: {answer.get('error-message', answer)}")
    return {int(node["node-id"]): node for node in answer["nodes"]}


def start_run(folder: DeployFolder, run: str) -> str:
    """Gives Flower the app; the number of its run."""
    answer = call_flower(folder, "run", str(folder.app), CONNECTION, "-c", f'run="{run}"')
    if not answer.get("success") or "run-id" not in answer:
        raise InputError(f"Flower refused the run: {answer.get('error-message', answer)}")
    return str(answer["run-id"])


def stop_run(folder: DeployFolder, number: str) -> None:
    """Ends Flower's run of this number."""
    answer = call_flower(folder, "stop", number, CONNECTION)
    if not answer.get("success"):
        raise InputError(f"Flower refused to stop the run: {answer.get('error-message', answer)}")


# ----------------------------------------------------------------------------------------------- a site


def start_node(folder: SiteFolder, about: AboutSite, port: int) -> subprocess.Popen[bytes]:
    """Flower's process at a site, which its apps reach at this port."""
    split_address(about.server, about.secure)
    words = [find_command("flower-supernode"), "--superlink", about.server, "--host", "127.0.0.1", "--port", str(port),
             "--isolation", "process", "--node-config", f'site="{about.name}"']  # fmt: skip
    if about.secure:
        words += ["--root-certificates", str(folder.ca), "--auth-supernode-private-key", str(folder.key)]
    else:
        words.append("--insecure")
    return _start(words, folder.home, folder.log, folder.path)
