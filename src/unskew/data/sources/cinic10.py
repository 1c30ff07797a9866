"""CINIC-10: CIFAR-10's classes, with images from ImageNet added."""

from __future__ import annotations

from unskew.base.registry import param
from unskew.data.dataset import Dataset
from unskew.data.files.finder import Finder, Needed
from unskew.data.files.images import TEST, TRAIN, VALIDATION, decode_images, select_part
from unskew.data.sources.base import About, Source, sources
from unskew.data.sources.cifar import TEN


@sources.register("cinic10")
class Cinic10(Source):
    """CIFAR-10's classes with images from ImageNet, 32x32 colour."""

    validation: bool = param(default=False, doc="also load the 90,000 validation images")

    about = About(
        "90,000 train / 90,000 validation / 90,000 test", 10, (3, 32, 32),
        "https://datashare.ed.ac.uk/handle/10283/3192", "MIT; images under the terms of CIFAR-10 and ImageNet",
    )  # fmt: skip
    files = (
        Needed(
            "CINIC-10.tar.gz",
            "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
            687544992,
            "md5:6ee4d0c996905fe93221de577967a372",
            also=("CINIC-10", "train/airplane"),
        ),
    )
    folders = ("cinic-10", "CINIC10")

    def load(self, find: Finder) -> Dataset:
        """The training and test folders."""
        path = self.paths(find)[0]
        root = path.parents[1] if path.name == "airplane" else path
        parts = {"train": TRAIN, "test": TEST} | ({"valid": VALIDATION} if self.validation else {})

        def tags(name: str) -> tuple[int, ...] | None:
            folders = name.split("/")[-3:-1]
            if len(folders) < 2 or folders[0] not in parts or folders[1] not in TEN:
                return None
            return parts[folders[0]], TEN.index(folders[1])

        x, found = decode_images(root, tags, f"cinic10 {sorted(parts)}", size=32)
        train, test = select_part(x, found, TRAIN, root), select_part(x, found, TEST, root)
        validation = select_part(x, found, VALIDATION, root) if self.validation else None
        mean, std = (0.47889522, 0.47227842, 0.43047404), (0.24205776, 0.23828046, 0.25874835)
        return Dataset(self.name, train, test, TEN, mean, std, validation)
