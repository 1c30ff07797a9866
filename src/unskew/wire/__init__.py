"""What happens to replies on their way to the server, one file per processor; importing this registers them all."""

import importlib
import pkgutil

from unskew.wire.base import processors

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["processors"]
