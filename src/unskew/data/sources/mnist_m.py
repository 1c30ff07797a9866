"""MNIST-M: MNIST's digits over colour photographs."""

from __future__ import annotations

from unskew.data.dataset import Dataset
from unskew.data.files.finder import Finder, Needed
from unskew.data.files.numpy_files import load_npz_dataset
from unskew.data.sources.base import About, Source, sources


@sources.register("mnist_m")
class MnistM(Source):
    """MNIST digits blended with colour photographs, 32x32 colour; from an .npz."""

    about = About("59,001 train / 9,001 test when complete", 10, (3, 32, 32), "https://github.com/pumpikano/tf-dann")
    files = (Needed("mnist_m.npz", also=("mnist_m*.npz",)),)

    def load(self, find: Finder) -> Dataset:
        """The images of the .npz."""
        return load_npz_dataset(self.name, self.paths(find)[0], tuple("0123456789"))
