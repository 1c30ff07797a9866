"""The user's own code that a run uses, by content: plugin files, `python:` functions, classes of a script or notebook.

A file counts whole, and so do the user's files that it imports. A script or notebook also holds what starts the runs,
so there only the class counts, with the functions and values that its code names. What counts is what is loaded, which
an edited file no longer shows: a file is believed only as long as it says what the process runs. Values that were
set in its module from outside count beside it (`module_values.py`).
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
import itertools
import logging
import pickle
import re
import struct
import sys
import sysconfig
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

import torch

from unskew.base.errors import InputError
from unskew.base.module_values import Source, list_values, read_source
from unskew.base.once import warn_once
from unskew.base.process import renew_in_forked
from unskew.base.registry import Component

log = logging.getLogger(__name__)

Files = dict[Path, str]
"""Files and the hashes of what they held when they were loaded."""

_GENERATORS = ("default_rng", "RandomState", "Random", "SystemRandom", "SeedSequence")

_PLUGIN = re.compile(r"(?<=unskew_plugin_).*")
"""What a plugin's module is called depends on where it lies; its file counts."""

_named: set[str] = set()
"""Modules that the user named himself: they count wherever they lie."""
_seen: dict[str, tuple[Any, str]] = {}
"""By module: its spec, which a reload replaces, and the hash of what was loaded."""
_unseeded: set[str] = set()
"""Functions that make generators without a seed."""
_values: dict[str, _Values] = {}
"""By module: what it holds that its file does not say."""
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
    _unseeded.update(finder.unseeded)
    return {**_name_files(finder.files), **finder.loose}


def say_unseeded() -> None:
    """Warns of code, asked for since the last time, that draws other numbers in every run."""
    for name in sorted(_unseeded):
        line = f"{name} makes a random generator without a seed, so that no run can be repeated"
        warn_once(log, f"{line}; take c.rng(purpose) or s.rng(purpose), or give it a seed")
    _unseeded.clear()


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
    for _, one in _walk_imports(module) if files else ():
        if isinstance(one, ModuleType):
            _list_settings(one, begin=True)
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


def _gather(module: ModuleType | Path) -> Files:
    return {
        path: digest(_read(path) or b"") if isinstance(one, Path) else _digest_loaded(one, path)
        for path, one in _walk_imports(module)
    }


def _walk_imports(module: ModuleType | Path) -> Iterator[tuple[Path, ModuleType | Path]]:
    """A module and what it imports, and so on: the file, and the module if it is loaded."""
    found: set[Path] = set()
    waiting: list[ModuleType | Path] = [module]
    while waiting:
        one = waiting.pop()
        path = one if isinstance(one, Path) else Path(str(one.__file__)).resolve()
        if path not in found:
            found.add(path)
            yield path, one
            waiting += _list_imports(one, path)


def _list_settings(module: ModuleType, begin: bool = False) -> dict[str, Any]:
    """A module's values as they were before the call of unskew's that is under way.

    Those of a module that code of the user's loaded only then are what its file makes of them: nobody has set any.
    """
    known = _values.get(module.__name__)
    if known is None or known.spec is not module.__spec__:
        path = Path(str(module.__file__)).resolve()
        source = read_source(_read(path) or b"" if path.suffix == ".py" else b"")
        known = _values[module.__name__] = _Values(module.__spec__, source)
        known.before = known.look(module) if begin else {}
    return known.before


@dataclasses.dataclass
class _Values:
    """What a module holds beyond what its file said when it was first looked at."""

    spec: Any
    source: Source
    before: dict[str, Any] = dataclasses.field(default_factory=dict)
    """When a call of unskew's began; what calls before it changed themselves is undone here."""
    after: dict[str, Any] = dataclasses.field(default_factory=dict)
    """When the last call ended."""

    def look(self, module: ModuleType) -> dict[str, Any]:
        return list_values(module, self.source, is_own, _is_loose, _Description(None).of)

    def begin(self, module: ModuleType) -> None:
        now, gone = self.look(module), object()
        as_left = {name for name in {*now, *self.before} if now.get(name, gone) == self.after.get(name, gone)}
        undone = {name: said for name, said in self.before.items() if name in as_left}
        self.before = undone | {name: said for name, said in now.items() if name not in as_left}


_calls: set[object] = set()
_counting = threading.RLock()


def _begin_forked() -> None:
    """No call of its parent's goes on in a forked process."""
    global _calls, _counting
    _calls, _counting = set(), threading.RLock()


renew_in_forked(_begin_forked)


@contextlib.contextmanager
def keep_values() -> Iterator[None]:
    """A call of unskew's: what it changes in the user's modules is no setting of theirs."""
    own = object()
    with _counting:
        if not _calls:
            _visit(_Values.begin)
            for module in list_modules():  # before any code of theirs runs
                _list_settings(module, begin=True)
        _calls.add(own)
    try:
        yield
    finally:
        with _counting:
            _calls.discard(own)
            if not _calls:
                for module in list_modules():
                    _list_settings(module)
                _visit(lambda known, module: setattr(known, "after", known.look(module)))


def _visit(ask: Callable[[_Values, ModuleType], None]) -> None:
    for name, known in list(_values.items()):
        module = sys.modules.get(name)
        if isinstance(module, ModuleType) and known.spec is module.__spec__:
            ask(known, module)
        else:
            del _values[name]


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
    # a package holds all its modules that somebody loaded, whether it imports them or not
    referred = [
        value for value in list(values.values())
        if isinstance(value, ModuleType) and not value.__name__.startswith(f"{name}.")
    ]  # fmt: skip
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
        self._listed: set[str] = set()
        self.unseeded: set[str] = set()
        """Functions that make generators of other numbers each time."""

    def add(self, used: Any) -> None:
        """A class, function or module that a run uses."""
        if id(used) in self._added:
            return
        self._added.add(id(used))
        module = used if isinstance(used, ModuleType) else sys.modules.get(used.__module__)
        if _is_users(module):
            self._add_module(module)  # type: ignore[arg-type]
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

    def note_draws(self, code: CodeType, place: str) -> None:
        """Looks for generators without a seed."""
        if _draws_unseeded(code):
            self.unseeded.add(f"{code.co_name} ({place}, line {code.co_firstlineno})")

    def add_import(self, name: str) -> None:
        """A module that code imports when it runs."""
        module = sys.modules.get(name)
        if module is not None:
            self.add(module)
        elif (top := sys.modules.get(name.partition(".")[0])) is None or _is_users(top):
            for path in _find_file(name, Path.cwd()):
                self.files |= _gather(path)

    def _add_module(self, module: ModuleType) -> None:
        self.files |= files_of(module)
        for path, one in _walk_imports(module):
            if isinstance(one, ModuleType) and one.__name__ not in self._listed:
                self._listed.add(one.__name__)
                for code in _list_codes(vars(one).values(), one.__name__):
                    self.note_draws(code, path.name)
                for name, said in sorted(_list_settings(one).items()):
                    key = f"{name} in {path.name}"  # a plugin's module is named by where it lies
                    self.loose[key] = digest((self.loose.get(key, "") + repr((name, said))).encode())


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
        self._import = finder.add_import if finder else lambda _: None
        self._note_draws = finder.note_draws if finder else lambda *_: None
        self._said: dict[int, tuple[int, Any]] = {}
        """What was said, by its place in memory, which nothing else may take meanwhile; with its number."""

    def of(self, value: Any, whole: bool = False) -> Any:
        """Plain text and numbers in tuples; `whole`: in any case, not only what stands in no file."""
        if type(value) in _PLAIN:
            return type(value).__name__, repr(value)
        if isinstance(value, ModuleType):
            self._add(value)
            return "module", value.__name__
        if id(value) in self._said:
            return "again", self._said[id(value)][0]
        self._said[id(value)] = len(self._said), value
        if isinstance(value, (type, FunctionType)):
            return self._of_code(value, whole)
        if isinstance(value, (staticmethod, classmethod)):
            return type(value).__name__, self.of(value.__func__, whole)
        if isinstance(value, property):
            return "property", *(self.of(each, whole) for each in (value.fget, value.fset))
        if isinstance(value, MethodType):
            return "method", self.of(value.__func__), self.of(value.__self__)
        if isinstance(value, functools.partial):
            return "partial", self.of(value.func), self.of(value.args), self.of(value.keywords)
        return self.of(type(value)), *self._of_content(value, whole)

    def _of_content(self, value: Any, whole: bool) -> Iterator[Any]:
        """What an object holds."""
        if isinstance(value, (dict, list, tuple, set, frozenset)) and (more := getattr(value, "__dict__", None)):
            yield self.of(dict(more))
        if isinstance(value, defaultdict):
            yield self.of(value.default_factory)
        if isinstance(value, (dict, MappingProxyType)):
            yield from ((self.of(key), self.of(item)) for key, item in value.items())
        elif isinstance(value, (list, tuple)):
            yield from map(self.of, value)
        elif isinstance(value, (set, frozenset)):
            yield from sorted(repr(self.of(item)) for item in value)
        elif isinstance(inside := inspect.getattr_static(value, "__wrapped__", None), FunctionType):
            yield self.of(inside, whole)  # functools.cache
        else:
            yield self._of_state(value)

    def _of_state(self, value: Any) -> Any:
        before = dict(self._said)
        with contextlib.suppress(Exception):  # whatever an object has against being written down
            _Pickler(text := io.BytesIO(), self).dump(value)
            return digest(text.getvalue())
        self._said = before  # what was said on the way is not in the text
        with contextlib.suppress(Exception):
            if held := vars(value):
                return self.of(dict(held))
        return show_uncopied(value)

    def of_namespace(self, values: dict[str, Any], module: str) -> Any:
        """All that a module defines itself."""
        own = {
            name: value
            for name, value in values.items()
            if not name.startswith("__") and getattr(value, "__module__", module) == module
        }
        return [(name, self.of(value, whole=True)) for name, value in sorted(own.items())]

    def _of_code(self, value: Any, whole: bool) -> Any:
        name = _PLUGIN.sub("", value.__module__ or ""), value.__qualname__
        if not whole and not _is_loose(value):
            self._add(value)
            return name
        if isinstance(value, type):
            kind = [self.of(type(value))] if _is_loose(type(value)) else []  # a metaclass of the user's
            return *name, *kind, *map(self.of, value.__bases__), *self._of_members(value)
        for imported in _list_code_imports(value.__code__):
            self._import(imported)
        self._note_draws(value.__code__, value.__module__)
        shape, about = take_apart(value)
        beside = [self.of(vars(value))] if vars(value) else []  # what a decorator kept, such as __wrapped__
        return *name, shape, *map(self.of, about), *beside

    def _of_members(self, cls: type) -> Iterator[Any]:
        # the values of options are the component's own; those of other classes are code
        fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
        options = {field.name for field in fields} if issubclass(cls, Component) else set()
        if not issubclass(cls, Component):
            yield from ((field.name, self.of(field.default_factory)) for field in fields)
        for name, field in (vars(cls).get("__pydantic_fields__") or {}).items():
            yield name, self.of(field.default), self.of(field.default_factory)
        for name, value in sorted(vars(cls).items()):
            made = name.startswith(("__", "_abc_")) and not (
                isinstance(value, FunctionType) and value.__module__ == cls.__module__
                and value.__code__.co_filename != "<string>" and "pydantic" not in value.__code__.co_filename
            )  # fmt: skip
            if not made and name not in options:
                yield name, self.of(value, whole=True)


_PLAIN = (type(None), bool, int, float, complex, str, bytes)


class _Pickler(pickle.Pickler):
    """Writes objects down by what they are made of: code as its description, tensors by their values."""

    def __init__(self, text: io.BytesIO, description: _Description) -> None:
        super().__init__(text)
        self._description = description

    def reducer_override(self, value: Any) -> Any:
        """What is written instead: torch's own way names a tensor's place in memory, pickle's the name of a class."""
        if isinstance(value, FunctionType) or (isinstance(value, type) and is_own(value)):
            return tuple, ((repr(self._description.of(value)),),)
        if isinstance(value, ModuleType):
            return tuple, (("module", value.__name__),)
        if not isinstance(value, torch.Tensor):
            return NotImplemented
        value = value.to_dense() if value.layout is not torch.strided else value
        numbers = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        return tuple, ((str(value.dtype), tuple(value.shape), numbers.tobytes()),)


def show_uncopied(value: Any) -> Any:
    """What an object that cannot be copied shows of what it holds."""
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, struct.Struct):
        return value.format
    with contextlib.suppress(Exception):
        return re.sub("0x[0-9a-f]+", "", repr(value))
    return ()


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _draws_unseeded(code: CodeType) -> bool:
    """Whether a function calls one that makes a generator, without any argument."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("PUSH_NULL", "PRECALL", "CACHE")]
    return any(
        step.argval in _GENERATORS and after.opname.startswith("CALL") and after.arg == 0
        for step, after in itertools.pairwise(steps)
    ) or any(_draws_unseeded(value) for value in code.co_consts if isinstance(value, CodeType))


def _list_code_imports(code: CodeType) -> list[str]:
    """The modules that a function imports, whole names; `from package import module` may mean one, too."""
    found, steps = set(), list(dis.get_instructions(code))
    for place, step in enumerate(steps):
        if step.opname == "IMPORT_NAME":
            found.add(str(step.argval))
        elif step.opname == "IMPORT_FROM":
            base = next(one.argval for one in reversed(steps[:place]) if one.opname == "IMPORT_NAME")
            found.add(f"{base}.{step.argval}")
    inside = (value for value in code.co_consts if isinstance(value, CodeType))
    return sorted(found.union(*map(_list_code_imports, inside)))


def _list_globals(code: CodeType) -> list[str]:
    found = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return sorted(found.union(*(_list_globals(value) for value in code.co_consts if isinstance(value, CodeType))))
