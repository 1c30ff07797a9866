"""Trackers, one file each; importing this package registers them. Their own packages are imported when used."""

import importlib
import pkgutil

from unskew.runs.tracking.base import trackers

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["trackers"]
