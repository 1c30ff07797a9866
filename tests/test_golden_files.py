"""Every golden file is read by a test."""

import ast
from fnmatch import fnmatch
from pathlib import Path

import pytest

from support import GOLDEN


def patterns():
    """The names and patterns of files in tests that read golden files."""
    found = set()
    for path in Path(__file__).parent.rglob("test_*.py"):
        tree = ast.parse(path.read_text())
        called = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        if called & {"golden", "golden_names"} and path != Path(__file__):
            found |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and _is_name(node.value)}
    return found


def _is_name(value):
    return isinstance(value, str) and len(value.strip("*")) > 3 and " " not in value


PATTERNS = patterns()


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.json")))
def test_a_golden_file_is_read(name):
    assert any(fnmatch(name, pattern) for pattern in PATTERNS), f"no test reads {name}.json"


def test_another_file_would_be_noticed():
    assert not any(fnmatch("fedprox_of_nobody", pattern) for pattern in PATTERNS)
