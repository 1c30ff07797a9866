"""Loss terms, one file each; importing this package registers every file in it."""

import importlib
import pkgutil

from unskew.core.term import terms

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["terms"]
