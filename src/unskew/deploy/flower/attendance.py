"""A site that stays: its own process with data and network, and Flower's node beside it, started again when it ends."""

from __future__ import annotations

import contextlib
import logging
import re
import subprocess
import time
from collections.abc import Callable

from unskew.base.errors import InputError
from unskew.deploy import presence
from unskew.deploy.channel import LIMIT
from unskew.deploy.daemon import Daemon
from unskew.deploy.flower.processes import end, find_free_port, start_executor, start_node, start_warm
from unskew.deploy.flower.relay import Door, Relay, open_listener
from unskew.deploy.samples import find_source, read_own
from unskew.deploy.site import Site
from unskew.deploy.site_folder import AboutSite, SiteFolder

log = logging.getLogger(__name__)

PATIENCE = 120.0
"""Seconds for which a refused key is offered again: a server keeps the place of a killed node for a minute."""
HOLD, LOOK = 20.0, 0.15
"""Seconds for which the executor of apps is kept waiting for work, and between two looks for it meanwhile."""
_PAUSE = 5.0
LINGER = 15.0
"""Seconds for which a node whose main thread has died may stay: others of its threads may keep it for ever."""
_DIED = "sys.exit(flower_supernode())"
"""What the traceback of its main thread begins with."""
_FATAL = {
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not signed by this folder's ca.crt; copy the site's folder from "
                                 "the server's machine again",
    "[code: 2001]": "it knows sites by their keys, and this folder has none; copy the site's folder again",
    "Unable to parse the private key": "this folder's key is damaged; copy the site's folder again",
}  # fmt: skip
_REFUSED = "[code: 2004]"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def attend(folder: SiteFolder, about: AboutSite, say: Callable[[str], None], *, limit: int = LIMIT) -> None:
    """Works until it is interrupted, or until the server refuses this site for good."""
    own = read_own(find_source(about.data))
    with presence.hold(folder.lock, f"site '{about.name}'"):
        daemon = Daemon(Site(own.samples, folder.state, own.classes, limit=limit), folder.socket)
        say(f"{about.name}: {len(own.samples)} samples; looking for the server at {about.server}")
        working = daemon.start()
        warm = start_warm("site", folder.home, folder.log, folder.path)
        try:
            _Node(folder, about, say).supervise()
        finally:
            end(warm)
            daemon.close()
            working.join(5)  # a thread that is in torch when the process ends takes it down


class _Node:
    """Flower's node, started as often as it takes."""

    def __init__(self, folder: SiteFolder, about: AboutSite, say: Callable[[str], None]) -> None:
        self.folder, self.about, self.say = folder, about, say
        self.refused_since: float | None = None

    def supervise(self) -> None:
        while True:
            began = self.folder.log.stat().st_size if self.folder.log.exists() else 0
            with contextlib.ExitStack() as ending:
                port, apps = find_free_port(), open_listener("127.0.0.1")
                node = start_node(self.folder, self.about, port)
                ending.callback(end, node)
                relay = Relay(f"127.0.0.1:{port}", [Door(apps, "runtime", HOLD)], self.say, period=LOOK)
                relay.start()
                ending.callback(relay.close)
                ending.callback(end, start_executor(self.folder.home, apps, node, self.folder.log, self.folder.path))
                self._watch(node, relay, began)
            self._consider(self._read_log(began))
            time.sleep(_PAUSE)

    def _watch(self, node: subprocess.Popen[bytes], relay: Relay, began: int) -> None:
        """Waits for its end, or until it is as good as ended; says when it is connected."""
        connected, died = False, None
        while node.poll() is None and relay.works:
            time.sleep(0.5)
            said = self._read_log(began)
            if not connected and "SuperNode ID: " in said:
                connected, self.refused_since = True, None
                self.say(f"{self.about.name}: connected to {self.about.server}")
            if _DIED in said:
                died = died or time.monotonic()
                if time.monotonic() - died > LINGER:
                    return

    def _consider(self, said: str) -> None:
        """Goes on, or raises where another try cannot help."""
        for sign, why in _FATAL.items():
            if sign in said:
                raise InputError(f"the server at {self.about.server} cannot be used: {why}")
        now = time.monotonic()
        if _REFUSED not in said:
            self.refused_since = None
            self.say(f"{self.about.name}: Flower's node has ended; it is started again (see {self.folder.log})")
            return
        if self.refused_since is None:
            self.refused_since = now
            self.say(f"{self.about.name}: the server does not take this site yet; trying for {PATIENCE:g} s")
        if now - self.refused_since > PATIENCE:
            raise InputError(
                f"the server at {self.about.server} refuses this site's key; start its process "
                "('unskew deploy server'), which makes the sites' keys known, or copy the site's folder again"
            )

    def _read_log(self, began: int) -> str:
        """What the node has said, the last of it if that is much."""
        with self.folder.log.open("rb") as file:
            file.seek(max(began, self.folder.log.stat().st_size - (1 << 16)))
            return _COLOURS.sub("", file.read().decode(errors="replace"))
