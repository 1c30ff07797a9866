"""DomainNet, its ten classes that FedBN uses: six domains, from photographs to sketches."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from unskew.data.dataset import Dataset, Samples
from unskew.data.files.arrays import neutral_scale
from unskew.data.files.finder import Finder, Needed
from unskew.data.files.images import TEST, TRAIN, Tags, decode_images, is_image, select_part
from unskew.data.sources.base import About, Source, sources

DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
CLASSES = (
    "bird", "feather", "headphones", "ice_cream", "teapot", "tiger", "whale", "windmill", "wine_glass", "zebra",
)  # fmt: skip
VISDA = "http://csr.bu.edu/ftp/visda/2019/multi-source"


def _files() -> tuple[Needed, ...]:
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
    files = _files()
    domains = DOMAINS
    folders = ("domainnet", "DomainNet")

    def load(self, find: Finder) -> Dataset:
        """All domains, one after the other."""
        paths = self.paths(find)
        trains, tests = [], []
        for images, train_list, test_list in zip(paths[::3], paths[1::3], paths[2::3], strict=True):
            text = train_list.read_text() + "\n" + test_list.read_text()
            variant = f"domainnet10 {hashlib.sha256(text.encode()).hexdigest()}"
            x, found = decode_images(images, _tags(train_list, test_list), variant, size=64)
            trains.append(select_part(x, found, TRAIN, images))
            tests.append(select_part(x, found, TEST, images))
        train, test = _join(trains), _join(tests)
        return Dataset(
            self.name, train, test, CLASSES, *neutral_scale(train.x),
            groups=_number(trains), group_names=DOMAINS, test_groups=_number(tests),
        )  # fmt: skip


def _tags(train: Path, test: Path) -> Tags:
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
        return (part_of[name], CLASSES.index(label)) if name in part_of and label in CLASSES else None

    return tags


def _join(parts: list[Samples]) -> Samples:
    return Samples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))


def _number(parts: list[Samples]) -> torch.Tensor:
    """The domain's number of each sample."""
    return torch.cat([torch.full((len(part),), number) for number, part in enumerate(parts)])
