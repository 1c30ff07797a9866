import pytest

from data.files.served import CONTENT, MD5, SHA256
from unskew.data.files.download import TransferError, fetch


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
