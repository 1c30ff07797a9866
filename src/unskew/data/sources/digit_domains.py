"""Digits of other domains (SVHN, MNIST-M, USPS) and Office-Caltech-10."""

from __future__ import annotations

import bz2
from pathlib import Path

import numpy as np

from unskew.base.errors import InputError, one_line
from unskew.data.dataset import Dataset, Samples
from unskew.data.files.arrays import BROKEN, to_samples
from unskew.data.files.decoded_cache import Arrays
from unskew.data.files.finder import Finder, Needed
from unskew.data.files.npz import Packed
from unskew.data.sources.base import About, Source, sources

DIGITS = tuple("0123456789")


@sources.register("svhn")
class Svhn(Source):
    """House numbers in street photographs, cropped to one digit, 32x32 colour (without the extra part)."""

    about = About(
        "73,257 train / 26,032 test", 10, (3, 32, 32),
        "http://ufldl.stanford.edu/housenumbers/", "non-commercial use only",
    )  # fmt: skip
    files = (
        Needed(
            "train_32x32.mat",
            "http://ufldl.stanford.edu/housenumbers/train_32x32.mat",
            182040794,
            "md5:e26dedcc434d2e4c54c9b2d4a06d8373",
        ),
        Needed(
            "test_32x32.mat",
            "http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
            64275384,
            "md5:eb5a983be6a315427106f1b164d9cef3",
        ),
    )
    instead = "svhn*.npz"

    def load(self, find: Finder) -> Dataset:
        """The images; label 10 of the official files is the digit 0."""
        mean, std = (0.4376821, 0.4437697, 0.47280442), (0.19803012, 0.20101562, 0.19703614)
        paths = self.paths(find)
        if paths[0].suffix == ".npz":
            return Packed(self.name, paths[0], DIGITS, mean, std).dataset()
        train, test = (_read_mat(path) for path in paths)
        return Dataset(self.name, train, test, DIGITS, mean, std)


def _read_mat(path: Path) -> Samples:
    import scipy.io  # here, as it is slow to import and only these two files need it
    from scipy.io.matlab import MatReadError

    try:
        content: Arrays = scipy.io.loadmat(path, variable_names=["X", "y"])
        x, y = content["X"], content["y"]
    except (*BROKEN, TypeError, MatReadError) as error:
        raise InputError(
            f"{path}: expected a .mat file with X and y, got a damaged or other file ({one_line(error)}); get it again"
        ) from None
    if x.ndim != 4:
        raise InputError(f"{path}: expected X of shape [32, 32, 3, N], got {x.shape}; get the file again")
    return to_samples(x.transpose(3, 0, 1, 2), y.reshape(-1) % 10, str(path))


@sources.register("mnist_m")
class MnistM(Source):
    """MNIST digits blended with colour photographs, 32x32 colour; from an .npz."""

    about = About("59,001 train / 9,001 test when complete", 10, (3, 32, 32), "https://github.com/pumpikano/tf-dann")
    files = (Needed("mnist_m.npz", also=("mnist_m*.npz",)),)

    def load(self, find: Finder) -> Dataset:
        """The images of the .npz."""
        return Packed(self.name, self.paths(find)[0], DIGITS).dataset()


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
        paths = self.paths(find)
        if paths[0].suffix == ".npz":
            return Packed(self.name, paths[0], DIGITS).dataset()
        train, test = (_read_libsvm(path) for path in paths)
        return Dataset(self.name, train, test, DIGITS, (0.5,), (0.5,))


def _read_libsvm(path: Path) -> Samples:
    """Lines of `label 1:value 2:value ...`, labels from 1 and values in -1..1."""
    try:
        rows = [line.split() for line in bz2.decompress(path.read_bytes()).decode("ascii").splitlines()]
        values = np.array([[float(entry.partition(":")[2]) for entry in row[1:]] for row in rows])
        labels = np.array([float(row[0]) - 1 for row in rows])
        pixels = ((values + 1) / 2 * 255).astype(np.uint8).reshape(-1, 16, 16)
    except (*BROKEN, IndexError) as error:
        raise InputError(
            f"{path}: expected bzip2 lines of 'label 1:value ...', got a damaged file ({one_line(error)}); get it again"
        ) from None
    return to_samples(pixels, labels, str(path))


@sources.register("office_caltech10")
class OfficeCaltech10(Source):
    """Ten kinds of office things in four domains, 64x64 colour; from an .npz whose domains become groups."""

    about = About("2,533 images in the domains amazon, caltech10, dslr and webcam", 10, (3, 64, 64))
    files = (Needed("office_caltech10_64.npz", also=("office_caltech10*.npz",)),)

    def load(self, find: Finder) -> Dataset:
        """The images of the .npz, grouped by domain."""
        path = self.paths(find)[0]
        dataset = Packed(self.name, path).dataset()
        if dataset.groups is None:
            raise InputError(f"{path}: expected the arrays train_domains and test_domains; add them")
        return dataset
