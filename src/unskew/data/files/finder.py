"""Where the files of a data set are: the given folder, UNSKEW_DATA, the user's cache, else their official source."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from unskew.base.cache import cache_dir
from unskew.base.errors import InputError
from unskew.base.once import warn_once
from unskew.data.files.download import Progress, TransferError, fetch

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Needed:
    """One file of a data set as it is published; `also` are patterns of what may replace it (unpacked)."""

    name: str
    url: str = ""
    size: int | None = None
    checksum: str | None = None
    """`md5:…` or `sha256:…` as published; None where none is known for certain."""
    also: tuple[str, ...] = ()


class Finder:
    """Finds needed files, downloading the missing ones unless `offline`."""

    def __init__(
        self, data_dir: str | Path | None = None, *, offline: bool = False, progress: Progress | None = None
    ) -> None:
        self.roots = [cache_dir()]
        if os.environ.get("UNSKEW_DATA"):
            self.roots.insert(0, Path(os.environ["UNSKEW_DATA"]).expanduser())
        if data_dir is not None:
            given = Path(data_dir).expanduser()
            if not given.is_dir():
                raise InputError(f"the data folder '{given}' does not exist; create it or give another one")
            self.roots.insert(0, given)
        self.offline, self.progress = offline, progress

    def __call__(
        self, dataset: str, files: Sequence[Needed], folders: Sequence[str] = (), instead: str = ""
    ) -> list[Path]:
        """The paths of all files of a data set, or the one path that matches the pattern `instead`."""
        check_variable()
        for root in self.roots:
            places = _places(root, dataset, folders)
            found = [_first(places, needed) for needed in files]
            complete = [path for path in found if path]
            if files and len(complete) == len(files):
                return complete
            packed = next(_matches(places, instead), None) if instead else None
            if packed:
                return [packed]
        return [self.locate(dataset, needed, folders) or self._download(dataset, needed) for needed in files]

    def locate(self, dataset: str, needed: Needed, folders: Sequence[str] = ()) -> Path | None:
        """The path of one file if it is already here; downloads nothing."""
        found = (_first(_places(root, dataset, folders), needed) for root in self.roots)
        return next((path for path in found if path), None)

    def _download(self, dataset: str, needed: Needed) -> Path:
        mirror = os.environ.get("UNSKEW_MIRROR")
        url = f"{mirror.rstrip('/')}/{dataset}/{needed.name}" if mirror else needed.url
        hint = f"put it into {self.roots[0] / dataset} or set UNSKEW_DATA to the folder that holds {dataset}/"
        if self.offline or not url:
            why = "downloads are off" if url else "it has no official download"
            raise InputError(f"{dataset}: {needed.name} not found and {why}; {hint}")
        target = cache_dir() / dataset / needed.name
        try:
            fetch(url, target, needed.checksum, self.progress)
        except TransferError as error:
            raise InputError(
                f"{dataset}: {needed.name} not found and could not be downloaded from {url} ({error}); {hint}"
            ) from None
        return target


def check_variable() -> None:
    """UNSKEW_DATA must name a folder; who looks there for files is told otherwise."""
    given = os.environ.get("UNSKEW_DATA")
    folder = Path(given).expanduser() if given else None
    if folder is not None and not folder.is_dir():
        if folder.is_file():
            raise InputError(f"UNSKEW_DATA is '{folder}', which is a file; name the folder that holds the data sets")
        warn_once(log, f"UNSKEW_DATA is '{folder}', which does not exist")


def _places(root: Path, dataset: str, folders: Sequence[str]) -> list[Path]:
    return [root / dataset, *(root / folder for folder in folders), root]


def _first(places: Sequence[Path], needed: Needed) -> Path | None:
    for pattern in (needed.name, *needed.also):
        for path in _matches(places, pattern):
            return path
    return None


def _matches(places: Sequence[Path], pattern: str) -> Iterator[Path]:
    for place in places:
        if place.is_dir():
            yield from sorted(path for path in place.glob(pattern) if path.suffix != ".part")
