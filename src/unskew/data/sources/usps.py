"""USPS: digits scanned from envelopes, in LIBSVM's text format."""

from __future__ import annotations

import bz2
from pathlib import Path

import numpy as np

from unskew.base.errors import InputError, one_line
from unskew.data.dataset import Dataset, Samples
from unskew.data.files.arrays import UNREADABLE, neutral_scale, to_samples
from unskew.data.files.finder import Finder, Needed
from unskew.data.files.numpy_files import load_npz_dataset
from unskew.data.sources.base import About, Source, sources

LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass"


@sources.register("usps")
class Usps(Source):
    """Digits scanned from envelopes, 16x16 grey."""

    about = About("7,291 train / 2,007 test", 10, (1, 16, 16), f"{LIBSVM}.html#usps")
    files = (
        Needed("usps.bz2", f"{LIBSVM}/usps.bz2", checksum="md5:ec16c51db3855ca6c91edd34d0e9b197"),
        Needed("usps.t.bz2", f"{LIBSVM}/usps.t.bz2", checksum="md5:8ea070ee2aca1ac39742fdd1ef5ed118"),
    )
    instead = "usps*.npz"

    def load(self, find: Finder) -> Dataset:
        """The images, cut to 8 bits."""
        paths, classes = self.paths(find), tuple("0123456789")
        if paths[0].suffix == ".npz":
            return load_npz_dataset(self.name, paths[0], classes)
        train, test = (_read_libsvm(path) for path in paths)
        return Dataset(self.name, train, test, classes, *neutral_scale(train.x))


def _read_libsvm(path: Path) -> Samples:
    """Lines of `label 1:value 2:value ...`, labels from 1 and values in -1..1."""
    try:
        rows = [line.split() for line in bz2.decompress(path.read_bytes()).decode("ascii").splitlines()]
        values = np.array([[float(entry.partition(":")[2]) for entry in row[1:]] for row in rows])
        labels = np.array([float(row[0]) - 1 for row in rows])
        pixels = ((values + 1) / 2 * 255).astype(np.uint8).reshape(-1, 16, 16)
    except (*UNREADABLE, IndexError) as error:
        raise InputError(
            f"{path}: expected bzip2 lines of 'label 1:value ...', got a damaged file ({one_line(error)}); get it again"
        ) from None
    return to_samples(pixels, labels, str(path))
