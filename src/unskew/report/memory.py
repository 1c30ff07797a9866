"""The memory of a process and of those that it started, as this machine tells it (Linux)."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def measure_memory(pid: int) -> int | None:
    """Bytes that a process and those that it started use, shared pages counted once; None where that cannot be seen."""
    try:
        family = _find_family(pid)
        sizes = [_measure_process(each) for each in family]
    except OSError:
        return None
    known = [size for size in sizes if size is not None]
    return sum(known) if known else None


def _find_family(pid: int) -> list[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError, ValueError, IndexError):
                text = (entry / "stat").read_text(errors="replace")
                parents[int(entry.name)] = int(text.rpartition(")")[2].split()[1])
    family = [pid]
    for member in family:  # grows meanwhile
        family += [child for child, parent in parents.items() if parent == member and child not in family]
    return family


def _measure_process(pid: int) -> int | None:
    for name, key in (("smaps_rollup", "Pss:"), ("status", "VmRSS:")):
        with suppress(OSError, ValueError, IndexError, StopIteration):
            lines = (Path("/proc") / str(pid) / name).read_text().splitlines()
            return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(key))
    return None
