"""The server that stays: Flower's link, which carries messages, started again when it ends."""

from __future__ import annotations

import time
from collections.abc import Callable

from unskew.base.errors import InputError
from unskew.deploy import presence
from unskew.deploy.flower.processes import end, is_listening, register_sites, split_address, start_link, wait_for_link
from unskew.deploy.folder import DeployFolder

_SOON = 20.0
"""Seconds: a link that ends earlier will not be better the next time."""


def serve(folder: DeployFolder, say: Callable[[str], None]) -> None:
    """Works until it is interrupted."""
    about = folder.read()
    split_address(about.address, about.secure)
    with presence.hold(folder.lock, "this deployment's server"):
        if is_listening(about):
            raise InputError(f"another program listens at {about.address}; end it, or change address in deploy.toml")
        while True:
            began = time.monotonic()
            link = start_link(folder, about)
            try:
                wait_for_link(folder, about, link)
                if about.secure:
                    register_sites(folder, about)
                say(f"listening at {about.address} for {', '.join(about.sites)}")
                while link.poll() is None:
                    time.sleep(0.5)
            finally:
                end(link)
            if time.monotonic() - began < _SOON:
                raise InputError(f"Flower's server ended at once; see the end of {folder.link_log}")
            say("Flower's server has ended; it is started again")
