"""What is imported when: torch takes two seconds, and most of what a user asks first does not need it."""

import subprocess
import sys

import pytest

import unskew

PROBE = "import sys\n{}\nsys.stderr.write(f'torch imported: {{\"torch\" in sys.modules}}')"


def imports_torch(code):
    done = subprocess.run([sys.executable, "-c", PROBE.format(code)], capture_output=True, text=True, check=False)
    return done.stderr.rpartition("torch imported: ")[2] == "True"


@pytest.mark.parametrize("line", [["--help"], ["--version"], ["nonsense"], ["run", "--help"], []])
def test_only_commands_import_torch(line):
    code = f"from unskew.cli import main\ntry: main({line!r})\nexcept SystemExit: pass"
    assert imports_torch(code) == (line == ["run", "--help"])  # its flags come from the classes they set


def test_the_facade_imports_what_is_asked_for():
    assert not imports_torch("import unskew; unskew.InputError; unskew.param; dir(unskew)")
    assert imports_torch("import unskew; unskew.Method")


def test_the_facade_gives_everything_it_names():
    for name in unskew.__all__:
        assert getattr(unskew, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        _ = unskew.runn
