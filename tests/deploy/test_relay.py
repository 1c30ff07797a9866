"""The doors before Flower's server, with a small server in Flower's place."""

import socket
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("flwr")
import httpx

from unskew.base.errors import InputError
from unskew.deploy import certificates
from unskew.deploy.flower import relay as module
from unskew.deploy.flower.relay import Door, Relay, open_listener

PROTOBUF = {"content-type": "application/x-protobuf", "x-signature": "abc"}


class Server:
    """Answers as Flower's does: nothing, until something was pushed; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, bytes, dict[str, str]]] = []
        self.waiting: dict[str, bytes] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.asked.append((self.path, body, dict(self.headers)))
                name = self.path.rpartition("/")[2]
                if name.startswith("push-"):
                    outer.waiting["pull-messages"] = body
                answer = outer.waiting.get(name, b"" if name == "pull-messages" else b"seen: " + body)
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *words: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def paths(self) -> list[str]:
        return [path for path, _, _ in self.asked]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def flower():
    server = Server()
    yield server
    server.close()


@pytest.fixture
def opened(flower):
    """Two doors: their addresses, what was said."""
    fleet, apps = open_listener("127.0.0.1"), open_listener("127.0.0.1")
    said: list[str] = []
    relay = Relay(flower.address, [Door(fleet, "fleet", 2.0), Door(apps, "runtime", 0.3)], said.append, period=30.0)
    relay.start()
    yield f"http://127.0.0.1:{fleet.getsockname()[1]}", f"http://127.0.0.1:{apps.getsockname()[1]}", said
    relay.close()


def test_bytes_and_headers_pass_unchanged(flower, opened):
    body = bytes(range(256)) * 20_000
    answer = httpx.post(f"{opened[0]}/v1/fleet/confirm-message-received", content=body, headers=PROTOBUF)
    assert answer.status_code == 200 and answer.content == b"seen: " + body
    assert answer.headers["content-type"] == "application/x-protobuf"
    path, seen, headers = flower.asked[0]
    assert path == "/v1/fleet/confirm-message-received" and seen == body
    assert headers["x-signature"] == "abc" and headers["content-length"] == str(len(body))


@pytest.mark.parametrize(
    "request_line",
    [
        "POST /v1/control/start-run", "POST /v1/runtime/acquire-task", "POST /v1/fleet/../control/start-run",
        "POST /v1/fleet/%2e%2e/control/start-run", "POST /v1/fleet/x/../../control/start-run", "POST //v1/fleet/x",
        "POST /v1/fleet/pull-messages?node=1", "POST /v1/fleet/", "GET /v1/fleet/pull-messages", "GET /docs",
        "POST http://127.0.0.1/v1/control/start-run", "POST /V1/FLEET/x",
    ],
)  # fmt: skip
def test_nothing_else_is_let_through(flower, opened, request_line):
    host, port = opened[0].removeprefix("http://").split(":")
    for _ in range(2):
        with socket.create_connection((host, int(port)), timeout=10) as raw:
            raw.sendall(
                f"{request_line} HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\nconnection: close\r\n\r\nab".encode()
            )
            assert raw.makefile("rb").readline().split()[1] == b"403"
    assert flower.asked == []
    assert len(opened[2]) == 1 and "refused" in opened[2][0] and "127.0.0.1" in opened[2][0]


def test_large_requests_and_such_without_a_length_are_refused(flower, opened):
    host, port = opened[0].removeprefix("http://").split(":")
    for head, status in ((f"content-length: {module.LIMIT + 1}", b"413"), ("transfer-encoding: chunked", b"411")):
        with socket.create_connection((host, int(port)), timeout=10) as raw:
            raw.sendall(f"POST /v1/fleet/push-object HTTP/1.1\r\nhost: a\r\n{head}\r\n\r\n".encode())
            assert raw.makefile("rb").readline().split()[1] == status
    assert flower.asked == []


def test_who_asks_for_messages_waits_until_one_is_pushed(flower, opened):
    found = []
    asking = threading.Thread(
        target=lambda: found.append(httpx.post(f"{opened[0]}/v1/fleet/pull-messages", content=b"me", timeout=20))
    )
    asking.start()
    while not flower.asked:
        time.sleep(0.01)
    time.sleep(0.2)
    assert flower.paths() == ["/v1/fleet/pull-messages"]  # asked once, and held
    httpx.post(f"{opened[1]}/v1/runtime/push-messages", content=b"work")
    asking.join(1.5)
    assert found[0].content == b"work"


def test_an_empty_answer_is_given_when_the_time_is_over(flower, opened):
    answer = httpx.post(f"{opened[1]}/v1/runtime/pull-messages", content=b"me", timeout=40)
    assert answer.status_code == 200 and answer.content == b""


def test_nothing_is_fetched_for_one_who_has_gone(flower, opened):
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{opened[0]}/v1/fleet/pull-messages", content=b"me", timeout=0.3)
    time.sleep(0.2)
    httpx.post(f"{opened[1]}/v1/runtime/push-messages", content=b"work")
    time.sleep(0.3)
    assert flower.paths().count("/v1/fleet/pull-messages") == 1


def test_a_message_that_was_lost_on_its_way_is_given_again(flower, opened):
    address = f"{opened[0]}/v1/fleet/"

    def ask(name, key="north"):
        return httpx.post(address + name, content=b"me", headers={"flwr-public-key": key}, timeout=20).content

    flower.waiting["pull-messages"] = b"work"
    assert ask("pull-messages") == b"work"
    flower.waiting.clear()  # it is handed out once
    httpx.post(address + "send-node-heartbeat", content=b"me", headers={"flwr-public-key": "north"})
    assert ask("pull-messages") == b"work"
    flower.waiting["pull-messages"] = b"more"
    assert ask("pull-messages") == b"more"
    flower.waiting.clear()
    assert ask("pull-object").startswith(b"seen")  # it acts on it
    began = time.monotonic()
    assert ask("pull-messages") == b"" and time.monotonic() - began > 1.5  # held as ever


def test_a_site_that_comes_back_is_missed_first(flower, opened, monkeypatch):
    """Else nobody would learn that it has forgotten what it was asked for."""
    monkeypatch.setattr(module, "MARGIN", 0.5)
    monkeypatch.setitem(module._SIGNS, "send-node-heartbeat", 2.0)

    def ask(name, key="north"):
        began = time.monotonic()
        httpx.post(f"{opened[0]}/v1/fleet/{name}", content=b"me", headers={"flwr-public-key": key}, timeout=20)
        return time.monotonic() - began

    assert ask("activate-node") < 1  # nothing was heard of it before
    ask("send-node-heartbeat")
    assert ask("activate-node") < 1  # Flower refuses it: it is still taken to be there
    ask("send-node-heartbeat")
    time.sleep(1.7)
    assert 0.5 < ask("activate-node") < 5  # until half a second after it was missed
    ask("send-node-heartbeat")
    time.sleep(1.7)
    assert ask("activate-node", "south") < 0.45  # another's moment
    time.sleep(1)
    assert ask("activate-node") < 0.45  # long gone
    ask("deactivate-node")
    assert 0.3 < ask("activate-node") < 5


def test_flower_misses_sites_when_it_is_said_to():
    from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, HEARTBEAT_PATIENCE

    assert HEARTBEAT_DEFAULT_INTERVAL * HEARTBEAT_PATIENCE == module.MISSED


def test_closing_lets_those_go_who_are_held(flower, caplog):
    listener = open_listener("127.0.0.1")
    relay = Relay(flower.address, [Door(listener, "fleet", 30.0)], lambda text: None, period=30.0)
    relay.start()
    found = []
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/fleet/pull-messages"
    asking = threading.Thread(target=lambda: found.append(httpx.post(address, content=b"me", timeout=20)))
    asking.start()
    while not flower.asked:
        time.sleep(0.01)
    began = time.monotonic()
    relay.close()
    asking.join(5)
    assert found[0].content == b"" and time.monotonic() - began < 5
    assert not relay.works and not caplog.records


def test_a_server_that_is_down_is_a_bad_gateway(flower, opened):
    flower.close()
    assert httpx.post(f"{opened[0]}/v1/fleet/push-object", content=b"a").status_code == 502


def test_a_door_speaks_tls_with_its_own_certificate(flower, tmp_path):
    certificates.make_all(tmp_path, [], "127.0.0.1")
    listener = open_listener("127.0.0.1")
    door = Door(listener, "fleet", 1.0, (tmp_path / "server.crt", tmp_path / "server.key"))
    relay = Relay(flower.address, [door], lambda text: None)
    relay.start()
    try:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        trust = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
        assert httpx.post(f"https://{address}/v1/fleet/x", content=b"a", verify=trust).content == b"seen: a"
        with pytest.raises(httpx.HTTPError):
            httpx.post(f"http://{address}/v1/fleet/x", content=b"a")
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.post(f"https://{address}/v1/fleet/x", content=b"a")
    finally:
        relay.close()


def test_an_address_that_is_taken_is_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(InputError, match="cannot listen at"):
        open_listener("127.0.0.1", taken.getsockname()[1])
