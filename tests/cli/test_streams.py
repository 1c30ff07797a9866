"""Standard streams that are closed or full, a current folder that is gone: the work is done, or there is one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

QUICK = "run --model mlp --split iid --clients 2 --rounds 1 --executor serial --out {out}"


def shell(line: str, redirect: str, folder: Path) -> tuple[int, str]:
    words = line.format(out=folder / "run")
    done = subprocess.run(
        ["sh", "-c", f'"{sys.executable}" -m unskew {words} {redirect}'], cwd=folder, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


REDIRECTIONS = ["<&- >&- 2>&-", "2>/dev/full", ">&-", "2>&-", ">&- 2>&-", ">&- 2>/dev/full"]
LINES = [("--help", how) for how in REDIRECTIONS] + [
    pytest.param(QUICK, how, marks=[] if how in REDIRECTIONS[:2] else pytest.mark.slow) for how in REDIRECTIONS
]


@pytest.mark.slow
@pytest.mark.parametrize(("line", "redirect"), LINES)
def test_closed_and_full_streams(line: str, redirect: str, tmp_path: Path):
    code, said = shell(line, redirect, tmp_path)
    assert code == 0 and "Traceback" not in said
    assert line == "--help" or (tmp_path / "run" / "summary.json").is_file()


@pytest.mark.parametrize("redirect", ["2>&-", "2>/dev/full", ">&- 2>&-", ">/dev/full 2>/dev/full"])
def test_errors_that_nobody_can_read_keep_their_code(redirect: str, tmp_path: Path):
    assert shell("run --nosuch", redirect, tmp_path) == (2, "")


def test_a_current_folder_that_is_gone(tmp_path: Path):
    gone = tmp_path / "gone"
    line = f'mkdir {gone}; cd {gone}; rmdir {gone}; "{sys.executable}" -c "from unskew.cli import main; main()" models'
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "error: the current folder no longer exists; go to another one (cd)\n"
