"""Published sets of image files: CINIC-10, Tiny-ImageNet and DomainNet's ten classes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from unskew.base.errors import InputError
from unskew.base.registry import param
from unskew.data.dataset import Dataset, Samples
from unskew.data.files.decoded_cache import Array
from unskew.data.files.finder import Finder, Needed
from unskew.data.files.images import Tags, decode_images, is_image, read_text
from unskew.data.sources.base import About, Source, sources
from unskew.data.sources.cifar import TEN

HALF = (0.5, 0.5, 0.5)
TRAIN, TEST, VALIDATION = 0, 1, 2


def _part(x: Array, tags: Array, part: int, where: Path) -> Samples:
    """The samples whose tags are (part, label)."""
    chosen = tags[:, 0] == part
    if not chosen.any():
        raise InputError(f"{where}: holds no {('training', 'test', 'validation')[part]} images; get the complete files")
    return Samples(torch.from_numpy(x[chosen]), torch.from_numpy(tags[chosen, 1]))


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
        train, test = _part(x, found, TRAIN, root), _part(x, found, TEST, root)
        validation = _part(x, found, VALIDATION, root) if self.validation else None
        mean, std = (0.47889522, 0.47227842, 0.43047404), (0.24205776, 0.23828046, 0.25874835)
        return Dataset(self.name, train, test, TEN, mean, std, validation)


@sources.register("tiny_imagenet")
class TinyImageNet(Source):
    """Two hundred classes of ImageNet, 64x64 colour; test samples are the official validation images."""

    about = About(
        "100,000 train / 10,000 test", 200, (3, 64, 64),
        "http://cs231n.stanford.edu/", "ImageNet terms: non-commercial research",
    )  # fmt: skip
    files = (
        Needed(
            "tiny-imagenet-200.zip",
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            248100043,
            "md5:90528d7ca1a48142e341f4ef8d21d0de",
            also=("tiny-imagenet-200", "tiny-imagenet-*.zip", "tiny-imagenet-*"),
        ),
    )

    def load(self, find: Finder) -> Dataset:
        """All classes that the files hold, in the order of their ids."""
        path = self.paths(find)[0]
        ids = sorted(read_text(path, "wnids.txt").split())
        words = dict(line.split("\t", 1) for line in read_text(path, "words.txt").splitlines() if "\t" in line)
        x, found = decode_images(path, _tiny_tags(path, ids), "tiny_imagenet", size=64)
        train, test = _part(x, found, TRAIN, path), _part(x, found, TEST, path)
        names = tuple(words.get(wnid, wnid).split(",")[0].strip() for wnid in ids)
        return Dataset(self.name, train, test, names, HALF, HALF)


def _tiny_tags(path: Path, ids: list[str]) -> Tags:
    """Training images are in folders by id, validation images in a list."""
    label = {wnid: number for number, wnid in enumerate(ids)}
    rows = (line.split("\t") for line in read_text(path, "val/val_annotations.txt").splitlines())
    listed = {row[0]: label[row[1]] for row in rows if len(row) > 1 and row[1] in label}

    def tags(name: str) -> tuple[int, ...] | None:
        folders = name.split("/")
        if folders[-4:-3] == ["train"] and folders[-3] in label:
            return TRAIN, label[folders[-3]]
        if folders[-3:-1] == ["val", "images"] and folders[-1] in listed:
            return TEST, listed[folders[-1]]
        return None

    return tags


DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
DOMAIN_CLASSES = (
    "bird", "feather", "headphones", "ice_cream", "teapot", "tiger", "whale", "windmill", "wine_glass", "zebra",
)  # fmt: skip
VISDA = "http://csr.bu.edu/ftp/visda/2019/multi-source"


def _domain_files() -> tuple[Needed, ...]:
    files = []
    for domain in DOMAINS:
        cleaned = "/groundtruth" if domain in ("clipart", "painting") else ""
        files.append(Needed(f"{domain}.zip", f"{VISDA}{cleaned}/{domain}.zip", also=(domain,)))
        for part in ("train", "test"):
            files.append(Needed(f"{domain}_{part}.txt", f"{VISDA}/domainnet/txt/{domain}_{part}.txt"))
    return tuple(files)


@sources.register("domainnet10")
class DomainNet10(Source):
    """Ten classes of DomainNet in six domains, resized to 64x64 colour; the domains become groups.

    The classes are those of FedBN. No checksum is published for the files, so downloads of them are not verified.
    """

    about = About("10 of 345 classes, the official split of every domain", 10, (3, 64, 64), "https://ai.bu.edu/M3SDA/")
    files = _domain_files()
    folders = ("domainnet", "DomainNet")

    def load(self, find: Finder) -> Dataset:
        """All domains, one after the other."""
        paths = self.paths(find)
        trains, tests = [], []
        for images, train_list, test_list in zip(paths[::3], paths[1::3], paths[2::3], strict=True):
            text = train_list.read_text() + "\n" + test_list.read_text()
            variant = f"domainnet10 {hashlib.sha256(text.encode()).hexdigest()}"
            x, found = decode_images(images, _listed(train_list, test_list), variant, size=64)
            trains.append(_part(x, found, TRAIN, images))
            tests.append(_part(x, found, TEST, images))
        train, test = _join(trains), _join(tests)
        return Dataset(
            self.name, train, test, DOMAIN_CLASSES, HALF, HALF,
            groups=_numbered(trains), group_names=DOMAINS, test_groups=_numbered(tests),
        )  # fmt: skip


def _listed(train: Path, test: Path) -> Tags:
    """The official lists hold lines of `domain/class/image label`; the label is not needed."""
    part_of = {
        line.split()[0]: part
        for part, path in ((TRAIN, train), (TEST, test))
        for line in path.read_text().splitlines()
        if is_image(line.split(" ")[0])
    }
    # an extracted folder `clipart` lists its images without the domain that the official lists start with
    part_of |= {name.partition("/")[2]: part for name, part in part_of.items()}

    def tags(name: str) -> tuple[int, ...] | None:
        label = name.split("/")[-2] if "/" in name else ""
        return (part_of[name], DOMAIN_CLASSES.index(label)) if name in part_of and label in DOMAIN_CLASSES else None

    return tags


def _join(parts: list[Samples]) -> Samples:
    return Samples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))


def _numbered(parts: list[Samples]) -> torch.Tensor:
    return torch.cat([torch.full((len(part),), number) for number, part in enumerate(parts)])
