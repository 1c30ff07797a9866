"""The import of a user's own file."""

import sys

import pytest

from unskew.base.errors import InputError
from unskew.base.plugins import call_object, load_object, load_plugin
from unskew.models.base import architectures


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_plugin_registers_once(folder):
    code = '''
    from unskew.models.base import Architecture, architectures

    @architectures.register("of_plugin")
    class OfPlugin(Architecture):
        """Made by a test."""
    '''
    (folder / "mine.py").write_text("\n".join(line.removeprefix("    ") for line in code.splitlines()))
    try:
        load_plugin("mine.py")
        load_plugin(str(folder / "mine.py"))
        assert "of_plugin" in list(architectures)
    finally:
        architectures._classes.pop("of_plugin", None)


def test_a_plugin_that_fails_names_its_file_and_line(folder):
    (folder / "bad.py").write_text("\nraise ValueError('no')\n")
    for _ in range(2):
        with pytest.raises(InputError, match=r"plugin bad.py cannot be imported: ValueError: no \(line 2\)"):
            load_plugin("bad.py")
    (folder / "worse.py").write_text("def f(:\n")
    with pytest.raises(InputError, match=r"plugin worse.py cannot be imported: SyntaxError.*line 1"):
        load_plugin("worse.py")
    before = list(sys.path)
    with pytest.raises(InputError, match=r"plugin not.there"):
        load_plugin("not.there")
    assert sys.path == before


def test_objects_load_and_call(folder):
    (folder / "parts.py").write_text("number = 3\ndef add(a, b):\n    return a + b\n")
    assert load_object("parts.py:number", "data") == 3
    assert call_object("parts.py:add", "data", 1, 2) == 3
