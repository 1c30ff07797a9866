"""The report as a page of this machine alone, built anew from the run folders while runs go on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from unskew.base.errors import InputError, let_pass
from unskew.report.watching import Watching

log = logging.getLogger(__name__)
HERE = "127.0.0.1"
EVERY = 5
"""Seconds after which the page fetches itself again, at least; a page that takes long to build is built less often."""
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"
)
"""The page may run its own script and show its own pictures, and ask nobody for anything."""

Build = Callable[[], str]


class Page:
    """The newest page, not built more often than it makes sense."""

    def __init__(self, folder: Path) -> None:
        self._watching = Watching(folder)
        self._lock = threading.Lock()
        self._made, self._text, self._took = 0.0, "", 0.0

    def read(self) -> str:
        """The page; while runs go on, it fetches itself again."""
        with self._lock:  # several tabs get the same one
            pause = max(EVERY - 1.0, 10 * self._took)
            if not self._text or time.monotonic() - self._made > pause:
                began = time.monotonic()
                self._text = self._build(max(EVERY, round(10 * self._took)))
                self._made = time.monotonic()
                self._took = self._made - began
            return self._text

    def _build(self, refresh: int) -> str:
        view = self._watching.look()
        if not view.runs:
            return _make_notice(view.notes[0], refresh)
        from unskew.report.page import build_page

        try:
            return build_page([self._watching.folder], None if view.over else refresh)
        except InputError as error:  # a run that has just begun has nothing to draw
            return _make_notice(str(error), refresh)


def _make_notice(text: str, refresh: int) -> str:
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="{refresh}">'
        f'<meta name="viewport" content="width=device-width"><title>unskew</title>'
        f'<body style="font: 16px/1.5 system-ui, sans-serif; margin: 2rem">{escape(text)}</body></html>\n'
    )


@contextmanager
def serve_page(folder: Path, port: int = 0) -> Iterator[str]:
    """Serves the report of the runs in a folder to programs of this machine; gives its address."""
    page = Page(folder)
    try:
        server = ThreadingHTTPServer((HERE, port), make_handler(page.read))
    except OSError as error:
        let_pass(error)
        raise InputError(f"cannot serve on port {port}: {error.strerror or error}; choose another --port") from None
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)
    thread.start()
    try:
        yield f"http://{HERE}:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def make_handler(read: Build) -> type[BaseHTTPRequestHandler]:
    """Answers GET of / with the page, and nothing else."""

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "unskew", ""
        timeout = 30

        def do_GET(self) -> None:
            """Answers a request."""
            address: Any = self.server.server_address
            if self.headers.get("Host", "") not in (f"{HERE}:{address[1]}", f"localhost:{address[1]}"):
                self._answer(403, "text/plain", "this page is for this machine only\n")  # DNS rebinding
            elif self.path.partition("?")[0] != "/":
                self._answer(404, "text/plain", "there is only /\n")
            else:
                self._answer_page()

        def _answer_page(self) -> None:
            try:
                text = read()
            except Exception as error:  # the page is beside the work: it must not end the viewer
                log.debug("the page failed", exc_info=True)
                self._answer(500, "text/plain", f"the page cannot be built: {error}\n")
            else:
                self._answer(200, "text/html", text)

        def _answer(self, code: int, kind: str, text: str) -> None:
            data = text.encode()
            self.send_response(code)
            for name, value in (
                ("Content-Type", f"{kind}; charset=utf-8"), ("Content-Length", str(len(data))),
                ("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff"),
                ("Content-Security-Policy", POLICY), ("Referrer-Policy", "no-referrer"),
            ):  # fmt: skip
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing: the terminal shows the runs."""

    return Handler
