import os
import time

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


def test_a_file_exchanged_under_the_same_size_and_time_is_decoded_again(tmp_path):
    file = tmp_path / "a"
    for text, how in (("one", "first"), ("two", "written over"), ("six", "moved over")):
        stat = file.stat() if file.exists() else None
        time.sleep(0.02)  # the clock of file systems may tick only every hundredth of a second
        target = tmp_path / "b" if how == "moved over" else file
        target.write_text(text)
        if stat is not None:
            os.utime(target, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        target.replace(file)
        found = load_or_decode(file, "exchanged", lambda: {"x": np.frombuffer(file.read_bytes(), np.uint8)})
        assert bytes(found["x"]).decode() == text
        assert stat is None or file.stat().st_mtime_ns == stat.st_mtime_ns
