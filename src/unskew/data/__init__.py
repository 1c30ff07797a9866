"""Data sets: official ones, the user's own, and how their images are normalised and varied."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unskew.data.dataset import Dataset, Samples
from unskew.data.download import Progress
from unskew.data.files import Finder, Needed, cache_dir
from unskew.data.source import About, Source, sources

__all__ = ["About", "Dataset", "Finder", "Needed", "Samples", "Source", "cache_dir", "load", "sources"]

for _module in pkgutil.iter_modules(__path__):  # importing a file registers what it holds
    importlib.import_module(f"{__name__}.{_module.name}")


def load(
    spec: str | Mapping[str, Any] | Source,
    data_dir: str | Path | None = None,
    progress: Progress | None = None,
    *,
    offline: bool = False,
) -> Dataset:
    """The data set that a text (`cifar100(coarse=true)`, `npz:my.npz`), a table or a source stands for."""
    return sources.build(spec).load(Finder(data_dir, offline=offline, progress=progress))
