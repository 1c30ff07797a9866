"""Data sets, a file per family; importing this package registers every file in it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unskew.data.dataset import Dataset
from unskew.data.files.download import Progress
from unskew.data.files.finder import Finder
from unskew.data.sources.base import Source, sources

for _module in pkgutil.iter_modules(__path__):
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
