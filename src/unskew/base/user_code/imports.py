"""Follows imports to the user's files that a module uses, as they were when they were loaded."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from unskew.base.user_code.calls import list_settings
from unskew.base.user_code.code_objects import list_codes, list_shapes, shape_of
from unskew.base.user_code.description import Description
from unskew.base.user_code.files import Files, digest, is_users, is_users_file, note_named, read

_seen: dict[str, tuple[Any, str]] = {}
"""By module: its spec, which a reload replaces, and the hash of what was loaded."""
_used: dict[str, tuple[Any, Files]] = {}
"""By plugin: its spec and all its files as they were when it was loaded; later imports may find newer ones."""
_on_disk: dict[str, Files] = {}
"""By plugin: what these files held then."""


def note_plugin(module: ModuleType, source: bytes | None = None) -> None:
    """Remembers a module that the user named, and all its files as they are; `source` is what was executed."""
    note_named(module.__name__)
    if source is not None:
        _seen[module.__name__] = module.__spec__, digest(source)
    files = gather(module) if getattr(module, "__file__", None) else {}  # built-in ones have none
    for _, one in walk_imports(module) if files else ():
        if isinstance(one, ModuleType):
            list_settings(one, begin=True)
    _used[module.__name__] = module.__spec__, files
    held = {path: digest(read(path) or b"") for path in files}
    if source is not None and module.__file__ is not None:
        held[Path(module.__file__).resolve()] = digest(source)
    _on_disk[module.__name__] = held


def files_of(module: ModuleType) -> Files:
    """A module's file and the user's files that it imports, as they were when they were loaded."""
    spec, files = _used.get(module.__name__, (None, {}))
    return files if files and spec is module.__spec__ else gather(module)


def is_outdated(module: ModuleType) -> bool:
    """Whether one of a plugin's files is not as it was when it was loaded."""
    return any(digest(read(path) or b"") != held for path, held in _on_disk[module.__name__].items())


def gather(module: ModuleType | Path) -> Files:
    """A file and the user's files that it imports: those that are loaded as they were then, others as they are."""
    return {
        path: digest(read(path) or b"") if isinstance(one, Path) else _digest_loaded(one, path)
        for path, one in walk_imports(module)
    }


def walk_imports(module: ModuleType | Path) -> Iterator[tuple[Path, ModuleType | Path]]:
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
    yield from (module for module in (*referred, *loaded) if module is not None and is_users(module))
    for other in sorted(_list_imported_names(read(path) or b"", package)):
        if other in sys.modules:
            if is_users(sys.modules[other]):
                yield sys.modules[other]
        elif (top := sys.modules.get(other.partition(".")[0])) is None or is_users(top):
            yield from find_file(other, path.parent)


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


def find_file(name: str, folder: Path) -> Iterator[Path]:
    """The user's file that an import will find."""
    inside = Path(*name.split("."))
    for root in (folder, *map(Path, sys.path)):
        for path in (root / inside.with_suffix(".py"), root / inside / "__init__.py"):
            if path.is_file():
                if is_users_file(str(path)):
                    yield path.resolve()
                return


def _digest_loaded(module: ModuleType, path: Path) -> str:
    spec, known = _seen.get(module.__name__, (None, ""))
    if not known or spec is not module.__spec__:
        source = read(path)
        if source is not None and (path.suffix != ".py" or _is_current(module, path, source)):
            known = digest(source)
        else:
            known = digest(repr(Description().of_namespace(vars(module), module.__name__)).encode())
        _seen[module.__name__] = module.__spec__, known
    return known


def _is_current(module: ModuleType, path: Path, source: bytes) -> bool:
    """Whether what was loaded is in the file: it may have been edited since."""
    try:
        known = set(list_shapes(compile(source, str(path), "exec", dont_inherit=True)))
    except (SyntaxError, ValueError):
        return False
    return all(shape_of(code) in known for code in list_codes(vars(module).values(), module.__name__))
