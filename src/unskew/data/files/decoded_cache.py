"""A cache of decoded arrays, for files that are slow to read: image folders and LZMA archives."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from unskew.base import storage
from unskew.base.cache import cache_dir
from unskew.base.errors import is_from_signal
from unskew.data.files.arrays import UNREADABLE, Arrays

log = logging.getLogger(__name__)


def load_or_decode(origin: Path, variant: str, decode: Callable[[], Arrays]) -> Arrays:
    """What `decode` gives, kept in the cache until the files change; works without a writable cache, too."""
    store = cache_dir() / "decoded" / f"{_key(origin, variant)}.npz"
    try:
        with np.load(store, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        pass
    except UNREADABLE as error:
        log.warning("the cached %s is unreadable (%s); decoding %s again", store.name, error, origin)
    arrays = decode()
    try:
        storage.write_atomic(store, lambda file: np.savez(file, **arrays), sync=False)  # type: ignore[arg-type]
    except OSError as error:
        if is_from_signal(error):
            raise
        log.info("decoded %s is not cached: %s", origin, error)
    return arrays


def _key(origin: Path, variant: str) -> str:
    digest = hashlib.sha256(json.dumps([str(origin.resolve()), variant]).encode())
    for path, stat in _stats(origin):
        # a file's times of change and its number cannot be set by who puts another one in its place
        about = path, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino
        digest.update(json.dumps(about).encode())
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
