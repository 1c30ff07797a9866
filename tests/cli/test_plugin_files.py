"""Plugins on the command line: files, modules and packages are plugins, folders are none; one that calls sys.exit."""

from pathlib import Path

import pytest

from cli.calling import Call, assert_refused
from unskew.cli import main

QUICK = "run --model mlp(hidden=[8]) --split iid --clients 3 --rounds 1 --quiet --no-picture --out new"


@pytest.mark.parametrize("given", ["folder", "folder/", "./folder"])
def test_a_folder_is_no_plugin(call: Call, place: Path, given: str):
    (place / "folder").mkdir()
    (place / "folder/notes.txt").write_text("mine")
    line = (
        f"plugin {given}: expected a Python file or module, got a folder, of which nothing is imported; name a Python"
    )
    assert_refused(call(f"{QUICK} --plugin {given}"), line)
    (place / "folder/mine.py").write_text("import unskew\n")
    assert_refused(call(f"{QUICK} --plugin {given}"), line)
    assert call(f"{QUICK} --plugin folder.mine").code == 0


def test_a_package_is_a_plugin(call: Call, place: Path):
    (place / "package").mkdir()
    (place / "package/__init__.py").write_text("import unskew\n")
    assert call(f"{QUICK} --plugin package").code == 0


def test_the_command_does_not_say_that_all_is_done(tmp_path, capsys, monkeypatch):
    (tmp_path / "leaves.py").write_text(
        "import sys\nfrom unskew import Method, registries\n"
        "@registries.methods.register('test_leaves')\nclass Leaves(Method):\n    'x'\n"
        "    def own_terms(self): sys.exit(0)\n"
    )
    with pytest.raises(SystemExit) as ended:
        main(["run", "--plugin", str(tmp_path / "leaves.py"), "--method", "test_leaves", "--clients", "2",
              "--rounds", "1", "--out", str(tmp_path / "run")])  # fmt: skip
    assert ended.value.code == 2 and "own_terms fails: SystemExit" in capsys.readouterr().err

    def leave(*_, **__):
        exec("import sys; sys.exit(0)")  # wherever a user's code may stand

    monkeypatch.setattr("unskew.cli.run.to_run", leave)
    with pytest.raises(SystemExit) as ended:
        main(["run", "--clients", "2", "--rounds", "1", "--out", str(tmp_path / "run")])
    assert ended.value.code == 1 and "called sys.exit(0)" in capsys.readouterr().err
