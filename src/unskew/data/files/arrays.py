"""Arrays of many layouts become the two tensors of `Samples`; errors are one line that names the file."""

from __future__ import annotations

import logging
import lzma
import math
import zipfile
import zlib
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from unskew.base.errors import InputError
from unskew.data.dataset import Samples

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]

log = logging.getLogger(__name__)
SPLIT_SEED = 0
"""Splits made here never depend on the seed of a run."""

FEWEST_STEPS = 100
"""A feature that has fewer steps in float32 is spoilt by rounding."""
WRITABLE: tuple[Literal["C"], Literal["W"]] = ("C", "W")
"""Tensors share memory with arrays, so these must be contiguous and writable; numpy copies where they are not."""

UNREADABLE = (
    OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, NotImplementedError,
)  # fmt: skip
"""What numpy and the archive readers raise for a damaged file."""


def to_inputs(array: Array, where: str) -> Tensor:
    """Images as uint8 [N, C, H, W], flat ones as uint8 [N, D]; features and float images as float32."""
    if array.dtype.kind not in "uifb":
        raise InputError(f"{where}: expected numbers, got {array.dtype}; save images or features as numbers")
    if array.ndim not in (2, 3, 4):
        more = "; hand larger ones over from Python, as a Dataset of floats" if array.ndim > 4 else ""
        raise InputError(
            f"{where}: expected [N, features] or images [N, H, W], [N, H, W, C] or [N, C, H, W], "
            f"got shape {array.shape}{more}"
        )
    if array.ndim in (3, 4):
        array = _channels_first(array, where)
        if array.dtype.kind != "f":
            return torch.from_numpy(np.require(_bytes(array, where), requirements=WRITABLE))
    elif array.dtype == np.uint8:  # grey values, as in a Dataset
        return torch.from_numpy(np.require(array, requirements=WRITABLE))
    elif array.dtype.kind in "iu" and array.size and array.min() >= 0 and 16 < array.max() <= 255:
        log.warning(
            "%s: integer features up to %d are used as they are; if they are grey values, save them as uint8",
            where, array.max(),
        )  # fmt: skip
    _check_precision(array, where)
    return torch.from_numpy(np.require(array, np.float32, WRITABLE))


def _check_precision(array: Array, where: str) -> None:
    """Refuses wide numbers that float32 cannot hold or tell apart, feature by feature; says where few are left."""
    if array.dtype.itemsize <= 4 or not array.size or not np.isfinite(array).all():
        return  # NaN and infinity are refused with their position
    columns = array.reshape(len(array), -1) if array.ndim == 2 else array.reshape(-1, 1)
    low, high = columns.min(axis=0).astype(np.float64), columns.max(axis=0).astype(np.float64)
    largest = np.maximum(np.abs(low), np.abs(high))
    if largest.max() > np.finfo(np.float32).max:
        raise InputError(f"{where}: values up to {largest.max():.3g} do not fit into float32; scale them")
    unit = np.maximum(largest * np.finfo(np.float32).eps, np.finfo(np.float32).tiny)
    steps = np.where(high > low, (high - low) / unit, np.inf)
    at = int(np.argmin(steps))
    if steps[at] < FEWEST_STEPS:
        what = f"feature {at} lies" if array.ndim == 2 else "pixels lie"
        said = f"{where}: {what} between {low[at]:.9g} and {high[at]:.9g}, which float32 hardly tells apart"
        if steps[at] < 2:
            raise InputError(f"{said}; subtract an offset, and scale it")
        log.warning("%s (about %d steps); subtract an offset, and scale it", said, steps[at])


def _bytes(array: Array, where: str) -> Array:
    if array.dtype != np.uint8 and array.size and (array.min() < 0 or array.max() > 255):
        raise InputError(
            f"{where}: expected pixels in 0..255, got {array.min()}..{array.max()}; scale them to uint8 or save floats"
        )
    return array.astype(np.uint8, copy=False)


def _channels_first(array: Array, where: str) -> Array:
    if array.ndim == 3:
        return array[:, None]
    if array.shape[1] in (1, 3) and array.shape[3] not in (1, 3):
        return array
    if array.shape[3] in (1, 3, 4):
        if array.shape[1] in (1, 3, 4):
            log.warning(
                "%s: images of shape %s are read as [N, H, W, C]; if the channels come first, hand them over from "
                "Python as a Dataset", where, array.shape,
            )  # fmt: skip
        return np.moveaxis(array, 3, 1)
    if array.shape[1] in (1, 3, 4):
        return array
    raise InputError(f"{where}: expected 1, 3 or 4 channels as [N, H, W, C] or [N, C, H, W], got {array.shape}")


def to_labels(array: Array, where: str) -> Tensor:
    """Class numbers from 0 as int64 [N]; accepts [N, 1] and integral floats."""
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise InputError(f"{where}: expected one label per sample, shape [N] or [N, 1], got {array.shape}")
    if array.dtype.kind not in "uifb":
        raise InputError(f"{where}: expected class numbers 0, 1, ..., got {array.dtype}; number the classes")
    if array.dtype.kind == "f":
        odd = ~np.isfinite(array) | (array != np.floor(array))
        if odd.any():
            at = int(np.argmax(odd))
            raise InputError(f"{where}: expected class numbers, got {array[at]} at position {at}; drop that sample")
    labels = array.astype(np.int64)
    if (labels < 0).any():
        at = int(np.argmax(labels < 0))
        raise InputError(f"{where}: expected class numbers from 0, got {labels[at]} at position {at}; renumber them")
    return torch.from_numpy(labels)


def to_samples(x: Array, y: Array, where: str) -> Samples:
    """Inputs and labels, checked to be equally many."""
    samples = Samples(to_inputs(x, where), to_labels(y, where))
    if len(samples.x) != len(samples.y):
        raise InputError(f"{where}: {len(samples.x)} inputs but {len(samples.y)} labels; they must be equally many")
    return samples


def split_stratified(strata: Array, share: float) -> tuple[Tensor, Tensor]:
    """Positions for training and test: ceil(share · N) test samples, every stratum in proportion, always the same."""
    _, stratum, counts = np.unique(strata, return_inverse=True, return_counts=True)
    exact = counts * share
    take = np.floor(exact).astype(np.int64)
    missing = math.ceil(round(len(stratum) * share, 6)) - int(take.sum())
    by_remainder = np.argsort(take - exact, kind="stable")
    with_room = by_remainder[(take < counts - 1)[by_remainder]]  # training keeps one of every stratum
    take[with_room[:missing]] += 1
    random = np.random.RandomState(SPLIT_SEED)  # its streams are frozen across numpy versions
    chosen = [random.permutation(np.flatnonzero(stratum == index))[:number] for index, number in enumerate(take)]
    is_test = np.zeros(len(stratum), dtype=bool)
    is_test[np.concatenate(chosen)] = True
    return torch.from_numpy(np.flatnonzero(~is_test)), torch.from_numpy(np.flatnonzero(is_test))


def neutral_scale(x: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std where none are published: 0.5 and 0.5 for images, nothing (0 and 1) for floats."""
    channels = x.shape[1] if x.dim() == 4 else 1
    return ((0.0,) * channels, (1.0,) * channels) if x.is_floating_point() else ((0.5,) * channels, (0.5,) * channels)


def class_names(parts: list[Samples], given: Array | None, where: str) -> tuple[str, ...]:
    """The given names, or the numbers themselves; labels must fit them."""
    present = torch.unique(torch.cat([part.y for part in parts])).tolist()
    highest = max(present, default=0)
    if given is not None:
        if given.ndim != 1:
            raise InputError(f"{where}: expected `classes` to be a list of names, got shape {given.shape}; fix it")
        names = tuple(str(name) for name in given)
        if highest >= len(names):
            raise InputError(f"{where}: label {highest} is out of range for {len(names)} classes; fix one of them")
        return names
    gap = next((number for number, label in enumerate(present) if number != label), None)
    if gap is not None:
        raise InputError(
            f"{where}: labels must be 0..K-1, but {gap} never occurs while {highest} does; "
            "renumber them or add an array `classes` of names"
        )
    return tuple(str(number) for number in range(highest + 1))
