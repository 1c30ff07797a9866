import gzip
import hashlib
import struct

import numpy as np
import pytest
import torch

from data.sources.tiny_files import offline, pixels
from unskew.data.sources.mnist import FashionMnist, Mnist


def idx(array):
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(folder, train, labels, zipped=True):
    folder.mkdir(parents=True, exist_ok=True)
    for stem, array in (("train-images-idx3", train), ("train-labels-idx1", labels)):
        for name in (stem, stem.replace("train", "t10k")):
            path = folder / f"{name}-ubyte{'.gz' if zipped else ''}"
            path.write_bytes(gzip.compress(idx(array)) if zipped else idx(array))


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("place", ["mnist", "MNIST/raw", "."])
def test_mnist(tmp_path, zipped, place):
    x, y = pixels(12, 28, 28), np.arange(12, dtype=np.uint8) % 10
    write_idx(tmp_path / place, x, y, zipped)
    data = offline("mnist", tmp_path)
    assert torch.equal(data.train.x[:, 0], torch.from_numpy(x)) and data.train.y.tolist() == y.tolist()
    assert (data.mean, data.std, data.shape) == ((0.1307,), (0.3081,), (1, 28, 28))


def test_damaged_idx(tmp_path, refused):
    x, y = pixels(12, 28, 28), np.zeros(12, dtype=np.uint8)
    write_idx(tmp_path / "mnist", x, y)
    images = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    whole = images.read_bytes()
    for broken, words in [
        (whole[:-30], ["again"]),
        (gzip.compress(idx(x)[:-1]), ["9424", "9423"]),
        (b"<html>", ["IDX"]),
        (gzip.compress(b"\0\0\x08\x03\0"), ["expected"]),
        (b"", ["IDX"]),
    ]:
        images.write_bytes(broken)
        refused(lambda: offline("mnist", tmp_path), images, *words)
    images.write_bytes(gzip.compress(idx(x[:11])))
    refused(lambda: offline("mnist", tmp_path), "11 inputs but 12 labels")


def test_files_of_the_sister_set_are_noticed(tmp_path, refused, monkeypatch):
    y = np.arange(12, dtype=np.uint8) % 10
    write_idx(tmp_path, pixels(12, 28, 28), y)
    monkeypatch.setattr(FashionMnist, "sister", ("mnist", hashlib.sha256(y.tobytes()).hexdigest()))
    refused(lambda: offline("fashion_mnist", tmp_path), "of mnist", "fashion_mnist")
    assert Mnist.sister[0] == "fashion_mnist"
