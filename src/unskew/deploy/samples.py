"""What a site trains on: an .npz file, a folder of images with a sub-folder per class, or any data set by its text."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

from unskew.base.errors import InputError
from unskew.base.text import count_of
from unskew.data.files.finder import Finder
from unskew.data.sources.base import OwnSamples, Source, sources

log = logging.getLogger(__name__)


def find_source(text: str) -> Source:
    """The source that a path or a data set's text stands for, its path absolute."""
    place = Path(text).expanduser()
    if place.is_dir():
        return sources.build({"name": "folder", "path": str(place.absolute())})
    if place.is_file() or place.suffix == ".npz":
        return sources.build({"name": "npz", "path": str(place.absolute())})
    if "/" in text.partition(":")[0].partition("(")[0]:
        raise InputError(f"the folder or file '{text}' does not exist; give an .npz file or a folder of images")
    source = sources.build(text)
    path = getattr(source, "path", None)
    if isinstance(path, str):
        return dataclasses.replace(source, path=str(Path(path).expanduser().absolute()))  # type: ignore[call-arg]
    return source


def read_own(source: Source) -> OwnSamples:
    """The samples that a site trains on; says how many are left out."""
    own = source.load_own(Finder(None))
    if not len(own.samples):
        raise InputError(f"data {source}: no samples; a site needs at least one")
    if own.left_out:
        log.warning(
            "%s beside the training samples are not used: sites hold out a share of those (evaluation.holdout)",
            count_of(own.left_out, "test sample"),
        )  # fmt: skip
    return own
