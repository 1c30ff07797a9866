"""Files that commands write where the user says: never over what belongs to a run or to anybody else."""

from __future__ import annotations

from pathlib import Path

from unskew.base.errors import InputError, let_pass
from unskew.base.version import MAKER
from unskew.report.files import find_comparison_of
from unskew.runs.folder import find_run_of

PREDICTIONS = ("sample", "label", "predicted", "probability")
"""The columns of what `unskew predict` writes."""
MADE_ANEW = ("report.html", "curves.png")
"""What of a comparison commands may make anew: it shows its runs, and nothing reads it."""
PAGE = 'id="facts"'
"""What every page of `unskew report` holds."""


def check_out(path: Path) -> None:
    """Refuses a place that belongs to a run or a comparison, or that holds anything but an earlier file of its kind."""
    comparison = None if path.name in MADE_ANEW else find_comparison_of(path)
    for what, owner in (("run", find_run_of(path)), ("comparison", comparison)):
        if owner is not None:
            raise InputError(f"'{path}' belongs to the {what} in {owner}; choose another --out")
    try:
        taken = path.exists() and not (path.is_file() and _is_earlier(path.read_bytes(), path.suffix.lower()))
    except OSError as error:
        let_pass(error)
        raise InputError(f"cannot write '{path}': {error.strerror}; choose a writable place") from None
    if taken:
        raise InputError(f"'{path}' exists and was not written by this command; remove it or choose another name")


def _is_earlier(content: bytes, kind: str) -> bool:
    if not content:  # as mktemp makes them
        return True
    if kind == ".csv":
        return content.startswith(f"{','.join(PREDICTIONS)}\n".encode())
    return (PAGE if kind in (".html", ".htm") else MAKER).encode() in content
