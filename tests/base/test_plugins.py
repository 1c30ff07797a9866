"""The import of a user's own file."""

import sys

import pytest

import unskew
from small_runs import EVEN
from unskew import param
from unskew.base.errors import InputError
from unskew.base.plugins import call_object, load_object, load_plugin
from unskew.core.method import methods
from unskew.models.base import architectures
from unskew.runs.config import from_table, load_plugins


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


def test_a_folder_that_the_program_searches_itself_keeps_its_place(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    (folder / "good.py").write_text("")
    before = list(sys.path)
    load_plugin("good.py")
    with pytest.raises(InputError):
        load_plugin("not.there")
    assert sys.path == before


def test_objects_load_and_call(folder):
    (folder / "parts.py").write_text("number = 3\ndef add(a, b):\n    return a + b\n")
    assert load_object("parts.py:number", "data") == 3
    assert call_object("parts.py:add", "data", a=1, b=2) == 3
    with pytest.raises(InputError, match=r"data parts.py:add failed: TypeError: .*'b'; it is called with \(a\)$"):
        call_object("parts.py:add", "data", a=1)


REGISTERS = """
from unskew import Method, registries

@registries.methods.register("of_{name}")
class Mine(Method):
    "Made by a test."
    _number = {number}
"""


@pytest.mark.usefixtures("own_names")
def test_an_edited_file_is_loaded_anew(folder):
    path = folder / "edited.py"
    for number in range(3):
        path.write_text(REGISTERS.format(name="edited", number=number))
        assert from_table({"plugins": ["edited.py"], "method": "of_edited"}).method._number == number
    path.write_text(REGISTERS.format(name="renamed", number=7))
    from_table({"plugins": ["edited.py"], "method": "of_renamed"})
    assert "of_edited" not in list(methods)


@pytest.mark.usefixtures("own_names")
def test_an_edit_that_fails_leaves_all_as_it_was_and_can_be_mended(folder):
    path = folder / "fails.py"
    path.write_text(REGISTERS.format(name="fails", number=1))
    load_plugins({"plugins": ["fails.py"]})
    path.write_text(REGISTERS.format(name="fails", number=2) + "raise ValueError('later')\n")
    for _ in range(2):
        with pytest.raises(InputError, match="ValueError: later"):
            load_plugins({"plugins": ["fails.py"]})
        assert methods.get("of_fails")._number == 1
    path.write_text(REGISTERS.format(name="fails", number=3))
    load_plugins({"plugins": ["fails.py"]})
    assert methods.get("of_fails")._number == 3


@pytest.mark.usefixtures("own_names")
def test_two_files_that_register_one_name_are_both_named(folder):
    for name in ("one.py", "two.py"):
        (folder / name).write_text(REGISTERS.format(name="both", number=1))
    load_plugins({"plugins": ["one.py"]})
    with pytest.raises(InputError) as caught:
        load_plugins({"plugins": ["one.py", "two.py"]})
    assert "method 'of_both' is registered twice" in str(caught.value)
    assert str(folder / "one.py") in str(caught.value) and str(folder / "two.py") in str(caught.value)
    (folder / "one.py").rename(folder / "three.py")  # moved, not a second one
    load_plugins({"plugins": ["three.py"]})


@pytest.mark.usefixtures("own_names")
def test_two_classes_of_one_file_cannot_share_a_name(folder):
    (folder / "twice.py").write_text(2 * REGISTERS.format(name="twice", number=1))
    with pytest.raises(InputError, match=r"plugin twice\.py: method 'of_twice' is registered twice"):
        load_plugins({"plugins": ["twice.py"]})


@pytest.mark.usefixtures("own_names")
def test_a_module_by_name_is_loaded_anew_too(folder):
    for number in range(3):
        (folder / "by_name_of_test.py").write_text(REGISTERS.format(name="by_name", number=number))
        assert from_table({"plugins": ["by_name_of_test"], "method": "of_by_name"}).method._number == number


@pytest.mark.usefixtures("own_names")
def test_a_notebook_cell_that_is_run_again_replaces_its_class():
    for number in range(2):
        exec(REGISTERS.format(name="cell", number=number), {"__name__": "__main__"})
        assert methods.get("of_cell")._number == number


def test_old_imports_get_a_hint(folder):
    (folder / "old.py").write_text("from unskew.core.registry import register\n")
    with pytest.raises(
        InputError, match=r"No module named 'unskew.core.registry' \(line 1\); import what you need from"
    ):
        load_plugin("old.py")
    (folder / "older.py").write_text("from unskew.core.method import register\n")
    with pytest.raises(InputError, match="such as 'from unskew import Method, param, registries'"):
        load_plugin("older.py")


def test_a_plugin_that_another_one_imports(tmp_path):
    head = "from unskew import Method, registries\n"
    method = '@registries.methods.register("test_imports_{0}")\nclass Mine{0}({1}):\n    "Mine."\n'
    (tmp_path / "imports_a.py").write_text(head + method.format("a", "Method"))
    (tmp_path / "imports_b.py").write_text(head + "from imports_a import Minea\n" + method.format("b", "Minea"))
    for name in ("a", "b", "a"):
        load_plugin(str(tmp_path / f"imports_{name}.py"))
    assert methods.build("test_imports_a").name == "test_imports_a"


# --------------------------------------------------------------------------------------------------- faults in one line

HEAD = "from __future__ import annotations\nimport abc, sys\nfrom unskew import Method, param, registries\n"
CLASS = '@registries.methods.register("mine")\nclass Mine(Method{}):\n    "Mine."\n    {}\n'
FILES = {
    "annotation": (CLASS.format("", 'kind: Literal["a", "b"] = param(default="a", doc="kind")'),
                   r"Mine\.kind: its annotation \(Literal.*\) has the unknown name 'Literal'; import it"),
    "abstract": (CLASS.format(", abc.ABC", "@abc.abstractmethod\n    def _x(self): ..."), "Mine leaves _x abstract"),
    "exception of its own": ("class Mine(BaseException): pass\nraise Mine('no')",
                             r"cannot be imported: Mine: no \(line 5\)"),
    "no output": ("sys.stdout = None", r"sets sys\.stdout to None"),
    "no errors": ("sys.stderr = None", r"sets sys\.stderr to None"),
}  # fmt: skip


@pytest.mark.parametrize("what", FILES)
def test_a_faulty_file_is_one_line(what, tmp_path, own_names):
    text, said = FILES[what]
    (tmp_path / "mine.py").write_text(HEAD + text)
    streams = sys.stdout, sys.stderr
    with pytest.raises(InputError, match=said) as error:
        load_plugin(str(tmp_path / "mine.py"))
    assert "\n" not in str(error.value) and (sys.stdout, sys.stderr) == streams


def test_options_may_be_annotated_by_what_the_file_has(tmp_path, own_names):
    option = 'kind: Literal["a", "b"] = param(default="a", doc="kind")'
    (tmp_path / "mine.py").write_text(f"{HEAD}from typing import Literal\n{CLASS.format('', option)}")
    load_plugin(str(tmp_path / "mine.py"))
    assert methods.build("mine(kind=b)").kind == "b" and param is not None


@pytest.mark.parametrize("place", [".", "a-b", "my method"])
def test_a_plugin_that_is_neither_file_nor_module(place):
    with pytest.raises(unskew.InputError, match=r"expected a Python file .* or module"):
        unskew.run("fedavg", plugin=place, **EVEN)


def test_helpers_of_one_name_in_two_folders_are_not_taken_for_each_other(tmp_path, monkeypatch):
    for own in ("one", "other"):
        (tmp_path / own).mkdir()
        (tmp_path / own / "helper_of_two.py").write_text(f"own = {own!r}\n")
        (tmp_path / own / "mine.py").write_text("import helper_of_two\n\nown = helper_of_two.own\n")
        (tmp_path / own / "alone.py").write_text("own = 3\n")
    try:
        assert load_object(f"{tmp_path}/one/mine.py:own", "data") == "one"
        with pytest.raises(
            InputError, match=r"other/mine.py: imports 'helper_of_two', which is .*one/helper_of_two.py"
        ):
            load_object(f"{tmp_path}/other/mine.py:own", "data")
        assert load_object(f"{tmp_path}/other/alone.py:own", "data") == 3
    finally:
        sys.modules.pop("helper_of_two", None)
