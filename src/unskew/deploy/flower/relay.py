"""Stands before Flower's HTTP interfaces: lets through what sites need and nothing else, and waits in their place.

Flower's server has its fleet interface (sites fetch and bring messages), its control interface (runs are started, keys
are registered, without any login) and its runtime interface (apps at work) at one port. That port is on the loopback
address alone; what listens for sites is a door here, which passes on `/v1/fleet/` and refuses the rest.

Whoever finds nothing at Flower's interfaces sleeps for seconds before it asks again. So an answer that says "nothing
yet" is held here for a while, and the question is asked again when something was pushed. Bytes are never changed; an
answer of a kind that is not known here is passed on at once.

Flower hands out a message once. A site that was cut off while it was held would lose it, so the last message for each
site is kept until the site acts on it, and given once more if the site asks anew instead.

Who waits for the answer of a killed site learns of it only while Flower takes the site to be gone. A site that came
back the moment after would never be missed, and waited for until the round's end; it is let in some seconds later.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from unskew.base.errors import InputError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

LIMIT = 1 << 26
"""Bytes of a request; Flower cuts messages into pieces of 5 MB."""
SLOW = 60.0
"""Seconds for which the next bytes of a request or an answer are waited for."""
_HELD_LIMIT = 1 << 16
_NOTHING_YET = {"pull-messages": b"", "acquire-task": b"", "pull-object": b"\x08\x01"}
"""How the interfaces say so: protobuf messages in which nothing is set, and one in which only `object_found` is."""
_HOP = {
    b"accept-encoding",
    b"connection",
    b"keep-alive",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
    b"host",
    b"proxy-connection",
}
_KEY = b"flwr-public-key"
"""The header by which a site is known; Flower has checked its signature when it answers."""
MISSED = 60.0
"""Seconds after a site's last sign of life when Flower takes it to be gone."""
MARGIN = 5.0
"""Seconds around that moment in which it is not let in again; who waits for it asks every second."""
_SIGNS = {"activate-node": MISSED, "send-node-heartbeat": MISSED, "deactivate-node": 0.0}
_MOST_REFUSALS = 1000
_READY = 30.0
_QUIET = 0.05
"""Seconds between two requests of somebody who pushes a message with its parts."""


@dataclass(frozen=True)
class Door:
    """Where is listened, what is let through, and how long an answer that says nothing is held."""

    listener: socket.socket
    interface: str
    """The part of the path after /v1/ that is let through."""
    hold: float
    certificate: tuple[Path, Path] | None = None
    """Certificate and key, if it speaks TLS."""


def open_listener(host: str, port: int = 0) -> socket.socket:
    """A socket at this address, or at a free port of it."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise InputError(f"cannot listen at {host}:{port}: {error.strerror or error}; choose another address") from None


class _News:
    """An event that is set when pushing has stopped for a moment: a message is listed before its parts have come."""

    def __init__(self) -> None:
        self.event, self._busy = asyncio.Event(), 0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        self._busy += 1
        if self._timer is not None:
            self._timer.cancel()

    def end(self) -> None:
        self._busy -= 1
        if not self._busy:
            self._timer = asyncio.get_running_loop().call_later(_QUIET, self.wake)

    def wake(self) -> None:
        self.event.set()
        self.event = asyncio.Event()


class Relay:
    """Doors before one server of Flower's; they work in a thread of their own until `close`."""

    def __init__(
        self, target: str, doors: Sequence[Door], say: Callable[[str], None], *, ca: Path | None = None,
        period: float = 1.0,
    ) -> None:  # fmt: skip
        """`target`: Flower's own address; `ca` signs its certificate, if it speaks TLS. `period`: how often it is
        asked again where no push through a door gives the reason."""
        self._target = f"{'https' if ca else 'http'}://{target}"
        self._ca, self._doors, self._say, self._period = ca, doors, say, period
        self._refused: set[tuple[str, str]] = set()
        self._servers: list[uvicorn.Server] = []
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="unskew relay", daemon=True)
        self._ready = threading.Event()
        self.closing = False

    def start(self) -> None:
        """Opens the doors."""
        self._thread.start()
        if not self._ready.wait(_READY):
            raise InputError("the doors before Flower's server did not open; look at the server's memory and files")

    @property
    def works(self) -> bool:
        """Whether the doors are open."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Closes the doors; whoever was held goes with an empty answer, what else was begun gets a second."""
        self.closing = True
        with contextlib.suppress(RuntimeError):  # they have closed already
            self._loop.call_soon_threadsafe(self._release)
        self._thread.join(10)

    def _release(self) -> None:
        for news in self._news.values():
            news.wake()
        for server in self._servers:
            server.should_exit = True

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._news = {door.interface: _News() for door in self._doors}
        verify = ssl.create_default_context(cafile=str(self._ca)) if self._ca else False
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=50)
        timeout = httpx.Timeout(SLOW, pool=None)
        async with httpx.AsyncClient(verify=verify, limits=limits, timeout=timeout, trust_env=False) as self._flower:
            self._servers = [self._make_server(door) for door in self._doors]
            work = [
                server.serve(sockets=[door.listener])
                for server, door in zip(self._servers, self._doors, strict=True)
            ]  # fmt: skip
            self._ready.set()
            await asyncio.gather(*work)

    def _make_server(self, door: Door) -> uvicorn.Server:
        certificate, key = door.certificate or (None, None)
        return uvicorn.Server(uvicorn.Config(
            _Passage(self, door), ssl_certfile=certificate, ssl_keyfile=key, lifespan="off", interface="asgi3",
            log_config=None, access_log=False, server_header=False, date_header=False, proxy_headers=False,
            timeout_keep_alive=75, timeout_graceful_shutdown=1, limit_concurrency=1000, ws="none",
        ))  # fmt: skip

    # ------------------------------------------------------------------------------------- for passages

    def note_refusal(self, who: str, what: str, allowed: str) -> None:
        """Says once for each address and path that somebody asked for what is not let through."""
        if (who, what) not in self._refused and len(self._refused) < _MOST_REFUSALS:
            self._refused.add((who, what))
            self._say(f"refused {what} from {who}: only /v1/{allowed}/ is let through")

    @contextlib.contextmanager
    def pushing(self, interface: str) -> Iterator[None]:
        """While something is pushed through the door of this interface."""
        others = [news for at, news in self._news.items() if at != interface]
        for news in others:
            news.begin()
        try:
            yield
        finally:
            for news in others:
                news.end()

    def find_news(self, interface: str) -> asyncio.Event:
        """What is set when others have pushed something that this door's guests may wait for."""
        return self._news[interface].event

    async def wait(self, news: asyncio.Event, seconds: float) -> None:
        """Until there is news, or for the usual time, or for so long."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(news.wait(), min(self._period, seconds))

    async def ask(self, path: str, headers: list[tuple[bytes, bytes]], content: Any) -> httpx.Response:
        """Flower's answer, of which the body is still to be read."""
        request = httpx.Request("POST", self._target + path, headers=headers, content=content)
        return await self._flower.send(request, stream=True)


class _Refused(Exception):
    """A request that is not passed on: its status, and why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class _Passage:
    """What happens at one door, as an ASGI application."""

    def __init__(self, relay: Relay, door: Door) -> None:
        self._relay, self._door = relay, door
        self._unread: dict[bytes, httpx.Response] = {}
        """Messages that sites were given and have not acted on yet, by their keys."""
        self._gone_at: dict[bytes, float] = {}
        """When Flower takes sites to be gone if nothing more is heard of them, by their keys."""
        self._allowed = re.compile(rf"/v1/{door.interface}/([a-z-]+)")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._pass_on(scope, receive, send)
        except _Refused as error:
            await _answer(send, error.status, str(error))
        except httpx.TimeoutException:
            await _answer(send, 504, "Flower's server does not answer")
        except httpx.TransportError:
            await _answer(send, 502, "Flower's server cannot be reached")

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["raw_path"].decode("ascii", "replace")
        found = self._allowed.fullmatch(path)
        if scope["method"] != "POST" or scope["query_string"] or found is None:
            client = scope.get("client") or ("somebody",)
            self._relay.note_refusal(str(client[0]), f"{scope['method']} {path[:200]!r}", self._door.interface)
            raise _Refused(403, "this is not let through")
        given = dict(scope["headers"])
        length = given.get(b"content-length", b"")
        if not length.isdigit():
            raise _Refused(411, "expected the length of the content")
        if int(length) > LIMIT:
            raise _Refused(413, f"{int(length)} bytes, expected at most {LIMIT}")
        headers = [(name, value) for name, value in scope["headers"] if name not in _HOP]
        if found[1] not in ("pull-messages", "send-node-heartbeat"):
            self._unread.pop(given.get(_KEY, b""), None)
        if found[1] == "activate-node":
            await self._let_be_missed(given.get(_KEY, b""))
        nothing = _NOTHING_YET.get(found[1])
        if nothing is None or int(length) > _HELD_LIMIT:
            is_push = found[1].startswith("push-")
            with self._relay.pushing(self._door.interface) if is_push else contextlib.nullcontext():
                response = await self._relay.ask(path, headers, _read_body(receive))
            if response.status_code == 200 and found[1] in _SIGNS and _KEY in given:
                self._gone_at[given[_KEY]] = asyncio.get_running_loop().time() + _SIGNS[found[1]]
            await _hand_back(response, send)
            return
        content = b"".join([part async for part in _read_body(receive)])
        held = await self._wait_for_more(path, headers, content, receive, nothing)
        if held is not None and found[1] == "pull-messages" and _KEY in given:
            held = await self._keep_until_read(given[_KEY], held)
        if held is not None:
            await _hand_back(held, send)

    async def _let_be_missed(self, key: bytes) -> None:
        """Waits out the moment when Flower takes this site to be gone."""
        left = self._gone_at.get(key, 0.0) + MARGIN - asyncio.get_running_loop().time()
        if 0 < left < 2 * MARGIN:
            await asyncio.sleep(left)

    async def _wait_for_more(
        self, path: str, headers: list[tuple[bytes, bytes]], content: bytes, receive: Receive, nothing: bytes
    ) -> httpx.Response | None:
        """The first answer that says something, or the last one in time; None if nobody waits for it any more."""
        unread = dict(headers).get(_KEY, b"") in self._unread
        gone = asyncio.ensure_future(_wait_for_end(receive))
        now = asyncio.get_running_loop().time
        deadline = now() + self._door.hold
        try:
            while not gone.done():
                news = self._relay.find_news(self._door.interface)
                response = await self._relay.ask(path, headers, content)
                size = int(response.headers.get("content-length", len(nothing) + 1))
                if response.status_code != 200 or size > len(nothing):
                    return response
                if await response.aread() != nothing or now() >= deadline or self._relay.closing or unread:
                    return response
                await self._relay.wait(news, deadline - now())
        finally:
            gone.cancel()
        return None

    async def _keep_until_read(self, key: bytes, response: httpx.Response) -> httpx.Response:
        """The answer, or, if it says nothing, the one before that this site has not acted on."""
        if response.status_code != 200:
            return response
        if not await response.aread():
            return self._unread.pop(key, response)
        self._unread[key] = response
        return response


async def _read_body(receive: Receive) -> AsyncIterator[bytes]:
    more = True
    while more:
        try:
            message = await asyncio.wait_for(receive(), SLOW)
        except asyncio.TimeoutError:
            raise _Refused(408, "the request does not come") from None
        if message["type"] == "http.disconnect":
            raise _Refused(400, "the request has no end")
        yield message.get("body", b"")
        more = message.get("more_body", False)


async def _wait_for_end(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _hand_back(response: httpx.Response, send: Send) -> None:
    headers = [(name.lower(), value) for name, value in response.headers.raw if name.lower() not in _HOP]
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    if response.is_stream_consumed:
        await send({"type": "http.response.body", "body": response.content})
        return
    try:
        async for part in response.aiter_raw():
            await send({"type": "http.response.body", "body": part, "more_body": True})
    finally:
        await response.aclose()
    await send({"type": "http.response.body", "body": b""})


async def _answer(send: Send, status: int, why: str) -> None:
    body = why.encode()
    head = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
    with contextlib.suppress(RuntimeError):  # an answer had begun
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": body})
