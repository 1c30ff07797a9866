"""CIFAR-10, CIFAR-100 and CIFAR-10.1: the binary archives (never the pickled ones), .npy and .npz."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from unskew.base.errors import InputError
from unskew.base.registry import param
from unskew.data.dataset import Dataset, Samples
from unskew.data.files.arrays import Array, to_samples
from unskew.data.files.finder import Finder, Needed
from unskew.data.files.images import read_members
from unskew.data.files.numpy_files import load_npz_dataset, read_npy
from unskew.data.sources.base import About, Source, sources

HOMEPAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
PIXELS = 3 * 32 * 32

TEN = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
HUNDRED = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle", "bowl", "boy",
    "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle", "chair", "chimpanzee", "clock",
    "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant", "flatfish",
    "forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion",
    "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange",
    "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree", "plain", "plate", "poppy", "porcupine",
    "possum", "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk",
    "skyscraper", "snail", "snake", "spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank",
    "telephone", "television", "tiger", "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale",
    "willow_tree", "wolf", "woman", "worm",
)  # fmt: skip
TWENTY = (
    "aquatic_mammals", "fish", "flowers", "food_containers", "fruit_and_vegetables", "household_electrical_devices",
    "household_furniture", "insects", "large_carnivores", "large_man-made_outdoor_things",
    "large_natural_outdoor_scenes", "large_omnivores_and_herbivores", "medium_mammals", "non-insect_invertebrates",
    "people", "reptiles", "small_mammals", "trees", "vehicles_1", "vehicles_2",
)  # fmt: skip


def _records(content: bytes, label_bytes: int, label: int, where: str) -> tuple[Array, Array]:
    """Images and one of the labels of a binary batch."""
    length = label_bytes + PIXELS
    if not content or len(content) % length:
        raise InputError(f"{where}: expected records of {length} bytes, got {len(content)} bytes; get the file again")
    rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, length)
    return rows[:, label_bytes:].reshape(-1, 3, 32, 32), rows[:, label]


class _Cifar(Source):
    """Binary batches of 32x32 colour images."""

    batches: ClassVar[tuple[str, ...]]
    """The file names of the training batches; the last is the test batch."""
    label_bytes: ClassVar[int]

    def _load(self, find: Finder, classes: tuple[str, ...], label: int = 0, labels: str = "labels") -> Dataset:
        path = self.paths(find)[0]
        if path.suffix == ".npz":
            return load_npz_dataset(self.name, path, classes, MEAN, STD, labels=labels)
        content = read_members(path, self.batches)
        parts = [_records(content[name], self.label_bytes, label, f"{path}/{name}") for name in self.batches]
        train_x, train_y = (np.concatenate(arrays) for arrays in zip(*parts[:-1], strict=True))
        train, test = to_samples(train_x, train_y, str(path)), to_samples(*parts[-1], str(path))
        return Dataset(self.name, train, test, classes, MEAN, STD)


@sources.register("cifar10")
class Cifar10(_Cifar):
    """Photographs of ten kinds of animals and vehicles, 32x32 colour."""

    about = About("50,000 train / 10,000 test", 10, (3, 32, 32), HOMEPAGE)
    files = (
        Needed(
            "cifar-10-binary.tar.gz",
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            170052171,
            "md5:c32a1d4ab5d03f1284b67883e8d87530",
            also=("cifar-10-batches-bin",),
        ),
    )
    instead = "cifar10[!0]*npz"
    batches = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
    label_bytes = 1

    def load(self, find: Finder) -> Dataset:
        """The images in official order."""
        return self._load(find, TEN)


@sources.register("cifar100")
class Cifar100(_Cifar):
    """Photographs of a hundred kinds of things, 32x32 colour."""

    coarse: bool = param(default=False, doc="the 20 coarse classes instead of the 100 fine ones")

    about = About("50,000 train / 10,000 test", 100, (3, 32, 32), HOMEPAGE)
    files = (
        Needed(
            "cifar-100-binary.tar.gz",
            "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
            168513733,
            "md5:03b5dce01913d631647c71ecec9e9cb8",
            also=("cifar-100-binary",),
        ),
    )
    instead = "cifar100*.npz"
    batches = ("train.bin", "test.bin")
    label_bytes = 2

    def load(self, find: Finder) -> Dataset:
        """The images in official order, with fine or coarse labels."""
        if self.coarse:
            return self._load(find, TWENTY, label=0, labels="coarse_labels")
        return self._load(find, HUNDRED, label=1)


CIFAR_10_1 = "https://github.com/modestyachts/CIFAR-10.1"


@sources.register("cifar10_1")
class Cifar101(Source):
    """CIFAR-10.1, a newly collected test set; training samples are those of CIFAR-10.

    No checksum is published for its files, so downloads of them are not verified.
    """

    version: Literal["v4", "v6"] = param(default="v6", doc="v4 has 2,021 test images, v6 (class-balanced) 2,000")

    about = About("50,000 train (CIFAR-10) / 2,000 test (v4: 2,021)", 10, (3, 32, 32), CIFAR_10_1, "MIT")
    files = Cifar10.files + tuple(
        Needed(name, f"{CIFAR_10_1}/raw/master/datasets/{name}")
        for version in ("v6", "v4")
        for name in (f"cifar10.1_{version}_data.npy", f"cifar10.1_{version}_labels.npy")
    )
    folders = ("cifar10.1", "CIFAR-10.1", "cifar10")

    def load(self, find: Finder) -> Dataset:
        """CIFAR-10's training samples with the new test samples."""
        train = Cifar10().load(find).train
        wanted = [needed for needed in self.files if f"_{self.version}_" in needed.name]
        images, labels = find(self.name, wanted, self.folders)
        test: Samples = to_samples(read_npy(images), read_npy(labels), str(images))
        return Dataset(self.name, train, test, TEN, MEAN, STD)
