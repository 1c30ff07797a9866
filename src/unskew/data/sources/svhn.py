"""SVHN: house numbers in street photographs, as MATLAB files."""

from __future__ import annotations

from pathlib import Path

from unskew.base.errors import InputError, one_line
from unskew.data.dataset import Dataset, Samples
from unskew.data.files.arrays import UNREADABLE, Arrays, to_samples
from unskew.data.files.finder import Finder, Needed
from unskew.data.files.numpy_files import load_npz_dataset
from unskew.data.sources.base import About, Source, sources


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
        paths, classes = self.paths(find), tuple("0123456789")
        if paths[0].suffix == ".npz":
            return load_npz_dataset(self.name, paths[0], classes, mean, std)
        train, test = (_read_mat(path) for path in paths)
        return Dataset(self.name, train, test, classes, mean, std)


def _read_mat(path: Path) -> Samples:
    import scipy.io  # here, as it is slow to import and only these two files need it
    from scipy.io.matlab import MatReadError

    try:
        content: Arrays = scipy.io.loadmat(path, variable_names=["X", "y"])
        x, y = content["X"], content["y"]
    except (*UNREADABLE, TypeError, MatReadError) as error:
        raise InputError(
            f"{path}: expected a .mat file with X and y, got a damaged or other file ({one_line(error)}); get it again"
        ) from None
    if x.ndim != 4:
        raise InputError(f"{path}: expected X of shape [32, 32, 3, N], got {x.shape}; get the file again")
    return to_samples(x.transpose(3, 0, 1, 2), y.reshape(-1) % 10, str(path))
