"""Partitions that were saved: reading their files, and the split `file` that takes one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from unskew.base.errors import InputError, let_pass
from unskew.base.registry import param, to_table
from unskew.data.dataset import Dataset
from unskew.data.partition import lazy
from unskew.data.partition.base import Partition, check_fields
from unskew.data.partition.lazy import LazyPartition
from unskew.data.partition.lazy_splits import LazySplit
from unskew.data.partition.listed import ListedPartition
from unskew.data.partition.splits import Split, check_seed, splits


@splits.register("file")
class File(Split):
    """A partition saved before."""

    path: str = param(doc="the JSON file of the partition")

    @property
    def draws(self) -> bool:
        """It is read."""
        return False

    def cut(self, dataset: Dataset, clients: int, seed: int) -> Partition:
        """The partition as saved, if it was made for these data and this number of clients; the seed plays no part."""
        saved = load_partition(self.path, dataset)
        if saved.samples != len(dataset.train):
            raise InputError(
                f"partition '{self.path}' is for {saved.samples} samples, data '{dataset.name}' have "
                f"{len(dataset.train)}; use the data it was made for"
            )
        if not saved.fits(dataset):
            raise InputError(
                f"partition '{self.path}' was made for other data (fingerprint {saved.data}, "
                f"'{dataset.name}' has {dataset.fingerprint()}); use the data it was made for"
            )
        if len(saved) != clients:
            raise InputError(f"partition '{self.path}' has {len(saved)} clients, got {clients}; take {len(saved)}")
        return saved

    def fixed_clients(self, dataset: Dataset) -> int | None:
        """The number of clients in the file."""
        return len(load_partition(self.path, dataset))


def load_partition(path: str | Path, dataset: Dataset) -> Partition:
    """Reads a saved partition, listed or computed, for these data; `fits` says whether they are the right ones."""
    text = _read_text(path)
    with _name_file_in_errors(path):
        if f'"{lazy.FORMAT}"' in text[:10_000]:
            return _follow_recipe(json.loads(text), dataset)
        return ListedPartition.from_json(text)


def _read_text(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        let_pass(error)
        raise InputError(f"cannot read partition '{path}': {error.strerror}; check the path") from None
    except UnicodeDecodeError as error:
        raise InputError(f"partition '{path}' is not valid JSON ({error}); save it again") from None


@contextmanager
def _name_file_in_errors(path: str | Path) -> Iterator[None]:
    """Whatever is wrong with the file's text becomes one line that names the file."""
    try:
        yield
    except InputError as error:
        raise InputError(f"partition '{path}' is damaged: {error}; save it again") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"partition '{path}' is not valid JSON ({error}); save it again") from None


def _follow_recipe(recipe: Any, dataset: Dataset) -> LazyPartition:
    check_fields(recipe, lazy.FORMAT, lazy.FIELDS)
    split = splits.build(recipe["split"])
    if not isinstance(split, LazySplit):
        raise InputError(f"split '{split.name}' lists its clients and has no recipe")
    check_seed(recipe["seed"])
    origin = (recipe["clients"], recipe["seed"], recipe["data"], recipe["samples"])
    found = LazyPartition(to_table(split), *origin, None, split.shared)
    if found.hash != recipe["hash"]:
        raise InputError(f"its hash is {recipe['hash']!r} but its recipe gives '{found.hash}'")
    if not found.fits(dataset):
        return found
    split.check(dataset, found.clients)
    return replace(found, dealer=split.dealer(dataset, found.clients, found.seed))
