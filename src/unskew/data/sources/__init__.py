"""Data sets, a file per family; importing this package registers every file in it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unskew.base import seeds
from unskew.base.errors import InputError
from unskew.base.plugins import forget_edited
from unskew.base.process import hold_process
from unskew.data.dataset import Dataset
from unskew.data.files.download import Progress
from unskew.data.files.finder import Finder
from unskew.data.normalisation import normalise_by
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
    """The data set that a text (`cifar100(coarse=true)`, `npz:my.npz`), a table or a source stands for.

    What a user's source draws from a global generator is the same each time.
    """
    if not isinstance(spec, Source):  # a run's source was built of code that the run has recorded
        forget_edited()
    source, find = sources.build(spec), Finder(data_dir, offline=offline, progress=progress)
    if type(source).__module__.startswith("unskew.") and not source.code_used():
        return normalise_by(source.load(find), source.normalisation)  # draws nothing from there
    with hold_process(), seeds.seed_everything(0, "data"):
        found: object = source.load(find)
    if not isinstance(found, Dataset):
        raise InputError(
            f"data {source.name}: load must return an unskew.Dataset, got {type(found).__name__}; see CONTRIBUTING.md, "
            "More examples"
        )
    return normalise_by(found, source.normalisation)
