"""MNIST and Fashion-MNIST: the IDX format, gzipped or not."""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import zlib
from pathlib import Path
from typing import ClassVar

import numpy as np

from unskew.base.errors import InputError, one_line
from unskew.data.dataset import Dataset
from unskew.data.files.arrays import Array, to_samples
from unskew.data.files.finder import Finder, Needed
from unskew.data.sources.base import About, Source, sources


def read_idx(path: Path) -> Array:
    """The array of bytes in an IDX file."""
    try:
        raw = path.read_bytes()
        content = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read ({one_line(error)}); get the file again") from None
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise InputError(f"{path}: expected an IDX file of bytes, got something else; get the file again")
    start = 4 + 4 * content[3]
    shape = struct.unpack(f">{content[3]}I", content[4:start]) if len(content) >= start else ()
    expected = start + math.prod(shape)
    if not shape or len(content) != expected:
        raise InputError(f"{path}: expected {expected} bytes for shape {shape}, got {len(content)}; get the file again")
    return np.frombuffer(bytearray(content), dtype=np.uint8, offset=start).reshape(shape)


def _four_files(base: str, checksums: dict[str, tuple[int, str]]) -> tuple[Needed, ...]:
    return tuple(
        Needed(f"{stem}.gz", f"{base}/{stem}.gz", size, f"md5:{md5}", also=(stem,))
        for stem, (size, md5) in checksums.items()
    )


class _Idx(Source):
    """Four IDX files: images and labels, for training and test."""

    classes: ClassVar[tuple[str, ...]]
    mean: ClassVar[float]
    std: ClassVar[float]
    sister: ClassVar[tuple[str, str]]
    """The data set whose files have the same names, and the SHA-256 of its training labels."""

    def load(self, find: Finder) -> Dataset:
        """The 28x28 grey images."""
        paths = self.paths(find)
        train_x, train_y, test_x, test_y = (read_idx(path) for path in paths)
        other, labels = self.sister
        if hashlib.sha256(train_y.tobytes()).hexdigest() == labels:
            raise InputError(f"{paths[1]}: this file is of {other}; put those of {self.name} into a folder {self.name}")
        return Dataset(
            self.name,
            to_samples(train_x, train_y, str(paths[0].parent)),
            to_samples(test_x, test_y, str(paths[2].parent)),
            self.classes,
            (self.mean,),
            (self.std,),
        )


@sources.register("mnist")
class Mnist(_Idx):
    """Handwritten digits, 28x28 grey."""

    about = About("60,000 train / 10,000 test", 10, (1, 28, 28), "http://yann.lecun.com/exdb/mnist/", "CC BY-SA 3.0")
    folders = ("MNIST/raw", "MNIST")
    files = _four_files(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        {
            "train-images-idx3-ubyte": (9912422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            "train-labels-idx1-ubyte": (28881, "d53e105ee54ea40749a09fcbcd1e9432"),
            "t10k-images-idx3-ubyte": (1648877, "9fb629c4189551a2d022fa330f9573f3"),
            "t10k-labels-idx1-ubyte": (4542, "ec29112dd5afa0611ce80d1b7f02629c"),
        },
    )
    classes = tuple("0123456789")
    mean, std = 0.1307, 0.3081
    sister = ("fashion_mnist", "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7")


@sources.register("fashion_mnist")
class FashionMnist(_Idx):
    """Articles of clothing, 28x28 grey."""

    about = About(
        "60,000 train / 10,000 test", 10, (1, 28, 28), "https://github.com/zalandoresearch/fashion-mnist", "MIT"
    )
    folders = ("FashionMNIST/raw", "FashionMNIST")
    files = _four_files(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        {
            "train-images-idx3-ubyte": (26421880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            "train-labels-idx1-ubyte": (29515, "25c81989df183df01b3e8a0aad5dffbe"),
            "t10k-images-idx3-ubyte": (4422102, "bef4ecab320f06d8554ea6380940ec79"),
            "t10k-labels-idx1-ubyte": (5148, "bb300cfdad3c16e7a12a480ee83cd310"),
        },
    )
    classes = (
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    )  # fmt: skip
    mean, std = 0.2861, 0.3530
    sister = ("mnist", "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13")
