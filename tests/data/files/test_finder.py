from data.files.served import MD5
from unskew.base.cache import cache_dir
from unskew.data.files.finder import Finder, Needed


def test_downloads_from_the_mirror_into_the_cache(server, monkeypatch):
    monkeypatch.setenv("UNSKEW_MIRROR", f"{server.url}/mirror/")
    (path,) = Finder()("toy", [Needed("a.bin", "http://unused.invalid/a.bin", checksum=MD5)])
    assert path == cache_dir() / "toy" / "a.bin"
    assert server.asked == [("/mirror/toy/a.bin", None)]
    assert Finder(offline=True)("toy", [Needed("a.bin")]) == [path]


def test_says_what_is_missing_and_where_to_put_it(server, monkeypatch, refused, tmp_path):
    needed = [Needed("missing", f"{server.url}/missing")]
    refused(lambda: Finder(tmp_path)("toy", needed), "toy: missing", server.url, "404", tmp_path / "toy", "UNSKEW_DATA")
    refused(lambda: Finder(offline=True)("toy", needed), "toy: missing", "downloads are off", cache_dir() / "toy")
    refused(lambda: Finder()("toy", [Needed("b")]), "toy: b", "no official download")
    monkeypatch.setenv("UNSKEW_MIRROR", "http://127.0.0.1:9")
    refused(lambda: Finder()("toy", needed), "http://127.0.0.1:9/toy/missing", "refused")


def test_order_and_layouts(tmp_path, monkeypatch, refused):
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
