"""Users' own Python: a file or module that registers components, or one function in it."""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.util
import sys
import threading
import traceback
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from unskew.base import user_code
from unskew.base.errors import InputError, is_from_signal, one_line
from unskew.base.process import keep_torch_modes, renew_in_forked
from unskew.base.registry import Registry

FOLDER = "expected a Python file or module, got a folder, of which nothing is imported; name a Python file in it"
_PREFIX = "unskew_plugin_"
_importing = threading.RLock()


def _renew_lock() -> None:
    global _importing
    _importing = threading.RLock()


renew_in_forked(_renew_lock)
_loaded: dict[str, ModuleType] = {}
"""By whole path, or by name."""
_versions: dict[Path, list[str]] = {}
"""The modules that a file was loaded as, one after each edit."""
_folders: list[Path] = []
"""Where resumed runs were begun."""


def load_plugin(path: str) -> None:
    """Imports a Python file (`mine/method.py`) or module (`mine.method`) for what it registers; once for each path."""
    load_module(path, "plugin")


def load_object(target: str, what: str) -> Any:
    """The object that `file.py:name` or `package.module:name` stands for; `what` it is for begins the error's line."""
    place, _, name = target.rpartition(":")
    module = load_home(target, what)
    if not hasattr(module, name):
        own = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        raise InputError(f"{what} {target}: there is no '{name}' in {place}; it has: {', '.join(own) or 'nothing'}")
    return getattr(module, name)


def load_home(target: str, what: str) -> ModuleType:
    """The module that `file.py:name` or `package.module:name` stands in."""
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise InputError(f"{what} '{target}': expected file.py:function or package.module:function")
    return load_module(place, what)


def call_object(target: str, what: str, **given: Any) -> Any:
    """Loads a function (or class) and calls it with these values in their order; what it raises becomes one line."""
    function = load_object(target, what)
    if not callable(function):
        raise InputError(f"{what} {target}: expected a function or class, got {type(function).__name__}")
    try:
        with keep_torch_modes():
            return function(*given.values())
    except InputError as error:
        raise InputError(f"{what} {target}: {error}") from None
    except (Exception, SystemExit) as error:
        called = ""
        if isinstance(error, TypeError) and error.__traceback__ and error.__traceback__.tb_next is None:
            called = f"; it is called with ({', '.join(given)})"  # none of its lines ran: it takes something else
        raise InputError(f"{what} {target} failed: {_explain(error, target.rpartition(':')[0])}{called}") from error


def load_module(place: str, what: str) -> ModuleType:
    """The module of a Python file or of a name; it is run once, however many things it is asked for."""
    path = find_file(place) if is_file(place) else None
    if is_file(place) and path is None and Path(place).expanduser().is_dir():
        raise InputError(f"{what} {place}: {FOLDER}")
    if is_file(place) and path is None:
        raise InputError(f"{what} {place}: there is no such file; give its path from the current folder")
    if path is None and not all(part.isidentifier() for part in place.split(".")):
        raise InputError(f"{what} '{place}': expected a Python file (mine/method.py) or module (mine.method)")
    key = str(path) if path else place
    try:
        with _importing:
            if key not in _loaded:
                _loaded[key] = _load_file(path) if path else _load_name(place)
            return _loaded[key]
    except InputError as error:
        raise InputError(f"{what} {place}: {error}") from None
    except BaseException as error:  # of any class: a plugin may have one of its own
        if isinstance(error, KeyboardInterrupt) or is_from_signal(error):
            raise
        raise InputError(f"{what} {place} cannot be imported: {_explain(error, place)}") from error


def is_file(place: str) -> bool:
    """Whether it names a file, and not a module."""
    return place.endswith(".py") or "/" in place


def find_file(place: str) -> Path | None:
    """A file's whole path, from the current folder or from where a resumed run began."""
    for folder in (Path(), *_folders):
        path = folder / Path(place).expanduser()
        if path.is_file():
            return path.resolve()
    return None


def also_search(folder: str) -> None:
    """Relative places are looked for in this folder, too, if the current one does not have them."""
    if Path(folder) not in _folders:
        _folders.insert(0, Path(folder))


def forget_edited() -> None:
    """Lets what was edited since it was loaded be loaded anew when it is next asked for."""
    with _importing:
        for key, module in list(_loaded.items()):
            if user_code.is_outdated(module):
                del _loaded[key]
                files = user_code.files_of(module)
                for name, other in list(sys.modules.items()):
                    file = getattr(other, "__file__", None)
                    # a plugin's own module stays, for the objects that there are; its next version has another name
                    if file and not name.startswith(_PREFIX) and name != "__main__" and Path(file).resolve() in files:
                        del sys.modules[name]


def _load_name(name: str) -> ModuleType:
    earlier = [] if name in sys.modules else [name]
    with Registry.replacing(earlier), _search_also(Path.cwd(), *_folders), _keep_streams(), keep_torch_modes():
        module = importlib.import_module(name)
    if getattr(module, "__file__", None) is None and hasattr(module, "__path__"):
        for mine in earlier:
            sys.modules.pop(mine, None)
        raise InputError(FOLDER)
    user_code.note_plugin(module)
    return module


class _Source(importlib.machinery.SourceFileLoader):
    """Reads the file and no compiled copy: that of a file edited twice within a second may be of the first edit."""

    source = b""

    def get_code(self, fullname: str) -> CodeType:
        """The code of the file as it is now."""
        self.source = self.get_data(self.path)
        return self.source_to_code(self.source, self.path)


def _load_file(path: Path) -> ModuleType:
    if path.suffix != ".py":
        raise ImportError("not a Python file; its name must end in .py")
    versions = _versions.setdefault(path, [])
    number = f"_{len(versions)}" if versions else ""
    name = f"{_PREFIX}{path.stem}_{zlib.crc32(str(path).encode()):08x}{number}"
    loader = _Source(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    before = dict(sys.modules)
    try:
        with Registry.replacing(versions), _search_also(path.parent), _keep_streams(), keep_torch_modes():
            loader.exec_module(module)
            _refuse_others(module, path.parent, before)
    except BaseException:
        del sys.modules[name]
        raise
    versions.append(name)
    user_code.note_plugin(module, loader.source)
    return module


def _refuse_others(module: ModuleType, folder: Path, before: dict[str, ModuleType]) -> None:
    """An error where an import found not the file beside the plugin, but another of its name that was loaded before."""
    for _, one in user_code.walk_imports(module):
        first = one.__name__.partition(".")[0] if isinstance(one, ModuleType) else ""
        other = getattr(before.get(first), "__file__", None)
        own = [path.resolve() for path in (folder / f"{first}.py", folder / first / "__init__.py") if path.is_file()]
        if first != module.__name__ and other and own and Path(other).resolve() not in own:
            raise InputError(
                f"imports '{first}', which is {other} in this process, and not {own[0]}; give one of them another name"
            )


@contextlib.contextmanager
def _keep_streams() -> Iterator[None]:
    """Refuses a plugin that takes the program's output away, and gives it back."""
    before = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    try:
        yield
    finally:
        gone = [name for name, stream in before.items() if stream is not None and getattr(sys, name) is None]
        for name in gone:
            setattr(sys, name, before[name])
    if gone:
        raise InputError(f"sets sys.{gone[0]} to None, where results and errors are written; leave it as it is")


@contextlib.contextmanager
def _search_also(*folders: Path) -> Iterator[None]:
    """Lets imports find the modules of these folders; last, so that they hide nothing installed."""
    before = sys.dont_write_bytecode
    sys.path.extend(map(str, folders))
    importlib.invalidate_caches()  # a file written a moment ago is not in the folder's list yet
    sys.dont_write_bytecode = True  # see _Source
    try:
        yield
    finally:
        sys.dont_write_bytecode = before
        for folder in map(str, folders):  # the last one is ours: the program may have it too, further up
            if folder in sys.path:
                del sys.path[len(sys.path) - 1 - sys.path[::-1].index(folder)]


def _explain(error: BaseException, place: str) -> str:
    """The error's type and text, the line of the user's file that led to it, and where names of unskew's are."""
    stem = Path(place).stem if place.endswith(".py") else place.rpartition(".")[2]
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).stem == stem]
    moved = isinstance(error, ImportError) and (error.name or "").partition(".")[0] == "unskew"
    hint = (
        "; import what you need from the top, such as 'from unskew import Method, param, registries'" if moved else ""
    )
    if isinstance(error, TypeError) and "non-frozen dataclass" in str(error):
        hint = "; leave @dataclass out: registering a class makes it one"
    return f"{type(error).__name__}: {one_line(error)}" + (f" (line {lines[-1]})" if lines else "") + hint
