"""Users' own Python: a file or module that registers components, or one function in it."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import threading
import traceback
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from unskew.base.errors import InputError, one_line

_importing = threading.RLock()


def load_plugin(path: str) -> None:
    """Imports a Python file (`mine/method.py`) or module (`mine.method`) for what it registers; once for each path."""
    load_module(path, "plugin")


def load_object(target: str, what: str) -> Any:
    """The object that `file.py:name` or `package.module:name` stands for; `what` it is for begins the error's line."""
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise InputError(f"{what} '{target}': expected file.py:function or package.module:function")
    module = load_module(place, what)
    if not hasattr(module, name):
        own = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        raise InputError(f"{what} {target}: there is no '{name}' in {place}; it has: {', '.join(own) or 'nothing'}")
    return getattr(module, name)


def call_object(target: str, what: str, *args: Any) -> Any:
    """Loads a function (or class) and calls it; whatever it raises becomes one line that names the file."""
    function = load_object(target, what)
    if not callable(function):
        raise InputError(f"{what} {target}: expected a function or class, got {type(function).__name__}")
    try:
        return function(*args)
    except InputError as error:
        raise InputError(f"{what} {target}: {error}") from None
    except (Exception, SystemExit) as error:
        raise InputError(f"{what} {target} failed: {_explain(error, target.rpartition(':')[0])}") from error


def load_module(place: str, what: str) -> ModuleType:
    """The module of a Python file or of a name; a file is run once, however many things it is asked for."""
    is_file = place.endswith(".py") or "/" in place
    if is_file and not Path(place).expanduser().is_file():
        raise InputError(f"{what} {place}: there is no such file; give its path from the current folder")
    try:
        with _importing:
            return _load_file(Path(place).expanduser().resolve()) if is_file else _load_name(place)
    except (Exception, SystemExit) as error:
        raise InputError(f"{what} {place} cannot be imported: {_explain(error, place)}") from error


def _load_name(name: str) -> ModuleType:
    with _search_also(Path.cwd()):
        return importlib.import_module(name)


def _load_file(path: Path) -> ModuleType:
    name = f"unskew_plugin_{path.stem}_{zlib.crc32(str(path).encode() + path.read_bytes()):08x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("not a Python file; its name must end in .py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        with _search_also(path.parent):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextlib.contextmanager
def _search_also(folder: Path) -> Iterator[None]:
    """Lets imports find the modules of a folder; last, so that it hides nothing installed."""
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _explain(error: BaseException, place: str) -> str:
    """The error's type and text, and the line of the user's file that led to it."""
    stem = Path(place).stem if place.endswith(".py") else place.rpartition(".")[2]
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).stem == stem]
    return f"{type(error).__name__}: {one_line(error)}" + (f" (line {lines[-1]})" if lines else "")
