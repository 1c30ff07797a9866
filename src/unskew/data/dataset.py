"""A data set held once in memory: samples as tensors, clients are index lists elsewhere."""

from __future__ import annotations

import hashlib
import logging
import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unskew.base import torch_private
from unskew.base.errors import InputError, one_line
from unskew.base.glance import glance
from unskew.base.once import warn_once
from unskew.base.process import without_lost_threads
from unskew.base.text import count_of

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Samples:
    """Inputs `x` ([N, C, H, W] uint8 images, or float32 of any shape [N, ...]) and integer labels `y` ([N] int64).

    NumPy arrays and lists become tensors.
    """

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        # views of one data set are made all the time: whatever is a tensor already costs nothing here
        if type(self.x) is not Tensor or self.x.requires_grad:
            object.__setattr__(self, "x", _to_tensor(self.x, "inputs"))
        if type(self.y) is not Tensor:
            object.__setattr__(self, "y", _to_labels(_to_tensor(self.y, "labels")))

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: Tensor) -> Samples:
        """The samples at these positions."""
        return Samples(self.x[index], self.y[index])

    def to(self, device: torch.device) -> Samples:
        """The samples on this device."""
        return Samples(self.x.to(device), self.y.to(device))


@dataclass(frozen=True)
class Dataset:
    """Training and test samples with what is known of them; `mean` and `std` normalise a channel after x / 255."""

    name: str
    train: Samples
    test: Samples
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    validation: Samples | None = None
    groups: Tensor | None = None
    """Per training sample: the domain or natural client it belongs to, as an index into `group_names`."""
    group_names: tuple[str, ...] = field(default=())
    test_groups: Tensor | None = None

    @without_lost_threads()
    def __post_init__(self) -> None:
        _read_about(self)
        for part, samples in (("train", self.train), ("test", self.test), ("validation", self.validation)):
            if samples is not None:
                _check(self.name, part, samples, self.num_classes)
                _check_alike(self, part, samples)
        _check_groups(self)

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.classes)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input: (channels, height, width) for images."""
        return tuple(self.train.x.shape[1:])

    def to(self, device: torch.device) -> Dataset:
        """The data set on this device, where every client's batches are gathered; itself if it is there already."""
        if self.train.y.device == device:
            return self
        validation = self.validation.to(device) if self.validation is not None else None
        return replace(self, train=self.train.to(device), test=self.test.to(device), validation=validation)

    def fingerprint(self) -> str:
        """A short hash of all that results depend on: the same data give the same text. Found once, until changed."""
        samples = [part for part in (self.train, self.test, self.validation) if part is not None]
        tensors = [tensor for part in samples for tensor in (part.x, part.y)]
        tensors += [groups for groups in (self.groups, self.test_groups) if groups is not None]
        # the count does not see what is written through .data or NumPy, nor a glance every exchange of neighbours
        seen = [(torch_private.count_changes(tensor), glance(tensor)) for tensor in tensors]
        if self._found.get("seen") != seen:
            about = self.num_classes, self.mean, self.std, self.validation is None, self.groups is None
            digest = hashlib.sha256(repr(about).encode())  # 0.25 s for CIFAR-10; processors have instructions for it
            for tensor in tensors:
                digest.update(repr((tuple(tensor.shape), str(tensor.dtype))).encode())
                digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
            self._found.update(seen=seen, text=_VERSION + digest.hexdigest()[:16])
        return str(self._found["text"])

    @cached_property
    def _found(self) -> dict[str, Any]:
        return {}

    def has_fingerprint(self, text: str) -> bool:
        """Whether a text, perhaps of an older version, is the fingerprint of these data."""
        return text == (self.fingerprint() if text.startswith(_VERSION) else self._sampled_fingerprint)

    @cached_property
    def _sampled_fingerprint(self) -> str:
        """What older versions wrote: labels and a sample of the inputs."""
        digest = hashlib.sha256()
        for samples in (self.train, self.test):
            digest.update(repr((tuple(samples.x.shape), str(samples.x.dtype))).encode())
            digest.update(samples.y.cpu().numpy().tobytes())
            step = max(1, len(samples) // 1000)
            digest.update(samples.x[::step].cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]


def _to_tensor(value: Any, what: str) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, np.ma.MaskedArray):
        raise InputError(f"samples: {what} are a masked array, whose mask would be ignored; fill it with .filled(0)")
    if not isinstance(value, (list, tuple, np.ndarray)):
        raise InputError(f"samples: expected {what} as a tensor, an array or a list, got {type(value).__name__}")
    try:
        return torch.as_tensor(np.ascontiguousarray(value) if isinstance(value, np.ndarray) else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"samples: expected {what} as numbers in rows of equal length ({one_line(error)[:120]}); use a tensor"
        ) from None


def _to_labels(labels: Tensor) -> Tensor:
    whole = not labels.is_floating_point() and not labels.is_complex() and labels.dtype != torch.bool
    return labels.to(torch.int64) if whole else labels


# ----------------------------------------------------------------------------------------- what is refused


def _read_about(data: Dataset) -> None:
    """Name, classes, mean and std as they should be: lists become tuples, and what cannot be is refused."""
    if not isinstance(data.name, str):
        raise InputError(f"data: expected a text as name, got {data.name!r}")
    for part, samples in (("train", data.train), ("test", data.test), ("validation", data.validation)):
        if not isinstance(samples, Samples) and not (part == "validation" and samples is None):
            raise InputError(
                f"data '{data.name}': expected unskew.Samples as {part}, got {type(samples).__name__}; "
                "write Samples(x, y)"
            )
    if not isinstance(data.classes, (list, tuple)) or not data.classes:
        raise InputError(
            f"data '{data.name}': expected classes as a list of names, one for each label, got {data.classes!r}"
        )
    object.__setattr__(data, "classes", tuple(str(name) for name in data.classes))
    if not isinstance(data.group_names, (list, tuple, np.ndarray)):
        raise InputError(
            f"data '{data.name}': expected group_names as a list of names, one for each group, got "
            f"{data.group_names!r}; leave it out if there are none"
        )
    object.__setattr__(data, "group_names", tuple(str(name) for name in data.group_names))
    for key in ("mean", "std"):
        object.__setattr__(data, key, _read_scale(data.name, key, getattr(data, key)))


def _read_scale(name: str, key: str, value: Any) -> tuple[float, ...]:
    given = value.tolist() if isinstance(value, (Tensor, np.ndarray)) else value
    plain = isinstance(given, (list, tuple)) and all(isinstance(v, (int, float, np.number)) for v in given)
    wanted = "finite numbers" if key == "mean" else "finite numbers above 0"
    if not plain or not all(math.isfinite(v) and (key == "mean" or v > 0) for v in given):
        raise InputError(
            f"data '{name}': expected {key} as a tuple of {wanted}, one per channel (0.5 is neutral), got {value!r}"
        )
    return tuple(float(v) for v in given)


# ------------------------------------------------------------------------------------------- fingerprints

_VERSION = "2-"
"""Begins the fingerprints of this version; those of the first had no such beginning."""


def is_old(fingerprint: str) -> bool:
    """Whether a fingerprint is of an older version, which looked at a sample of the inputs only."""
    return bool(fingerprint) and not fingerprint.startswith(_VERSION)


def may_be_same(one: str, other: str) -> bool:
    """Whether two fingerprints may be of the same data: they are not known to differ."""
    return one == other or is_old(one) != is_old(other) or not (one and other)


def _check_alike(data: Dataset, part: str, samples: Samples) -> None:
    """Every part has inputs of one shape, and images a mean and a std for each channel."""
    x, like = samples.x, data.train.x
    if x.shape[1:] != like.shape[1:] or x.is_floating_point() != like.is_floating_point():
        raise InputError(
            f"data '{data.name}': {part} inputs are {x.dtype} {tuple(x.shape[1:])}, those of train are "
            f"{like.dtype} {tuple(like.shape[1:])}; make them alike"
        )
    channels = x.shape[1] if x.dim() > 1 else 1
    given = len(data.mean), len(data.std)
    if not x.is_floating_point() and any(number not in (1, channels) for number in given):
        raise InputError(
            f"data '{data.name}': expected mean and std for each of {count_of(channels, 'channel')}, "
            f"got mean {data.mean} and std {data.std}"
        )
    device = data.train.y.device
    if {x.device, samples.y.device, device} != {device} or device.type == "meta":
        raise InputError(
            f"data '{data.name}': expected all tensors on one device, got {part} inputs on {x.device} and labels on "
            f"{samples.y.device}, train on {device}; move them to the CPU"
        )


def _check(name: str, part: str, samples: Samples, num_classes: int) -> None:
    x, y = samples.x, samples.y
    _check_inputs(name, part, x)
    if len(x) != y.numel():
        raise InputError(f"data '{name}': {part} has {len(x)} inputs but {y.numel()} labels; they must be equally many")
    if len(x) == 0:
        raise InputError(f"data '{name}': {part} holds no samples; give it at least one")
    if y.dtype != torch.int64 or y.dim() != 1:
        raise InputError(
            f"data '{name}': {part} labels must be a flat int64 tensor, got {y.dtype} of shape {tuple(y.shape)}; "
            "convert them with .long() and .flatten()"
        )
    if x.device.type == "meta" or y.device.type == "meta":
        return  # refused below, where all parts are compared
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= num_classes:
        at = int(((y < 0) | (y >= num_classes)).nonzero()[0])
        raise InputError(
            f"data '{name}': {part} labels must be in 0..{num_classes - 1}, as there are "
            f"{count_of(num_classes, 'class', 'classes')}, got {low}..{high} (the first at position {at}); "
            "renumber the labels"
        )
    _check_values(name, part, x)


def _check_inputs(name: str, part: str, x: Tensor) -> None:
    if x.layout != torch.strided:
        raise InputError(f"data '{name}': {part} inputs must be dense, got {x.layout}; use .to_dense()")
    if x.dim() < 2 or 0 in x.shape[1:]:
        raise InputError(
            f"data '{name}': expected {part} inputs as [N, features] or images [N, channels, height, width], "
            f"got shape {tuple(x.shape)}"
        )
    if not x.is_floating_point() and x.dtype != torch.uint8:
        raise InputError(
            f"data '{name}': expected {part} inputs as uint8 (0..255) or float32, got {x.dtype}; convert them with "
            ".to(torch.uint8) or .float()"
        )
    if part == "train" and x.dim() == 4 and x.shape[3] in (1, 3, 4) and x.shape[1] > 4:
        channels, height, width = x.shape[1:]
        warn_once(
            log,
            f"data '{name}': images of shape {tuple(x.shape[1:])} are {channels} channels of {height}x{width} here; if "
            "the channels come last, hand over x.permute(0, 3, 1, 2) (numpy: x.transpose(0, 3, 1, 2))",
        )


def _check_values(name: str, part: str, x: Tensor) -> None:
    """No NaN among floats; says where float images look as if they were meant to be 0..255."""
    if not x.is_floating_point():
        return
    if not torch.isfinite(x).all():
        at = (~torch.isfinite(x)).nonzero()[0].tolist()
        raise InputError(
            f"data '{name}': {part} inputs hold NaN or infinite values, the first in sample {at[0]} at {at[1:]}; "
            "remove or replace them"
        )
    if part == "train" and x.dim() > 2 and 16 < x.max() <= 255 and x.min() >= 0:
        warn_once(
            log,
            f"data '{name}': inputs are floats up to {float(x.max()):g}, which are used as they are; if they are grey "
            "values, divide them by 255 or hand them over as uint8",
        )


def _check_groups(data: Dataset) -> None:
    for key, samples in (("groups", data.train), ("test_groups", data.test)):
        given: Any = getattr(data, key)
        if given is None:
            continue
        groups = _to_labels(_to_tensor(given, key))
        object.__setattr__(data, key, groups)
        known = len(data.group_names) or math.inf
        fits = groups.dtype == torch.int64 and groups.shape == (len(samples),)
        if not fits or int(groups.min()) < 0 or int(groups.max()) >= known:
            got = f"{groups.dtype} {tuple(groups.shape)}" if not fits else f"{int(groups.min())}..{int(groups.max())}"
            names = f", an index into the {known} group_names" if data.group_names else " from 0 up"
            raise InputError(
                f"data '{data.name}': expected {key} as a number for each of {len(samples)} samples{names}, got {got}"
            )


def warn_unseen(data: Dataset) -> None:
    """Says which classes are tested but never trained: nobody can learn them."""
    if data.num_classes == 1:
        warn_once(log, f"data '{data.name}' have one class only ({data.classes[0]}), so that every model is right")
    trained = torch.bincount(data.train.y, minlength=data.num_classes)
    tested = torch.bincount(data.test.y, minlength=data.num_classes)
    unseen = [data.classes[label] for label in ((tested > 0) & (trained == 0)).nonzero().flatten().tolist()]
    if unseen:
        more = f" and {len(unseen) - 5} more" if len(unseen) > 5 else ""
        warn_once(
            log,
            f"data '{data.name}': no training sample has class {', '.join(unseen[:5])}{more}, but test samples do; "
            "nobody can learn that",
        )
