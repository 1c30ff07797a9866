import numpy as np

from unskew.data.files.decoded_cache import load_or_decode


def test_decoded_until_the_file_changes(tmp_path, monkeypatch, caplog):
    file, calls = tmp_path / "a", []

    def decode():
        calls.append(1)
        return {"x": np.arange(3)}

    file.write_text("one")
    for _ in range(2):
        assert load_or_decode(file, "v", decode)["x"].tolist() == [0, 1, 2]
    assert len(calls) == 1
    load_or_decode(file, "w", decode)
    file.write_text("other")
    load_or_decode(file, "v", decode)
    assert len(calls) == 3
    monkeypatch.setenv("UNSKEW_CACHE", str(file / "not a folder"))
    assert load_or_decode(file, "v", decode)["x"].tolist() == [0, 1, 2]


def test_damaged_cache_is_decoded_again(tmp_path, monkeypatch):
    monkeypatch.setenv("UNSKEW_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "a"
    file.write_text("one")
    load_or_decode(file, "v", lambda: {"x": np.arange(3)})
    (stored,) = (tmp_path / "cache" / "decoded").iterdir()
    stored.write_bytes(b"oops")
    assert load_or_decode(file, "v", lambda: {"x": np.arange(4)})["x"].tolist() == [0, 1, 2, 3]
