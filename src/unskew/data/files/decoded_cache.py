"""A cache of decoded arrays, for files that are slow to read: image folders and LZMA archives."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from unskew.base.cache import cache_dir

log = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]


def cached(origin: Path, variant: str, decode: Callable[[], Arrays]) -> Arrays:
    """What `decode` gives, remembered for these files as they are now; works without a writable cache, too."""
    store = cache_dir() / "decoded" / f"{_key(origin, variant)}.npz"
    try:
        with np.load(store, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        pass
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        log.warning("the cached %s is unreadable (%s); decoding %s again", store.name, error, origin)
    arrays = decode()
    try:
        _write(store, arrays)
    except OSError as error:
        log.info("decoded %s is not cached: %s", origin, error)
    return arrays


def _write(store: Path, arrays: Arrays) -> None:
    store.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=store.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        Path(name).replace(store)
    finally:
        Path(name).unlink(missing_ok=True)


def _key(origin: Path, variant: str) -> str:
    digest = hashlib.sha256(json.dumps([str(origin.resolve()), variant]).encode())
    for path, stat in _stats(origin):
        digest.update(json.dumps([path, stat.st_size, stat.st_mtime_ns]).encode())
    return digest.hexdigest()[:32]


def _stats(origin: Path) -> Iterator[tuple[str, os.stat_result]]:
    if not origin.is_dir():
        yield "", origin.stat()
        return
    for folder, folders, names in os.walk(origin):
        folders.sort()
        for name in sorted(names):
            path = Path(folder, name)
            if path.is_file():  # a broken link is not
                yield str(path.relative_to(origin)), path.stat()
