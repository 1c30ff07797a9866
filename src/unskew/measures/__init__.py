"""Figures of runs, one file per measure; importing this package registers every file in it."""

import importlib
import pkgutil

from unskew.measures.base import measures

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["measures"]
