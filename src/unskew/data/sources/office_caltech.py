"""Office-Caltech-10: ten classes that four collections of photographs share."""

from __future__ import annotations

from unskew.base.errors import InputError
from unskew.data.dataset import Dataset
from unskew.data.files.finder import Finder, Needed
from unskew.data.files.numpy_files import load_npz_dataset
from unskew.data.sources.base import About, Source, sources


@sources.register("office_caltech10")
class OfficeCaltech10(Source):
    """Ten kinds of office things in four domains, 64x64 colour; from an .npz whose domains become groups."""

    about = About("2,533 images in the domains amazon, caltech10, dslr and webcam", 10, (3, 64, 64))
    files = (Needed("office_caltech10_64.npz", also=("office_caltech10*.npz",)),)

    def load(self, find: Finder) -> Dataset:
        """The images of the .npz, grouped by domain."""
        path = self.paths(find)[0]
        dataset = load_npz_dataset(self.name, path)
        if dataset.groups is None:
            raise InputError(f"{path}: expected the arrays train_domains and test_domains; add them")
        return dataset
