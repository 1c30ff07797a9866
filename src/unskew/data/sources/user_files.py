"""The user's own data: an .npz, folders of images, or a Python function."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unskew.base.errors import InputError, one_line
from unskew.base.once import warn_once
from unskew.base.plugins import call_object, load_home
from unskew.base.registry import param
from unskew.data.dataset import Dataset, Samples
from unskew.data.files.arrays import Array, class_names, neutral_scale, split_stratified, to_samples
from unskew.data.files.finder import Finder
from unskew.data.files.images import Tags, decode_images, is_image
from unskew.data.files.numpy_files import TEST, load_npz_dataset, load_npz_samples
from unskew.data.sources.base import About, OwnSamples, Source, sources

VALIDATION_FOLDERS = ("val", "valid", "validation")
PARTS = ("train", "training", "test", "testing", *VALIDATION_FOLDERS)
"""Names of folders that are parts of a data set, however they are spelt, if they hold folders and no images."""
log = logging.getLogger(__name__)
YOURS = About("as many as you have", licence="yours")


@sources.register("npz")
class Npz(Source):
    """Your own .npz: `train_images`, `train_labels`, `test_images`, `test_labels`, or `images` and `labels`.

    Images are uint8 [N, H, W], [N, H, W, C] or [N, C, H, W], flat ones [N, D]; features are float [N, D] and used as
    they are. Optional:
    `classes` (names), `train_clients` or `train_domains` (the natural client or domain of every training sample).
    """

    path: str = param(doc="the file")
    test: float = param(default=TEST, gt=0, lt=1, doc="share of test samples where the file has no split of its own")

    about = YOURS

    def load(self, find: Finder) -> Dataset:
        """The data set that the arrays describe."""
        path = Path(self.path).expanduser()
        return load_npz_dataset(path.name, path, test=self.test)

    def load_own(self, find: Finder) -> OwnSamples:
        """All samples of `images` and `labels`, or the training samples."""
        return OwnSamples(*load_npz_samples(Path(self.path).expanduser()))


@sources.register("folder")
class Folder(Source):
    """Your own images: one folder per class, optionally below `train`, `test` and `val`."""

    path: str = param(doc="the folder")
    size: int = param(default=32, ge=1, le=4096, doc="images are resized to this height and width")
    grey: bool = param(default=False, doc="one channel instead of three")
    test: float = param(default=TEST, gt=0, lt=1, doc="share of test samples where there is no folder `test`")

    about = YOURS

    def load(self, find: Finder) -> Dataset:
        """The images, labelled by the name of their folder."""
        root = _require_folder(self.path)
        parts = {part: root / part for part in ("train", "test") if (root / part).is_dir()}
        if len(parts) < 2:
            _refuse_parts(root, "class")
            classes = tuple(_list_subfolders(root, "class"))
            whole = self._read(root, classes)
            train, test = split_stratified(whole.y.numpy(), self.test)
            return Dataset(root.name, whole.take(train), whole.take(test), classes, *neutral_scale(whole.x))
        if self.test != TEST:
            warn_once(log, f"{root} has a folder test, so test = {self.test:g} does nothing; leave it out")
        for name in VALIDATION_FOLDERS:
            if (root / name).is_dir():
                parts["val"] = root / name
        classes = tuple(sorted({name for part in parts.values() for name in _list_subfolders(part, "class")}))
        read = {part: self._read(folder, classes) for part, folder in parts.items()}
        scale = neutral_scale(read["train"].x)
        return Dataset(root.name, read["train"], read["test"], classes, *scale, validation=read.get("val"))

    def load_own(self, find: Finder) -> OwnSamples:
        """All images, or those below `train` where there is a `test`."""
        root = _require_folder(self.path)
        if not ((root / "train").is_dir() and (root / "test").is_dir()):
            _refuse_parts(root, "class")
            classes = tuple(_list_subfolders(root, "class"))
            return OwnSamples(self._read(root, classes), classes)
        classes = tuple(_list_subfolders(root / "train", "class"))
        left_out = sum(is_image(path.name) for path in (root / "test").rglob("*"))
        return OwnSamples(self._read(root / "train", classes), classes, left_out)

    def _read(self, folder: Path, classes: tuple[str, ...]) -> Samples:
        x, tags = decode_images(folder, _tag_by_folder(classes), f"folder {classes}", size=self.size, grey=self.grey)
        return Samples(torch.from_numpy(x), torch.from_numpy(tags[:, 0]))


@sources.register("clients_folder")
class ClientsFolder(Source):
    """Your own images with a natural split: one folder per client, below it one per class."""

    path: str = param(doc="the folder")
    size: int = param(default=32, ge=1, le=4096, doc="images are resized to this height and width")
    grey: bool = param(default=False, doc="one channel instead of three")
    test: float = param(default=TEST, gt=0, lt=1, doc="share of test samples, in every class of every client")

    about = YOURS

    def load(self, find: Finder) -> Dataset:
        """The images, grouped by client."""
        root = _require_folder(self.path)
        _refuse_parts(root, "client", depth=2)
        clients = _list_subfolders(root, "client")
        classes = tuple(sorted({name for client in clients for name in _list_subfolders(root / client, "class")}))
        tags = _tag_by_folder(clients, classes)
        x, found = decode_images(root, tags, f"clients {clients} {classes}", size=self.size, grey=self.grey)
        client, label = torch.from_numpy(found[:, 0].copy()), torch.from_numpy(found[:, 1].copy())
        whole = Samples(torch.from_numpy(x), label)
        train, test = split_stratified(found[:, 0] * len(classes) + found[:, 1], self.test)
        return Dataset(
            root.name, whole.take(train), whole.take(test), classes, *neutral_scale(whole.x),
            groups=client[train], group_names=tuple(clients), test_groups=client[test],
        )  # fmt: skip


def _require_folder(path: str) -> Path:
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise InputError(f"the folder '{folder}' does not exist; give a folder with one sub-folder per class")
    return folder


def _refuse_parts(root: Path, kind: str, depth: int = 1) -> None:
    """Refuses train and test folders that would be taken for classes or clients; says where classes hold folders only.

    `depth`: how many folders an image lies in below the root where all is well.
    """
    folders = [path for path in sorted(root.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    deep = [path for path in folders if not any(map(_holds_images, _descend(path, depth - 1))) and _has_images(path)]
    parts = [path.name for path in deep if path.name.lower() in PARTS]
    if parts:
        side = "expected 'train' and 'test' side by side, spelt so, with one folder per class in each"
        said = side if kind == "class" else "expected one folder per client, and in each one per class"
        raise InputError(f"{root}: {said}; got {', '.join(parts)}, which would be taken for a {kind}")
    if deep and len(deep) == len(folders):
        what = f"no {kind}'s folder holds images but in folders below it"
        warn_once(log, f"{root}: {what}; {deep[0].name} and the others of the first level are the names that are used")


def _descend(folder: Path, levels: int) -> list[Path]:
    found = [folder]
    for _ in range(levels):
        found = [inner for path in found for inner in path.iterdir() if inner.is_dir()]
    return found


def _has_images(folder: Path) -> bool:
    """In it, or anywhere below it."""
    return any(is_image(path.name) for path in folder.rglob("*"))


def _holds_images(folder: Path) -> bool:
    return any(path.is_file() and is_image(path.name) for path in folder.iterdir())


def _list_subfolders(folder: Path, kind: str) -> list[str]:
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not names:
        raise InputError(f"{folder}: expected one sub-folder per {kind}, found none; sort the images into sub-folders")
    for name in names:
        if kind == "class" and not _has_images(folder / name):
            raise InputError(f"{folder / name}: holds no images; add some or remove the folder")
    return names


def _tag_by_folder(*levels: tuple[str, ...] | list[str]) -> Tags:
    """Tags by the first folders of a path, one level of names each."""
    numbers = [{name: number for number, name in enumerate(level)} for level in levels]

    def tags(name: str) -> tuple[int, ...] | None:
        folders = name.split("/")[:-1]
        if len(folders) < len(numbers):
            return None
        found = [level.get(folder) for level, folder in zip(numbers, folders, strict=False)]
        return tuple(number for number in found if number is not None) if None not in found else None

    return tags


@sources.register("python")
class PythonDataset(Source):
    """Your own function, `file.py:function` or `package.module:function`.

    It returns a Dataset, or the four arrays (x_train, y_train, x_test, y_test).
    """

    target: str = param(doc="file.py:function or package.module:function")

    about = YOURS

    def code_used(self) -> tuple[Any, ...]:
        """The module of the function."""
        return (load_home(self.target, "data"),)

    def load(self, find: Finder) -> Dataset:
        """What the function returns."""
        result = call_object(self.target, "data")
        if isinstance(result, Dataset):
            return result
        if not isinstance(result, (tuple, list)) or len(result) != 4:
            raise InputError(
                f"data {self.target} must return a Dataset or (x_train, y_train, x_test, y_test), "
                f"got {type(result).__name__}"
            )
        where = f"data {self.target}"
        x_train, y_train, x_test, y_test = (_to_array(value, where) for value in result)
        train, test = to_samples(x_train, y_train, where), to_samples(x_test, y_test, where)
        classes = class_names([train, test], None, where)
        return Dataset(self.target.rpartition(":")[2], train, test, classes, *neutral_scale(train.x))


def _to_array(value: Any, where: str) -> Array:
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        why = one_line(error)[:120]
        raise InputError(f"{where}: expected arrays, got rows that differ in length ({why})") from None
