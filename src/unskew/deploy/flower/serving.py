"""The server that stays: Flower's link, which carries messages, behind doors of ours; started again when it ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from unskew.base.errors import InputError
from unskew.deploy import presence
from unskew.deploy.flower.processes import (
    end,
    find_free_port,
    is_listening,
    register_sites,
    split_address,
    start_executor,
    start_link,
    start_warm,
    wait_for_link,
)
from unskew.deploy.flower.relay import Door, Relay, open_listener
from unskew.deploy.folder import DeployFolder, Deployment

HOLD = 20.0
"""Seconds for which a site that asks for messages is kept waiting; its own patience ends at 30."""
APP_HOLD = 2.0
"""The same for the server's app, which looks at its clock in between."""
_SOON = 20.0
"""Seconds: a link that ends earlier will not be better the next time."""


def serve(folder: DeployFolder, say: Callable[[str], None]) -> None:
    """Works until it is interrupted."""
    about = folder.read()
    split_address(about.address, about.secure)
    with presence.hold(folder.lock, "this deployment's server"):
        if is_listening(about):
            raise InputError(f"another program listens at {about.address}; end it, or change address in deploy.toml")
        warm = start_warm("server", folder.home, folder.link_log, folder.server)
        try:
            _supervise(folder, about, say)
        finally:
            end(warm)


def _supervise(folder: DeployFolder, about: Deployment, say: Callable[[str], None]) -> None:
    while True:
        began = time.monotonic()
        with contextlib.ExitStack() as ending:
            port = find_free_port()
            link = start_link(folder, about, port)
            ending.callback(end, link)
            wait_for_link(folder, port, link)
            if about.secure:
                register_sites(folder, about)
            apps = open_listener("127.0.0.1")
            relay = Relay(f"127.0.0.1:{port}", [_open_door(folder, about), Door(apps, "runtime", APP_HOLD)], say,
                          ca=folder.server / "ca.crt" if about.secure else None)  # fmt: skip
            relay.start()
            ending.callback(relay.close)
            ending.callback(end, start_executor(folder.home, apps, link, folder.link_log, folder.server))
            say(f"listening at {about.address} for {', '.join(about.sites)}")
            while link.poll() is None and relay.works:
                time.sleep(0.5)
        if time.monotonic() - began < _SOON:
            raise InputError(f"Flower's server ended at once; see the end of {folder.link_log}")
        say("Flower's server has ended; it is started again")


def _open_door(folder: DeployFolder, about: Deployment) -> Door:
    """Where sites come in."""
    host, port = split_address(about.listen or about.address, about.secure)
    certificate = (folder.server / "server.crt", folder.server / "server.key") if about.secure else None
    return Door(open_listener(host, port), "fleet", HOLD, certificate)
