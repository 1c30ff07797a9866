import bz2

from data.sources.tiny_files import offline, save_digits_npz


def test_usps_official_text(tmp_path, refused):
    line = "3 " + " ".join(f"{i + 1}:{-1 + i / 127.5:.4f}" for i in range(256))
    for name in ("usps.bz2", "usps.t.bz2"):
        (tmp_path / name).write_bytes(bz2.compress(f"{line}\n{line}\n".encode()))
    data = offline("usps", tmp_path)
    assert (data.train.y.tolist(), data.shape, data.train.x[0].max().item()) == ([2, 2], (1, 16, 16), 255)
    (tmp_path / "usps.bz2").write_bytes(b"oops")
    refused(lambda: offline("usps", tmp_path), "usps.bz2", "damaged")


def test_usps_npz(tmp_path):
    save_digits_npz(tmp_path / "usps.npz")
    data = offline("usps", tmp_path)
    assert (len(data.train), len(data.test), data.num_classes, data.shape) == (10, 10, 10, (3, 8, 8))
