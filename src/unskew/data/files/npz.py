"""One .npz as a data set: the user's own, and the ones that stand in for official files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unskew.base.errors import InputError
from unskew.data.dataset import Dataset, Samples
from unskew.data.files.arrays import class_names, neutral_scale, read_npz, stratified, to_samples
from unskew.data.files.decoded_cache import Array, Arrays

NAMINGS = (("{}_images", "{}_labels"), ("x_{}", "y_{}"), ("{}_x", "{}_y"))
WHOLE = (("images", "labels"), ("x", "y"))
GROUPS = ("clients", "domains")


@dataclass(frozen=True)
class Packed:
    """How to read an .npz: what the data set is called, and what is known of it beforehand."""

    name: str
    path: Path
    classes: tuple[str, ...] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    labels: str = "labels"
    """Which labels to take of `train_labels` and `test_labels`; CIFAR-100 has `coarse_labels`, too."""
    test: float = 0.2

    def dataset(self) -> Dataset:
        """The data set with its classes, scale and groups."""
        arrays = read_npz(self.path)
        if any(key in arrays for pair in NAMINGS for key in (pair[0].format("train"), pair[1].format("train"))):
            train, test = self._part(arrays, "train"), self._part(arrays, "test")
            groups = _group_arrays(arrays)
        else:
            train, test, groups = self._halves(arrays)
        validation = self._part(arrays, "val") if "val_images" in arrays else None
        given = np.asarray(self.classes) if self.classes else arrays.get("classes")
        parts = [part for part in (train, test, validation) if part]
        for part in parts:
            if part.x.shape[1:] != train.x.shape[1:] or part.x.dtype != train.x.dtype:
                raise InputError(
                    f"{self.path}: training inputs are {_kind(train.x)} but others are {_kind(part.x)}; make them alike"
                )
        mean, std = neutral_scale(train.x)
        return Dataset(
            self.name, train, test, class_names(parts, given, str(self.path)), self.mean or mean, self.std or std,
            validation, *self._groups(arrays, groups, len(train), len(test)),
        )  # fmt: skip

    def _part(self, arrays: Arrays, part: str) -> Samples:
        for inputs, labels in NAMINGS:
            x, y = inputs.format(part), labels.format(part).replace("labels", self.labels)
            if x in arrays and y in arrays:
                return to_samples(arrays[x], arrays[y], f"{self.path}: {part}")
        raise self._missing(arrays, f"{part}_images and {part}_{self.labels}")

    def _halves(self, arrays: Arrays) -> tuple[Samples, Samples, list[Array | None]]:
        for x, y in WHOLE:
            if x in arrays and y in arrays:
                break
        else:
            raise self._missing(arrays, "train_images, train_labels, test_images and test_labels, or images and labels")
        whole = to_samples(arrays[x], arrays[y], str(self.path))
        if len(whole) < 2:
            raise InputError(f"{self.path}: expected at least 2 samples to split, got {len(whole)}; add samples")
        train, test = stratified(whole.y.numpy(), self.test)
        group = next((arrays[key] for key in GROUPS if key in arrays), None)
        if group is not None and len(group) != len(whole):
            raise InputError(f"{self.path}: {len(group)} group ids for {len(whole)} samples; give one per sample")
        halves = [None, None] if group is None else [group[train.numpy()], group[test.numpy()]]
        return whole.take(train), whole.take(test), halves

    def _missing(self, arrays: Arrays, wanted: str) -> InputError:
        return InputError(f"{self.path}: expected the arrays {wanted}; got {', '.join(arrays) or 'none'}")

    def _groups(
        self, arrays: Arrays, groups: list[Array | None], train: int, test: int
    ) -> tuple[Tensor | None, tuple[str, ...], Tensor | None]:
        """Group numbers of training samples, their names, and group numbers of test samples."""
        first, second = groups
        if first is None:
            return None, (), None
        for ids, count in ((first, train), (second, test)):
            if ids is not None and ids.shape != (count,):
                raise InputError(f"{self.path}: {ids.shape} group ids for {count} samples; give one per sample")
        known = np.unique(first if second is None else np.concatenate([first, second]))
        names = next((arrays[key] for key in ("client_names", "domain_names") if key in arrays), None)
        if names is not None:
            if known.dtype.kind not in "ui" or known[0] < 0 or known[-1] >= len(names):
                raise InputError(f"{self.path}: group ids {known[0]}..{known[-1]} do not index the {len(names)} names")
            known = np.arange(len(names))
        numbers = [None if ids is None else torch.from_numpy(np.searchsorted(known, ids)) for ids in groups]
        return numbers[0], tuple(str(name) for name in (known if names is None else names)), numbers[1]


def _group_arrays(arrays: Arrays) -> list[Array | None]:
    for kind in GROUPS:
        for key in (f"train_{kind}", kind):
            if key in arrays:
                return [arrays[key], arrays.get(f"test_{kind}")]
    return [None, None]


def _kind(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape[1:])}"
