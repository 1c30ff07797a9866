"""Which modules and files are the user's, and which of them a run loads."""

from __future__ import annotations

import functools
import hashlib
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

Files = dict[Path, str]
"""Files and the hashes of what they held when they were loaded."""

_named: set[str] = set()
"""Modules that the user named himself: they count wherever they lie."""
_elsewhere: set[str] = set()
"""Files of the user's that other processes of a run loaded."""


def is_own(value: Any) -> bool:
    """Whether a class or function is the user's: of his files, of a script or notebook, or of no module at all."""
    return is_loose(value) or is_users(sys.modules.get(value.__module__ or ""))


def is_loose(used: Any) -> bool:
    """Whether code stands in a script or notebook, or in no module at all."""
    name = getattr(used, "__module__", None)
    module = sys.modules.get(name or "")
    return name == "__main__" or (
        name is not None and getattr(module, "__file__", None) is None and getattr(module, "__spec__", None) is None
    )


_COMPILED = "torch._inductor.runtime.cache_dir_utils"
"""Knows where torch's compiler keeps the modules that it makes."""


def is_users(module: Any) -> bool:
    """Whether a module is the user's: neither of unskew nor installed, or named by him."""
    name, file = getattr(module, "__name__", ""), getattr(module, "__file__", None)
    if not file or name == "__main__" or name.partition(".")[0] == "unskew":
        return False
    return name in _named or is_users_file(file)


@functools.cache
def is_users_file(file: str) -> bool:
    """Whether a file is neither of unskew nor installed."""
    path = Path(file).resolve()
    if {"site-packages", "dist-packages"} & set(path.parts):
        return False
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    installed = [Path(__file__).resolve().parents[2], *(Path(sysconfig.get_path(kind)).resolve() for kind in kinds)]
    if compiler := sys.modules.get(_COMPILED):  # what torch's compiler makes is nobody's
        installed.append(Path(compiler.cache_dir()).resolve())
    return not any(path.is_relative_to(folder) for folder in installed)


def note_named(name: str) -> None:
    """The user named this module himself."""
    _named.add(name)


def list_modules() -> list[ModuleType]:
    """The modules of this process that are the user's."""
    return [module for module in list(sys.modules.values()) if isinstance(module, ModuleType) and is_users(module)]


class Loaded:
    """Notices files of the user's that are loaded from now on."""

    def __init__(self) -> None:
        self._known = set(sys.modules)

    def list_files(self) -> list[str]:
        """Those that were loaded since it was made or asked last, here or in other processes."""
        found = sorted(_elsewhere)
        _elsewhere.clear()
        if len(sys.modules) == len(self._known):
            return found
        new = [sys.modules[name] for name in sys.modules.keys() - self._known]
        self._known = set(sys.modules)
        return found + [str(module.__file__) for module in new if isinstance(module, ModuleType) and is_users(module)]


def note_loaded(files: Iterable[str]) -> None:
    """Another process of the run loaded these."""
    _elsewhere.update(files)


def name_unrecorded(files: Iterable[str], code: Mapping[str, str]) -> list[str]:
    """Those of the files that are no part of a run's recorded code."""
    return sorted({Path(file).name for file in files if digest(read(Path(file)) or b"") not in code.values()})


def read(path: Path) -> bytes | None:
    """What a file holds now; nothing where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return None


def digest(data: bytes) -> str:
    """A short hash."""
    return hashlib.sha256(data).hexdigest()[:16]
