"""The user's cache: downloads, decoded images, measured choices."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_dir() -> Path:
    """The user's cache folder; UNSKEW_CACHE moves it."""
    return Path(os.environ.get("UNSKEW_CACHE") or platformdirs.user_cache_dir("unskew")).expanduser()
