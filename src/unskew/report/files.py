"""Pictures, whole or not at all; and a comparison's files in its folder: the newest at the top, others below `earlier`.

At any moment table.json says whose the other files at the top are: it comes first and leaves last. So nothing is lost
or mixed up where the command is cut off; the next one finishes what was begun.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unskew.base.errors import InputError, let_pass

EARLIER = "earlier"
_WRITING = ".writing-"
NAMES = (
    "table.json", "table.md", "table.csv", "table.tex", "curves.png", "split.png", "measures.png", "report.html",
    "trials.json", "trials.md", "trials.csv",
)  # fmt: skip
"""What a comparison writes beside its runs; the last ones if its settings were tuned."""
TUNED = "tuned"
"""The folder of the run files that a tuning chose; they are its own where trials.json is."""


def check_place(out: Path, *, tuning: bool = False) -> None:
    """Refuses a run's folder, and other files of the names that the comparison, or tuning, would write."""
    existing = [name for name in NAMES if (out / name).exists()]
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; choose another --out, a folder")
    if (out / "run.toml").exists():
        raise InputError(f"{out} is the folder of a run; choose another --out")
    if existing and _read_table(out / "table.json") is None:
        raise InputError(f"{out / existing[0]} already exists and belongs to no comparison; choose another --out")
    if tuning and not (out / "trials.json").exists() and (others := _list_tuned(out)):
        raise InputError(f"{out / others[0]} already exists and belongs to no tuning; choose another --out")
    if (out / EARLIER).exists() and not (out / EARLIER).is_dir():
        raise InputError(f"{out / EARLIER} is a file, but earlier comparisons are kept there; choose another --out")


def find_comparison_of(path: Path) -> Path | None:
    """The folder of the comparison whose own file this is or would be; None: it is no comparison's."""
    own = path.name.lower() in NAMES and _read_table(path.parent / "table.json") is not None
    return path.parent if own else None


@contextmanager
def writing_place(out: Path) -> Iterator[Path]:
    """A folder to write a comparison's files in; those that killed processes left are removed."""
    for left in out.glob(f"{_WRITING}*"):
        with _hold(left) as ours:
            if ours:
                shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=_WRITING) as name, _hold(Path(name)):
        yield Path(name)


@contextmanager
def _hold(folder: Path) -> Iterator[bool]:
    """Locks a folder as long as this process lives; says whether nobody else has it."""
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):  # no such locks here, or it has just gone
        yield False
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(handle)


def put_in_place(made: Path, out: Path) -> Path | None:
    """Moves the files of a comparison from the folder `made` to `out`; gives where those of another one are now.

    An earlier one whose runs are all in the new one, with the same metric, is not kept, but for run files that differ.
    """
    chosen = _list_tuned(made)
    check_place(out, tuning=bool(chosen))
    new, old = _read_table(made / "table.json"), _read_table(out / "table.json")
    assert new is not None
    kept = out / EARLIER / _name(old) if old is not None else None
    before = _list_tuned(out) if (out / "trials.json").exists() else []
    edited = _find_missing(out, before, made)
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        _move(out, kept, reversed((*NAMES, *before)))
        _drop_empty(out / TUNED)
    _move(made, out, (*NAMES, *chosen))
    _remove(out / EARLIER / _name(new), out)  # the same comparison, from before another one
    if kept is not None and old is not None and _contains(new, old):
        _remove(kept, out)
        return kept if edited else None
    return kept


def _list_tuned(folder: Path) -> list[str]:
    return sorted(f"{TUNED}/{path.name}" for path in (folder / TUNED).glob("*.toml"))


def _find_missing(folder: Path, names: Iterable[str], newer: Path) -> list[str]:
    """Which of these run files hold what no run file of the newer tuning does."""
    known = [(newer / name).read_bytes() for name in _list_tuned(newer)]
    return [name for name in names if (folder / name).read_bytes() not in known]


def _read_table(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        let_pass(error)
        return None
    return found if isinstance(found, dict) and {"title", "rows", "notes"} <= found.keys() else None


def _name(table: dict[str, Any]) -> str:
    """Names a comparison: what was compared, or the whole table where an older version did not write that."""
    about = json.dumps(table.get("comparison") or table, sort_keys=True)
    return hashlib.sha256(about.encode()).hexdigest()[:12]


def _contains(new: dict[str, Any], old: dict[str, Any]) -> bool:
    one, other = new.get("comparison") or {}, old.get("comparison")
    if not isinstance(other, dict) or not isinstance(other.get("runs"), list):
        return {**new, "comparison": None} == {**old, "comparison": None}
    return one.get("metric") == other.get("metric") and set(other["runs"]) <= set(one.get("runs", []))


def _move(source: Path, target: Path, names: Iterable[str]) -> None:
    """Moves what there is of these files; a run file, which the user may have edited, never over another one."""
    tuned = _list_tuned(source)
    for name in names:
        if (source / name).exists():
            (target / name).parent.mkdir(exist_ok=True)
            (source / name).replace(_find_room(source / name, target / name) if name in tuned else target / name)


def _find_room(file: Path, target: Path) -> Path:
    names = itertools.chain([target], (target.with_stem(f"{target.stem}.{number}") for number in itertools.count(2)))
    return next(path for path in names if not path.exists() or path.read_bytes() == file.read_bytes())


def _remove(folder: Path, newer: Path) -> None:
    """Removes a comparison's files and the folders that this leaves empty; run files that `newer` lacks stay."""
    tuned = _list_tuned(folder)
    gone = set(tuned) - set(_find_missing(folder, tuned, newer))
    for name in reversed((*NAMES, *sorted(gone))):
        (folder / name).unlink(missing_ok=True)
    for place in (folder / TUNED, folder, folder.parent):
        _drop_empty(place)


def _drop_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def draw_whole(
    path: Path, draw: Callable[[Path], object], check: Callable[[Path, bytes], object] | None = None
) -> None:
    """Draws a picture with `draw`, whole or not at all; `check` may refuse to put these bytes in its place."""
    part = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        draw(part)
        if check is not None:
            check(path, part.read_bytes())
        part.replace(path)
    except OSError as error:
        let_pass(error)
        raise InputError(f"cannot write '{path}': {error.strerror or error}; choose a writable place") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
