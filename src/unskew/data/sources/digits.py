"""Digits: the small set that comes with scikit-learn and needs no file."""

from __future__ import annotations

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
        from sklearn.datasets import load_digits  # here, as it takes a second to import

        raw = load_digits()
        pixels = np.rint(raw.images * (255 / 16)).astype(np.uint8)[:, None]
        whole = Samples(torch.from_numpy(pixels), torch.from_numpy(raw.target.astype(np.int64)))
        train, test = split_stratified(raw.target, 0.2)
        return Dataset(self.name, whole.take(train), whole.take(test), tuple("0123456789"), *neutral_scale(whole.x))
