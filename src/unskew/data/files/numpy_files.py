"""NumPy's files: an .npz as a data set (the user's own, or one that replaces official files), an .npy as an array."""

from __future__ import annotations

import logging
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unskew.base.errors import InputError, one_line
from unskew.base.once import warn_once
from unskew.data.dataset import Dataset, Samples
from unskew.data.files.arrays import (
    UNREADABLE,
    Array,
    Arrays,
    class_names,
    neutral_scale,
    split_stratified,
    to_samples,
)
from unskew.data.files.decoded_cache import load_or_decode

log = logging.getLogger(__name__)
NAMINGS = (("{}_images", "{}_labels"), ("x_{}", "y_{}"), ("{}_x", "{}_y"))
WHOLE = (("images", "labels"), ("x", "y"))
GROUPS = ("clients", "domains")
TEST = 0.2
"""The share of test samples where a file has none of its own."""

Scale = tuple[float, ...]


def load_npz_dataset(
    name: str,
    path: Path,
    classes: tuple[str, ...] | None = None,
    mean: Scale | None = None,
    std: Scale | None = None,
    *,
    labels: str = "labels",
    test: float = TEST,
) -> Dataset:
    """The data set that an .npz holds, with its classes, scale and groups; what is known beforehand may be given.

    `labels` chooses among the labels: CIFAR-100 has `train_coarse_labels`, too. `test` is the share of test samples
    where the file has no split of its own.
    """
    arrays = _read_one_layout(path)
    if any(key in arrays for pair in NAMINGS for key in (pair[0].format("train"), pair[1].format("train"))):
        train, held_out = _read_part(path, arrays, "train", labels), _read_part(path, arrays, "test", labels)
        groups = _find_groups(arrays)
        if test != TEST:
            warn_once(log, f"{path} brings test samples of its own, so test = {test:g} does nothing; leave it out")
    else:
        train, held_out, groups = _split_whole(path, arrays, test)
    validation = _read_part(path, arrays, "val", labels) if "val_images" in arrays else None
    parts = [part for part in (train, held_out, validation) if part]
    for part in parts:
        if part.x.shape[1:] != train.x.shape[1:] or part.x.dtype != train.x.dtype:
            raise InputError(
                f"{path}: training inputs are {_kind(train.x)} but others are {_kind(part.x)}; make them alike"
            )
    names = class_names(parts, np.asarray(classes) if classes else arrays.get("classes"), str(path))
    neutral_mean, neutral_std = neutral_scale(train.x)
    return Dataset(
        name, train, held_out, names, mean or neutral_mean, std or neutral_std,
        validation, *_number_groups(path, arrays, groups, len(train), len(held_out)),
    )  # fmt: skip


def load_npz_samples(path: Path) -> tuple[Samples, tuple[str, ...] | None, int]:
    """What one place holds in an .npz: its samples, its classes' names if it names them, test samples left out.

    Labels are numbers of classes that others know, so that some may never occur.
    """
    arrays = _read_one_layout(path)
    if any(x.format("train") in arrays for x, _ in NAMINGS):
        own = _read_part(path, arrays, "train", "labels")
        left_out = next((len(arrays[y.format("test")]) for _, y in NAMINGS if y.format("test") in arrays), 0)
    else:
        own, left_out = _read_whole(path, arrays), 0
    names = class_names([own], arrays["classes"], str(path)) if "classes" in arrays else None
    return own, names, left_out


def read_npy(path: Path) -> Array:
    """The array of an .npy file."""
    try:
        array = np.load(path, allow_pickle=False)
    except UNREADABLE as error:
        raise InputError(f"{path}: expected an .npy array, got a damaged or other file ({one_line(error)})") from None
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path}: expected an .npy array, got an archive of several; unpack it")
    return array


def _read_one_layout(path: Path) -> Arrays:
    """All arrays of an .npz, in which samples and groups have one name: with two, nobody knows which are meant."""
    arrays = _read_npz(path)
    found = [x for x in (*(x.format("train") for x, _ in NAMINGS), *(x for x, _ in WHOLE)) if x in arrays]
    groups = [next((name for name in (f"train_{kind}", kind) if name in arrays), "") for kind in GROUPS]
    if len(found) < 2 and all(groups):
        found = groups
    if len(found) > 1:
        raise InputError(f"{path}: holds '{found[0]}' and '{found[1]}', of which only one can be meant; keep one")
    return arrays


def _read_npz(path: Path) -> Arrays:
    """All arrays of an .npz; nothing is ever unpickled."""
    if not path.is_file():
        raise InputError(f"the file '{path}' does not exist; give the path of an .npz file")
    try:
        with zipfile.ZipFile(path) as archive:
            slow = any(member.compress_type == zipfile.ZIP_LZMA for member in archive.infolist())
    except UNREADABLE as error:
        raise InputError(f"{path}: expected an .npz archive, got a damaged or other file ({one_line(error)})") from None
    return load_or_decode(path, "npz", lambda: _unpack(path)) if slow else _unpack(path)


def _unpack(path: Path) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except UNREADABLE as error:
        if "allow_pickle" in str(error):
            raise InputError(
                f"{path}: holds an object array, which is never unpickled; save plain numbers and text instead"
            ) from None
        raise InputError(f"{path}: expected an .npz archive, got a damaged file ({one_line(error)})") from None


def _read_part(path: Path, arrays: Arrays, part: str, labels: str) -> Samples:
    for x_name, y_name in NAMINGS:
        x, y = x_name.format(part), y_name.format(part).replace("labels", labels)
        if x in arrays and y in arrays:
            return to_samples(arrays[x], arrays[y], f"{path}: {part}")
    raise _missing(path, arrays, f"{part}_images and {part}_{labels}")


def _split_whole(path: Path, arrays: Arrays, share: float) -> tuple[Samples, Samples, list[Array | None]]:
    """Training and test samples, and the groups of both."""
    whole = _read_whole(path, arrays)
    if len(whole) < 2:
        raise InputError(f"{path}: expected at least 2 samples to split, got {len(whole)}; add samples")
    train, test = split_stratified(whole.y.numpy(), share)
    group = next((arrays[key] for key in GROUPS if key in arrays), None)
    if group is not None and len(group) != len(whole):
        raise InputError(f"{path}: {len(group)} group ids for {len(whole)} samples; give one per sample")
    groups = [None, None] if group is None else [group[train.numpy()], group[test.numpy()]]
    return whole.take(train), whole.take(test), groups


def _read_whole(path: Path, arrays: Arrays) -> Samples:
    for x, y in WHOLE:
        if x in arrays and y in arrays:
            return to_samples(arrays[x], arrays[y], str(path))
    raise _missing(path, arrays, "train_images, train_labels, test_images and test_labels, or images and labels")


def _missing(path: Path, arrays: Arrays, wanted: str) -> InputError:
    return InputError(f"{path}: expected the arrays {wanted}; got {', '.join(arrays) or 'none'}")


def _find_groups(arrays: Arrays) -> list[Array | None]:
    """The group ids of training and of test samples."""
    for kind in GROUPS:
        for key in (f"train_{kind}", kind):
            if key in arrays:
                return [arrays[key], arrays.get(f"test_{kind}")]
    return [None, None]


def _number_groups(
    path: Path, arrays: Arrays, groups: list[Array | None], train: int, test: int
) -> tuple[Tensor | None, tuple[str, ...], Tensor | None]:
    """Group numbers of training samples, their names, and group numbers of test samples."""
    first, second = groups
    if first is None:
        return None, (), None
    for ids, count in ((first, train), (second, test)):
        if ids is not None and ids.shape != (count,):
            raise InputError(f"{path}: {ids.shape} group ids for {count} samples; give one per sample")
        if ids is not None and ids.dtype.kind == "f" and not np.isfinite(ids).all():
            at = int(np.flatnonzero(~np.isfinite(ids))[0])
            raise InputError(f"{path}: group ids must be finite, got {ids[at]} at position {at}; name its group")
    known = np.unique(first if second is None else np.concatenate([first, second]))
    names = next((arrays[key] for key in ("client_names", "domain_names") if key in arrays), None)
    if names is not None:
        if known.dtype.kind not in "ui" or known[0] < 0 or known[-1] >= len(names):
            raise InputError(f"{path}: group ids {known[0]}..{known[-1]} do not index the {len(names)} names")
        known = np.arange(len(names))
    numbers = [None if ids is None else torch.from_numpy(np.searchsorted(known, ids)) for ids in groups]
    return numbers[0], tuple(str(name) for name in (known if names is None else names)), numbers[1]


def _kind(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape[1:])}"
