"""Tiny files in the formats of the official data sets."""

import io
import tarfile
import zipfile

import numpy as np
from PIL import Image

from unskew.data.sources import load

RNG = np.random.default_rng(0)


def pixels(*shape):
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def offline(spec, root):
    return load(spec, root, offline=True)


def tar_of(path, members):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def zip_of(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def unpack(members, root):
    for name, content in members.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def encoded(array, kind="PNG"):
    out = io.BytesIO()
    Image.fromarray(array).save(out, kind)
    return out.getvalue()


def save_digits_npz(path):
    x, y = pixels(10, 8, 8, 3), np.arange(10)
    np.savez(path, train_images=x, train_labels=y, test_images=x, test_labels=y)
