"""Data sets: official ones, the user's own, and how their images are normalised and varied."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unskew.data import cifar, digit_domains, embedded, folders, idx, medmnist, own
from unskew.data.dataset import Dataset, Samples
from unskew.data.download import Progress
from unskew.data.files import Finder, Needed, cache_dir
from unskew.data.source import About, Source, sources

__all__ = ["About", "Dataset", "Finder", "Needed", "Samples", "Source", "cache_dir", "load", "sources"]

# importing a module registers its sources
REGISTERED_BY = (cifar, digit_domains, embedded, folders, idx, medmnist, own)


def load(
    spec: str | Mapping[str, Any] | Source,
    data_dir: str | Path | None = None,
    progress: Progress | None = None,
    *,
    offline: bool = False,
) -> Dataset:
    """The data set that a text (`cifar100(coarse=true)`, `npz:my.npz`), a table or a source stands for."""
    return sources.build(spec).load(Finder(data_dir, offline=offline, progress=progress))
