"""A source is the recipe of a data set: which files it needs and how they become tensors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from unskew.base.registry import Component, Registry, param
from unskew.data.dataset import Dataset, Samples
from unskew.data.files.finder import Finder, Needed


@dataclass(frozen=True)
class About:
    """What a user wants to know of a data set before loading it."""

    counts: str = ""
    classes: int | None = None
    shape: tuple[int, ...] | None = None
    homepage: str = ""
    licence: str = "none named"


@dataclass(frozen=True)
class OwnSamples:
    """What one place holds to train on, which need not be of all classes."""

    samples: Samples
    classes: tuple[str, ...] | None = None
    """The labels' names; None: labels are the numbers of classes that others name."""
    left_out: int = 0
    """Test samples beside them."""


@dataclass(frozen=True)
class Source(Component):
    """Loads one data set; the class attributes describe its files without loading anything."""

    normalisation: str = param(
        default="usual",
        doc="of 8-bit images: usual, half, cifar, cifar_exact, cinic, or numbers, such as '0.5 0.5 0.5; 0.2 0.2 0.2'",
    )

    about: ClassVar[About] = About()
    files: ClassVar[tuple[Needed, ...]] = ()
    folders: ClassVar[tuple[str, ...]] = ()
    """Folders below a data root that are searched besides the one named like the data set."""
    domains: ClassVar[tuple[str, ...]] = ()
    """The names of its groups, where the data set comes with domains that are known without loading it."""
    instead: ClassVar[str] = ""
    """The pattern of one .npz that may replace all files."""

    def load(self, find: Finder) -> Dataset:
        """The data set, read from the files that `find` finds."""
        raise TypeError(f"{type(self).__name__} must define load(find)")

    def load_own(self, find: Finder) -> OwnSamples:
        """The samples of one place: those for training; all of them where test samples are not marked as such."""
        data = self.load(find)
        return OwnSamples(data.train, data.classes, len(data.test))

    def paths(self, find: Finder) -> list[Path]:
        """Where the files are, in the order of `files`; or the one .npz that replaces them."""
        return find(self.name, self.files, self.folders, self.instead)


sources: Registry[Source] = Registry("data set", Source)
