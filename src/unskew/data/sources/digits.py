"""Digits: the small set that comes with scikit-learn and needs no file."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import torch

from unskew.data.dataset import Dataset, Samples
from unskew.data.files.arrays import neutral_scale, split_stratified
from unskew.data.files.finder import Finder
from unskew.data.sources.base import About, Source, sources


@sources.register("digits")
class Digits(Source):
    """Handwritten digits that come with scikit-learn, 8x8 grey; needs no file."""

    about = About(
        "1,437 train / 360 test", 10, (1, 8, 8),
        "https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits", "CC BY 4.0",
    )  # fmt: skip

    def load(self, find: Finder) -> Dataset:
        """A fixed stratified split; grey values 0..16 become 0..255."""
        grey, labels = read_digits()
        pixels = np.rint(grey * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
        whole = Samples(torch.from_numpy(pixels), torch.from_numpy(labels))
        train, test = split_stratified(labels, 0.2)
        return Dataset(self.name, whole.take(train), whole.take(test), tuple("0123456789"), *neutral_scale(whole.x))


def read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Grey values [n, 64] and labels [n], as scikit-learn's `load_digits` gives them, without a second of imports."""
    found = importlib.util.find_spec("sklearn")
    for folder in found.submodule_search_locations or () if found else ():
        if (file := Path(folder) / "datasets" / "data" / "digits.csv.gz").is_file():
            table = np.loadtxt(file, delimiter=",")
            return table[:, :-1], table[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits  # a scikit-learn that keeps the table elsewhere

    raw = load_digits()
    return raw.data, raw.target.astype(np.int64)
