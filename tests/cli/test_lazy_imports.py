"""What needs no tensors starts without torch; what lists imports no more than it lists."""

from __future__ import annotations

import subprocess
import sys

import pytest

from unskew.cli.app import COMMANDS, load_command

CALL = "from unskew.cli import main; main(sys.argv[1:])"


def imports_of(code: str, *arguments: str) -> tuple[set[str], int]:
    """The modules that a program has imported when it ends, and its exit code."""
    code = f"import atexit, sys; atexit.register(lambda: print('imported:', *sys.modules)); {code}"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    last = done.stdout.splitlines()[-1]
    assert last.startswith("imported:") and "Traceback" not in done.stderr
    return set(last.split()), done.returncode


@pytest.mark.parametrize("code", ["import unskew", "import unskew; dir(unskew)", "from unskew import InputError"])
def test_import_without_torch(code: str):
    modules, exit_code = imports_of(code)
    assert exit_code == 0 and "unskew" in modules and "torch" not in modules


@pytest.mark.parametrize(
    ("line", "expected"), [("--help", 0), ("-h", 0), ("--version", 0), ("", 2), ("nonsense", 2), ("--nonsense", 2)]
)
def test_answer_without_torch(line: str, expected: int):
    modules, exit_code = imports_of(CALL, *line.split())
    assert exit_code == expected and "torch" not in modules


@pytest.mark.parametrize("command", ["methods", "data", "models", "measures", "wire"])
def test_listing_imports_no_more_than_it_lists(command: str):
    modules, exit_code = imports_of(CALL, command)
    assert exit_code == 0 and "torch" in modules
    assert modules.isdisjoint(
        ["sklearn", "scipy", "matplotlib", "sympy", "torch._dynamo", "unskew.runs.config", "unskew.report"]
    )


def test_a_run_imports_neither_a_compiler_nor_scikit_learn():
    """Together they take as long as all else that a short run does."""
    modules, exit_code = imports_of("import unskew; unskew.run('fedavg', rounds=1, clients=4, split='iid')")
    assert exit_code == 0 and "torch" in modules
    assert modules.isdisjoint(["sklearn", "scipy", "matplotlib", "sympy", "torch._dynamo", "unskew.report"])


@pytest.mark.parametrize("name", COMMANDS)
def test_line_in_the_list_begins_the_command_s_help(name: str):
    first = load_command(name).help.split("\n\n")[0]
    assert " ".join(first.split()) == COMMANDS[name][1]
