"""ImageNet-100: a hundred classes of ImageNet, from folders that the user has."""

from __future__ import annotations

from unskew.base.errors import InputError
from unskew.base.registry import param
from unskew.data.dataset import Dataset
from unskew.data.files.finder import Finder, Needed
from unskew.data.sources.base import About, Source, sources
from unskew.data.sources.user_files import Folder


@sources.register("imagenet100")
class ImageNet100(Source):
    """A hundred classes of ImageNet: folders `train` and `test`, below each one per class.

    Neither FLFA nor FedSOL names its classes; take those of your choice and say so.
    """

    size: int = param(default=64, ge=1, le=4096, doc="images are resized to this height and width", source="our choice")

    about = About(
        "about 130,000 train / 5,000 test", 100, (3, 64, 64), "https://image-net.org/",
        "ImageNet terms: non-commercial research",
    )  # fmt: skip
    files = (Needed("imagenet100", also=("train",)),)
    folders = ("ImageNet100", "imagenet-100")

    def load(self, find: Finder) -> Dataset:
        """The images of both folders, labelled by the name of their folder."""
        root = self.paths(find)[0]
        root = root.parent if root.name == "train" else root
        if not all((root / part).is_dir() for part in ("train", "test")):
            raise InputError(f"{root}: expected the folders train and test with one folder per class each; rename val")
        return Folder(path=str(root), size=self.size).load(find)
