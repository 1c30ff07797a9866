"""The user's own code that a run uses, by content: plugin files, `python:` functions, classes of a script or notebook.

A file counts whole, and so do the user's files that it imports. A script or notebook also holds what starts the runs,
so there only the class counts, with the functions and values that its code names. What counts is what is loaded, which
an edited file no longer shows: a file is believed only as long as it says what the process runs.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import dis
import functools
import hashlib
import importlib.util
import inspect
import io
import pickle
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

from unskew.base.errors import InputError
from unskew.base.registry import Component

Files = dict[Path, str]
"""Files and the hashes of what they held when they were loaded."""

_named: set[str] = set()
"""Modules that the user named himself: they count wherever they lie."""
_seen: dict[str, tuple[Any, str]] = {}
"""By module: its spec, which a reload replaces, and the hash of what was loaded."""
_used: dict[str, tuple[Any, Files]] = {}
"""By plugin: its spec and all its files as they were when it was loaded; later imports may find newer ones."""
_on_disk: dict[str, Files] = {}
"""By plugin: what these files held then."""


def find(components: Iterable[Component | None]) -> dict[str, str]:
    """Hashes of the code of the user's that these components use, nested ones included, by readable names."""
    finder = _Finder()
    for component in _walk(components):
        for cls in type(component).__mro__:
            finder.add(cls)
        for used in _ask_used(component):
            finder.add(used)
    return {**_name_files(finder.files), **finder.loose}


def _ask_used(component: Component) -> tuple[Any, ...]:
    used: object = component.code_used()
    if not isinstance(used, (tuple, list)):
        raise InputError(
            f"{component.name}.code_used must return a tuple of modules, classes and functions, got {used!r}"
        )
    return tuple(used)


def names_attribute(components: Iterable[Component | None], name: str) -> bool:
    """Whether code of the user's that these components use names this attribute; that of a script only in classes."""
    for component in _walk(components):
        for cls in type(component).__mro__:
            module = sys.modules.get(cls.__module__)
            if not (_is_users(module) or _is_loose(cls)):
                continue
            own = [getattr(item, "__func__", getattr(item, "fget", item)) for item in vars(cls).values()]
            beside = vars(module).values() if _is_users(module) else ()
            if any(isinstance(each, FunctionType) and _names(each.__code__, name) for each in (*own, *beside)):
                return True
    return False


def _names(code: CodeType, name: str) -> bool:
    inside = (value for value in code.co_consts if isinstance(value, CodeType))
    return name in code.co_names or any(_names(each, name) for each in inside)


def note_plugin(module: ModuleType, source: bytes | None = None) -> None:
    """Remembers a module that the user named, and all its files as they are; `source` is what was executed."""
    _named.add(module.__name__)
    if source is not None:
        _seen[module.__name__] = module.__spec__, digest(source)
    files = _gather(module) if getattr(module, "__file__", None) else {}  # built-in ones have none
    _used[module.__name__] = module.__spec__, files
    held = {path: digest(_read(path) or b"") for path in files}
    if source is not None and module.__file__ is not None:
        held[Path(module.__file__).resolve()] = digest(source)
    _on_disk[module.__name__] = held


def files_of(module: ModuleType) -> Files:
    """A module's file and the user's files that it imports, as they were when they were loaded."""
    spec, files = _used.get(module.__name__, (None, {}))
    return files if files and spec is module.__spec__ else _gather(module)


def is_outdated(module: ModuleType) -> bool:
    """Whether one of a plugin's files is not as it was when it was loaded."""
    return any(digest(_read(path) or b"") != held for path, held in _on_disk[module.__name__].items())


def digest(data: bytes) -> str:
    """A short hash."""
    return hashlib.sha256(data).hexdigest()[:16]


def is_own(value: Any) -> bool:
    """Whether a class or function is the user's: of his files, of a script or notebook, or of no module at all."""
    return _is_loose(value) or _is_users(sys.modules.get(value.__module__ or ""))


def take_apart(function: FunctionType) -> tuple[Any, tuple[Any, ...]]:
    """What a function does, wherever it stands, and the values it needs: defaults, closure, globals of a script."""
    own = function.__code__
    closure = [_content(cell) for cell in function.__closure__ or ()]
    known = [function.__globals__[word] for word in _list_globals(own) if word in function.__globals__]
    about = function.__defaults__, function.__kwdefaults__, closure, known if _is_loose(function) else ()
    return _shape(own), about


def _walk(components: Iterable[Any]) -> Iterator[Component]:
    for component in components:
        if isinstance(component, Component):
            yield component
            yield from _walk(getattr(component, field.name) for field in dataclasses.fields(component))
        elif isinstance(component, (list, tuple)):
            yield from _walk(component)


def _name_files(files: Files) -> dict[str, str]:
    """Each file's name; with as many of its folders as tell it from the others."""
    names: dict[str, str] = {}
    for path, known in sorted(files.items()):
        length = 1
        while any(other != path and other.parts[-length:] == path.parts[-length:] for other in files):
            length += 1
        names["/".join(path.parts[-length:])] = known
    return names


# ------------------------------------------------------------------------------------------------ files


def _is_users(module: Any) -> bool:
    """Whether a module is the user's: neither of unskew nor installed, or named by him."""
    name, file = getattr(module, "__name__", ""), getattr(module, "__file__", None)
    if not file or name == "__main__" or name.partition(".")[0] == "unskew":
        return False
    return name in _named or _is_users_file(file)


@functools.cache
def _is_users_file(file: str) -> bool:
    path = Path(file).resolve()
    if {"site-packages", "dist-packages"} & set(path.parts):
        return False
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    installed = [Path(__file__).resolve().parents[1], *(Path(sysconfig.get_path(kind)).resolve() for kind in kinds)]
    return not any(path.is_relative_to(folder) for folder in installed)


_elsewhere: set[str] = set()
"""Files of the user's that other processes of a run loaded."""


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
        return found + [str(module.__file__) for module in new if isinstance(module, ModuleType) and _is_users(module)]


def note_loaded(files: Iterable[str]) -> None:
    """Another process of the run loaded these."""
    _elsewhere.update(files)


def name_unrecorded(files: Iterable[str], code: Mapping[str, str]) -> list[str]:
    """Those of the files that are no part of a run's recorded code."""
    return sorted({Path(file).name for file in files if digest(_read(Path(file)) or b"") not in code.values()})


def list_modules() -> list[ModuleType]:
    """The modules of this process that are the user's."""
    return [module for module in list(sys.modules.values()) if isinstance(module, ModuleType) and _is_users(module)]


def _gather(module: ModuleType) -> Files:
    found: Files = {}
    waiting: list[ModuleType | Path] = [module]
    while waiting:
        one = waiting.pop()
        path = one if isinstance(one, Path) else Path(str(one.__file__)).resolve()
        if path not in found:
            found[path] = digest(_read(path) or b"") if isinstance(one, Path) else _digest_loaded(one, path)
            waiting += _list_imports(one, path)
    return found


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _digest_loaded(module: ModuleType, path: Path) -> str:
    spec, known = _seen.get(module.__name__, (None, ""))
    if not known or spec is not module.__spec__:
        source = _read(path)
        if source is not None and (path.suffix != ".py" or _is_current(module, path, source)):
            known = digest(source)
        else:
            known = digest(repr(_Description(None).of_namespace(vars(module), module.__name__)).encode())
        _seen[module.__name__] = module.__spec__, known
    return known


def _is_current(module: ModuleType, path: Path, source: bytes) -> bool:
    """Whether what was loaded is in the file: it may have been edited since."""
    try:
        known = set(_list_shapes(compile(source, str(path), "exec", dont_inherit=True)))
    except (SyntaxError, ValueError):
        return False
    return all(_shape(code) in known for code in _list_codes(vars(module).values(), module.__name__))


def _list_codes(values: Iterable[Any], module: str) -> Iterator[CodeType]:
    for value in list(values):
        if isinstance(value, type) and value.__module__ == module:
            own = [getattr(item, "__func__", getattr(item, "fget", item)) for item in vars(value).values()]
            yield from _list_codes((item for item in own if isinstance(item, FunctionType)), module)
        elif isinstance(value, FunctionType) and value.__module__ == module:
            code = inspect.unwrap(value).__code__
            if code.co_filename == getattr(sys.modules.get(module), "__file__", None):  # not made by a decorator
                yield code


def _list_imports(one: ModuleType | Path, path: Path) -> Iterator[ModuleType | Path]:
    """The user's modules that a module refers to or imports anywhere, and those that it has still to import."""
    name, values = ("", {}) if isinstance(one, Path) else (one.__name__, vars(one))
    package = "" if isinstance(one, Path) else one.__package__ or ""
    wanted = {str(getattr(value, "__module__", "")) for value in list(values.values())}
    wanted |= {".".join(name.split(".")[:length]) for length in range(1, name.count(".") + 1)}
    referred = [value for value in list(values.values()) if isinstance(value, ModuleType)]
    loaded = [sys.modules.get(other) for other in sorted(wanted)]
    yield from (module for module in (*referred, *loaded) if module is not None and _is_users(module))
    for other in sorted(_list_imported_names(_read(path) or b"", package)):
        if other in sys.modules:
            if _is_users(sys.modules[other]):
                yield sys.modules[other]
        elif (top := sys.modules.get(other.partition(".")[0])) is None or _is_users(top):
            yield from _find_file(other, path.parent)


def _list_imported_names(source: bytes, package: str) -> set[str]:
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return set()
    found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                try:
                    base = importlib.util.resolve_name("." * node.level + base, package)
                except ImportError:
                    continue
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return found


def _find_file(name: str, folder: Path) -> Iterator[Path]:
    """The user's file that an import will find."""
    inside = Path(*name.split("."))
    for root in (folder, *map(Path, sys.path)):
        for path in (root / inside.with_suffix(".py"), root / inside / "__init__.py"):
            if path.is_file():
                if _is_users_file(str(path)):
                    yield path.resolve()
                return


# ------------------------------------------------------------------------------- code without a file to count


def _shape(code: CodeType) -> tuple[Any, ...]:
    """What a code object does, wherever it stands."""

    def plain(value: Any) -> Any:
        if isinstance(value, CodeType):
            return _shape(value)
        return ("set", *sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)

    sizes = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    return code.co_name, sizes, names, code.co_code, tuple(map(plain, code.co_consts))


def _list_shapes(code: CodeType) -> Iterator[tuple[Any, ...]]:
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield _shape(value)
            yield from _list_shapes(value)


class _Finder:
    """Collects what is the user's: files, and by name what stands in none that could count whole."""

    def __init__(self) -> None:
        self.files: Files = {}
        self.loose: dict[str, str] = {}
        self._added: set[int] = set()

    def add(self, used: Any) -> None:
        """A class, function or module that a run uses."""
        if id(used) in self._added:
            return
        self._added.add(id(used))
        module = used if isinstance(used, ModuleType) else sys.modules.get(used.__module__)
        if _is_users(module):
            self.files |= files_of(module)  # type: ignore[arg-type]
        name = getattr(used, "__qualname__", "")
        # a class made inside a function may hold values that its file does not show
        if not isinstance(used, ModuleType) and (_is_loose(used) or ("<locals>" in name and _is_users(module))):
            said = repr(_Description(self).of(used, whole=True))
            self.loose[f"{used.__module__}.{name}"] = digest(said.encode())
        elif isinstance(used, type) and not _is_users(module):
            for value in vars(used).values():  # what a plugin put into a class of unskew's
                if isinstance(value, FunctionType) and _is_users(home := sys.modules.get(value.__module__)):
                    self.files |= files_of(home)  # type: ignore[arg-type]
                elif isinstance(value, FunctionType) and _is_loose(value):
                    self.add(value)


def _is_loose(used: Any) -> bool:
    """Whether code stands in a script or notebook, or in no module at all."""
    name = getattr(used, "__module__", None)
    module = sys.modules.get(name or "")
    return name == "__main__" or (
        name is not None and getattr(module, "__file__", None) is None and getattr(module, "__spec__", None) is None
    )


class _Description:
    """Says what a class or function does, down to the last value that its code names."""

    def __init__(self, finder: _Finder | None) -> None:
        self._add = finder.add if finder else lambda _: None
        self.said: set[int] = set()

    def of(self, value: Any, whole: bool = False) -> Any:
        """Plain text and numbers in tuples; `whole`: in any case, not only what stands in no file."""
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
            return type(value).__name__, repr(value)
        if isinstance(value, ModuleType):
            self._add(value)
            return "module", value.__name__
        if id(value) in self.said:
            return "again", getattr(value, "__qualname__", type(value).__qualname__)
        self.said.add(id(value))
        if isinstance(value, (list, tuple)):
            return type(value).__name__, *map(self.of, value)
        if isinstance(value, dict):
            return "dict", *((self.of(key), self.of(item)) for key, item in value.items())
        if isinstance(value, (set, frozenset)):
            return "set", *sorted(repr(self.of(item)) for item in value)
        if isinstance(value, (staticmethod, classmethod)):
            return type(value).__name__, self.of(value.__func__, whole)
        if isinstance(value, property):
            return "property", self.of(value.fget, whole)
        if isinstance(value, (type, FunctionType)):
            return self._of_code(value, whole)
        return self._of_object(value)

    def of_namespace(self, values: dict[str, Any], module: str) -> Any:
        """All that a module defines itself."""
        own = {
            name: value
            for name, value in values.items()
            if not name.startswith("__") and getattr(value, "__module__", module) == module
        }
        return [(name, self.of(value, whole=True)) for name, value in sorted(own.items())]

    def _of_code(self, value: Any, whole: bool) -> Any:
        name = value.__module__, value.__qualname__
        if not whole and not _is_loose(value):
            self._add(value)
            return name
        if isinstance(value, type):
            return *name, *map(self.of, value.__bases__), *self._of_members(value)
        shape, about = take_apart(value)
        return *name, shape, *map(self.of, about)

    def _of_members(self, cls: type) -> Iterator[Any]:
        # the values of options are the component's own
        options = {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
        for name, value in sorted(vars(cls).items()):
            made = name.startswith(("__", "_abc_")) and not (
                isinstance(value, FunctionType) and value.__module__ == cls.__module__
                and value.__code__.co_filename != "<string>" and "pydantic" not in value.__code__.co_filename
            )  # fmt: skip
            if not made and name not in options:
                yield name, self.of(value, whole=True)

    def _of_object(self, value: Any) -> Any:
        self.of(type(value))
        if isinstance(value, functools.partial):
            return "partial", self.of(value.func), self.of(value.args), self.of(value.keywords)
        with contextlib.suppress(Exception):  # whatever an object has against being written down
            _Pickler(text := io.BytesIO()).dump(value)
            return type(value).__qualname__, digest(text.getvalue())
        return type(value).__module__, type(value).__qualname__


class _Pickler(pickle.Pickler):
    """Writes tensors down by their values: torch's own way names their place in memory."""

    def reducer_override(self, value: Any) -> Any:
        """A tensor's shape, type and numbers; anything else as usual."""
        if not isinstance(value, torch.Tensor):
            return NotImplemented
        numbers = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        return tuple, ((str(value.dtype), tuple(value.shape), numbers.tobytes()),)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _list_globals(code: CodeType) -> list[str]:
    found = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return sorted(found.union(*(_list_globals(value) for value in code.co_consts if isinstance(value, CodeType))))
