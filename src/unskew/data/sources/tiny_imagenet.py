"""Tiny-ImageNet: two hundred classes of ImageNet in 64x64 pixels."""

from __future__ import annotations

from pathlib import Path

from unskew.data.dataset import Dataset
from unskew.data.files.arrays import neutral_scale
from unskew.data.files.finder import Finder, Needed
from unskew.data.files.images import TEST, TRAIN, Tags, decode_images, read_text, select_part
from unskew.data.sources.base import About, Source, sources


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
        x, found = decode_images(path, _tags(path, ids), "tiny_imagenet", size=64)
        train, test = select_part(x, found, TRAIN, path), select_part(x, found, TEST, path)
        names = tuple(words.get(wnid, wnid).split(",")[0].strip() for wnid in ids)
        return Dataset(self.name, train, test, names, *neutral_scale(train.x))


def _tags(path: Path, ids: list[str]) -> Tags:
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
