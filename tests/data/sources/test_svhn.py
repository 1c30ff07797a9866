import numpy as np
import scipy.io

from data.sources.tiny_files import offline, pixels, save_digits_npz


def test_svhn(tmp_path, refused):
    x, y = pixels(32, 32, 3, 6), np.array([[1], [10], [2], [9], [10], [3]], dtype=np.uint8)
    for part in ("train", "test"):
        scipy.io.savemat(tmp_path / f"{part}_32x32.mat", {"X": x, "y": y})
    data = offline("svhn", tmp_path)
    assert data.train.y.tolist() == [1, 0, 2, 9, 0, 3]
    assert np.array_equal(data.train.x[4].numpy(), x[..., 4].transpose(2, 0, 1))
    whole = (tmp_path / "test_32x32.mat").read_bytes()
    for broken in (whole[: len(whole) // 2], b"<html>", b""):
        (tmp_path / "test_32x32.mat").write_bytes(broken)
        refused(lambda: offline("svhn", tmp_path), "test_32x32.mat", "damaged")


def test_svhn_npz(tmp_path):
    save_digits_npz(tmp_path / "svhn_6k.npz")
    data = offline("svhn", tmp_path)
    assert (len(data.train), len(data.test), data.num_classes, data.shape) == (10, 10, 10, (3, 8, 8))
