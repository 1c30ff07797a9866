"""Smaller data of the same shape: a part of a data set, and generated images in the place of one that is missing."""

from __future__ import annotations

import logging
import re
from typing import Any

import torch

from unskew.base.errors import InputError
from unskew.base.registry import param
from unskew.data.dataset import Dataset, Samples
from unskew.data.files.arrays import neutral_scale
from unskew.data.files.finder import Finder
from unskew.data.normalisation import normalise_by
from unskew.data.sources.base import About, Source, sources

log = logging.getLogger(__name__)


@sources.register("part")
class Part(Source):
    """Some samples of another data set, the same share of every class (and domain), chosen at random once."""

    of: Source = param(doc="the data set, such as cifar10")
    train: int = param(ge=1, doc="training samples")
    test: int = param(ge=1, doc="test samples")
    seed: int = param(default=0, ge=0, lt=2**32, doc="fixes the choice")

    about = About("as many as you say")

    def load(self, find: Finder) -> Dataset:
        """The chosen samples, in their order."""
        whole = normalise_by(self.of.load(find), self.of.normalisation)
        rng = torch.Generator().manual_seed(self.seed)
        train = _choose(whole.train.y, whole.groups, self.train, rng)
        test = _choose(whole.test.y, whole.test_groups, self.test, rng)
        return Dataset(
            whole.name, whole.train.take(train), whole.test.take(test), whole.classes, whole.mean, whole.std,
            groups=whole.groups[train] if whole.groups is not None else None, group_names=whole.group_names,
            test_groups=whole.test_groups[test] if whole.test_groups is not None else None,
        )  # fmt: skip


def _choose(y: torch.Tensor, groups: torch.Tensor | None, number: int, rng: torch.Generator) -> torch.Tensor:
    """Positions of so many samples: of every class and group in turn, in a random order."""
    if number >= len(y):
        if number > len(y):
            log.warning("part: %d samples were asked for, there are %d; all of them are taken", number, len(y))
        return torch.arange(len(y))
    kinds = y if groups is None else y + (int(y.max()) + 1) * groups
    shuffled = torch.randperm(len(y), generator=rng)
    turn = torch.empty(len(y), dtype=torch.int64)  # a sample's number among those of its kind
    for kind in sorted(set(kinds.tolist())):
        own = shuffled[kinds[shuffled] == kind]
        turn[own] = torch.arange(len(own))
    return shuffled[turn[shuffled].argsort(stable=True)][:number].sort().values


@sources.register("stand_in")
class StandIn(Source):
    """Generated images with the shape and classes of another data set: to try a run out, never to report a figure."""

    like: Source = param(doc="the data set whose place it takes, such as cifar10")
    train: int = param(default=0, ge=0, doc="training samples; 0: as many as the data set has")
    test: int = param(default=0, ge=0, doc="test samples; 0: as many as the data set has")
    seed: int = param(default=0, ge=0, lt=2**32, doc="fixes the images")

    about = About("as many as you say, generated", licence="none needed")

    def load(self, find: Finder) -> Dataset:
        """A class is a pattern of coarse squares under noise; a domain, if there are any, a shift in brightness."""
        about = self.like.about
        if about.shape is None or about.classes is None:
            raise InputError(f"stand_in: data '{self.like}' have no shape of their own; name a published data set")
        rng = torch.Generator().manual_seed(self.seed)
        patterns = torch.rand(about.classes, about.shape[0], 4, 4, generator=rng)
        domains = self.like.domains
        parts = []
        for word, given in (("train", self.train), ("test", self.test)):
            number = given or read_count(about.counts, word) or 1000
            y = torch.randperm(number, generator=rng) % about.classes
            group = torch.arange(number) % max(1, len(domains))
            parts.append((Samples(_paint(patterns, y, group, about.shape, rng), y), group))
        (train, group), (test, test_group) = parts
        names = tuple(str(number) for number in range(about.classes))
        place: dict[str, Any] = {"groups": group, "group_names": domains, "test_groups": test_group} if domains else {}
        made = Dataset(f"{self.like.name} (generated)", train, test, names, *neutral_scale(train.x), **place)
        return normalise_by(made, self.like.normalisation)


def _paint(
    patterns: torch.Tensor, y: torch.Tensor, group: torch.Tensor, shape: tuple[int, ...], rng: torch.Generator
) -> torch.Tensor:
    """The images as bytes, a block at a time: whole data sets are generated too."""
    blocks = []
    for start in range(0, len(y), 10_000):
        own = slice(start, start + 10_000)
        large = torch.nn.functional.interpolate(patterns[y[own]], size=shape[1:])
        noise = torch.rand(large.shape, generator=rng)
        light = 20 * group[own].view(-1, 1, 1, 1)
        blocks.append((130 * large + 90 * noise + light).clamp(0, 255).to(torch.uint8))
    return torch.cat(blocks)


def origin_of(source: Source) -> Source:
    """The data set of which a source is a part, or whose place it takes; else itself."""
    return source.of if isinstance(source, Part) else source.like if isinstance(source, StandIn) else source


def read_count(counts: str, word: str) -> int | None:
    """The number before a word such as train in a text such as 50,000 train / 10,000 test."""
    found = re.search(rf"([\d,]+) {word}", counts)
    return int(found[1].replace(",", "")) if found else None
