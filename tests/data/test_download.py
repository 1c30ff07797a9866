import hashlib
import http.server
import threading
import time

import pytest

from unskew.base.cache import cache_dir
from unskew.data.files.download import TransferError, fetch
from unskew.data.files.finder import Finder, Needed

CONTENT = bytes(range(256)) * 5000
MD5 = "md5:" + hashlib.md5(CONTENT).hexdigest()
SHA256 = "sha256:" + hashlib.sha256(CONTENT).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        server.asked.append((self.path, self.headers.get("Range")))
        if self.path.endswith("missing"):
            self.send_error(404)
            return
        start = 0
        if server.ranges and self.headers.get("Range"):
            start = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
        if start >= len(CONTENT):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(CONTENT)}")
            self.end_headers()
            return
        body = CONTENT[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut = server.cuts.pop(0) if server.cuts else None
        self.wfile.write(body[:cut])
        if cut:
            self.wfile.flush()
            time.sleep(server.stall)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.asked, made.cuts, made.ranges, made.stall = [], [], True, 0.0
    made.url = f"http://127.0.0.1:{made.server_port}"
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


@pytest.mark.parametrize("checksum", [MD5, SHA256, None])
def test_fresh_download_reports_progress(server, tmp_path, checksum):
    seen = []
    fetch(f"{server.url}/a", tmp_path / "deep" / "a", checksum, lambda *news: seen.append(news))
    assert (tmp_path / "deep" / "a").read_bytes() == CONTENT
    assert seen[-1] == ("a", len(CONTENT), len(CONTENT))
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["a"]


def test_resumes_what_an_earlier_run_left(server, tmp_path):
    (tmp_path / "a.part").write_bytes(CONTENT[:1000])
    fetch(f"{server.url}/a", tmp_path / "a", MD5)
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert server.asked == [("/a", "bytes=1000-")]


def test_resumes_by_itself_after_a_cut(server, tmp_path):
    server.cuts = [5000, 7000]
    fetch(f"{server.url}/a", tmp_path / "a", MD5)
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert [asked for _, asked in server.asked] == [None, "bytes=5000-", "bytes=12000-"]


def test_resumes_after_a_stall(server, tmp_path, monkeypatch):
    monkeypatch.setattr("unskew.data.files.download.CONNECT_SECONDS", 0.3)
    server.cuts, server.stall = [5000], 1.0
    fetch(f"{server.url}/a", tmp_path / "a", MD5)
    assert (tmp_path / "a").read_bytes() == CONTENT


def test_keeps_the_part_when_cut_too_often(server, tmp_path):
    server.cuts = [10, 10, 10]
    with pytest.raises(TransferError, match=f"cut at 30 of {len(CONTENT)} bytes"):
        fetch(f"{server.url}/a", tmp_path / "a", MD5)
    assert (tmp_path / "a.part").read_bytes() == CONTENT[:30]
    assert not (tmp_path / "a").exists()


def test_starts_again_when_the_server_ignores_ranges(server, tmp_path):
    server.ranges = False
    (tmp_path / "a.part").write_bytes(b"x" * 1000)
    fetch(f"{server.url}/a", tmp_path / "a", MD5)
    assert (tmp_path / "a").read_bytes() == CONTENT


def test_complete_part_is_only_verified(server, tmp_path):
    (tmp_path / "a.part").write_bytes(CONTENT)
    fetch(f"{server.url}/a", tmp_path / "a", MD5)
    assert (tmp_path / "a").read_bytes() == CONTENT


def test_too_long_part_is_dropped(server, tmp_path):
    (tmp_path / "a.part").write_bytes(CONTENT + b"more")
    fetch(f"{server.url}/a", tmp_path / "a", MD5)
    assert (tmp_path / "a").read_bytes() == CONTENT


def test_wrong_checksum_deletes_and_says_both(server, tmp_path, refused):
    wrong = "md5:" + "0" * 32
    refused(lambda: fetch(f"{server.url}/a", tmp_path / "a", wrong), "0" * 32, MD5[4:], "a", "deleted")
    assert list(tmp_path.iterdir()) == []


def test_only_http(tmp_path):
    with pytest.raises(TransferError, match="not an http"):
        fetch(f"file://{tmp_path}/a", tmp_path / "b")


def test_finder_downloads_from_the_mirror_into_the_cache(server, monkeypatch):
    monkeypatch.setenv("UNSKEW_MIRROR", f"{server.url}/mirror/")
    (path,) = Finder()("toy", [Needed("a.bin", "http://unused.invalid/a.bin", checksum=MD5)])
    assert path == cache_dir() / "toy" / "a.bin"
    assert server.asked == [("/mirror/toy/a.bin", None)]
    assert Finder(offline=True)("toy", [Needed("a.bin")]) == [path]


def test_finder_says_what_is_missing_and_where_to_put_it(server, monkeypatch, refused, tmp_path):
    needed = [Needed("missing", f"{server.url}/missing")]
    refused(lambda: Finder(tmp_path)("toy", needed), "toy: missing", server.url, "404", tmp_path / "toy", "UNSKEW_DATA")
    refused(lambda: Finder(offline=True)("toy", needed), "toy: missing", "downloads are off", cache_dir() / "toy")
    refused(lambda: Finder()("toy", [Needed("b")]), "toy: b", "no official download")
    monkeypatch.setenv("UNSKEW_MIRROR", "http://127.0.0.1:9")
    refused(lambda: Finder()("toy", needed), "http://127.0.0.1:9/toy/missing", "refused")


def test_finder_order_and_layouts(tmp_path, monkeypatch, refused):
    given, variable, cache = tmp_path / "given", tmp_path / "variable", cache_dir()
    monkeypatch.setenv("UNSKEW_DATA", str(variable))
    for place in (cache / "toy", variable / "other", given):
        place.mkdir(parents=True, exist_ok=True)
        (place / "a").touch()
    needed = [Needed("a")]
    assert Finder(given)("toy", needed, ["other"]) == [given / "a"]
    assert Finder()("toy", needed, ["other"]) == [variable / "other" / "a"]
    assert Finder()("toy", needed) == [cache / "toy" / "a"]
    (variable / "toy").mkdir()
    (variable / "toy" / "toy_small.npz").touch()
    assert Finder()("toy", needed, instead="toy*.npz") == [variable / "toy" / "toy_small.npz"]
    refused(lambda: Finder(tmp_path / "nowhere"), "nowhere", "does not exist")
