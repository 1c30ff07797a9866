"""`unskew watch` in a terminal: a pool run, a resize, a killed run that is resumed, a comparison; and its refusals."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest

from made_runs import make_comparison, make_run
from unskew.cli import main
from unskew.runs.folder import find_owner

SECONDS = 240
"""How long a screen may take to say something: machines are shared."""


def call(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words)])
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


def test_what_is_no_terminal_gets_one_view(tmp_path, capsys):
    folder = make_run(tmp_path / "one", "fedprox(mu=0.1)", done=8)
    for words in ([], ["--once"]):
        code, out, err = call(capsys, "watch", folder, *words)
        assert code == 0 and "8/20 rounds" in out and "fedprox(mu=0.1), seed 0" in out and not err
    make_comparison(tmp_path / "two", 3, seeds=(0, 1))
    code, out, _ = call(capsys, "watch", tmp_path / "two")
    assert code == 0 and "6 runs, 6 finished" in out and len(out.splitlines()) == 9


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("watch {tmp}/none", "there are no runs in"), ("watch {tmp}", "there are no runs in"),
        ("watch {tmp}/file", "is a file"), ("watch {tmp} --once --serve", "give one of them"),
        ("watch {tmp} --every 0", "--every"), ("watch {tmp} --port 99999", "--port"),
    ],
)  # fmt: skip
def test_refused(tmp_path, capsys, words, said):
    (tmp_path / "file").touch()
    code, _, err = call(capsys, *words.format(tmp=tmp_path).split())
    assert code == 2 and said in err and len(err.splitlines()) == 1


class Terminal:
    """A tmux server of its own with one window."""

    def __init__(self, place):
        self.socket = f"unskew-test-{os.getpid()}"
        self("new-session", "-d", "-s", "t", "-x", "100", "-y", "24", "-c", str(place), "bash --norc")

    def __call__(self, *words):
        done = subprocess.run(["tmux", "-L", self.socket, "-f", os.devnull, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def type(self, text):
        self("send-keys", "-t", "t", text, "Enter")

    @property
    def screen(self):
        return self("capture-pane", "-p", "-t", "t")

    def wait(self, *texts):
        """Waits until the screen says all of it."""
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            if all(text in self.screen for text in texts):
                return self.screen
            time.sleep(0.2)
        raise AssertionError(f"no {texts} on\n{self.screen}")


@pytest.fixture
def terminal(tmp_path):
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    made = Terminal(tmp_path)
    yield made
    made("kill-server")


def start(place, *words):
    return subprocess.Popen([sys.executable, "-m", "unskew", *words, "-q"], cwd=place, stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL)  # fmt: skip


def watch(folder):
    return f"clear; {shlex.quote(sys.executable)} -m unskew watch {folder} --every 0.3; echo code $?"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="asks the system's locks, which only Linux answers so")
def test_a_pool_run_that_is_resized_killed_resumed_and_finished(terminal, tmp_path):
    terminal.type(watch("run"))
    terminal.wait("waiting for run, which is not there yet")
    options = ["--clients", "10", "--sample", "0.5", "--rounds", "40", "--epochs", "8", "--checkpoint-every", "5"]
    run = start(tmp_path, "run", *options, "--executor", "pool", "--out", "run")
    try:
        screen = terminal.wait("training", "rounds at", "memory", "left")
        assert "/40 rounds" in screen and "▁" in screen
        terminal("resize-window", "-t", "t", "-x", "44", "-y", "12")
        screen = terminal.wait("training", "rounds at", "Ctrl-C leaves")
        assert screen.startswith("run       fedavg") and "━" * 5 not in screen  # nothing wraps, the bar is short
        terminal("resize-window", "-t", "t", "-x", "120", "-y", "30")
        terminal.wait("training", "━")
        pid = find_owner(tmp_path / "run").pid
        assert pid == run.pid
        os.kill(pid, signal.SIGKILL)
    finally:
        run.kill()
        run.wait()
    assert "'unskew resume run' continues" in terminal.wait("interrupted", "killed")
    run = start(tmp_path, "resume", "run")
    try:
        terminal.wait("training")
        screen = terminal.wait("finished", "code 0")
    finally:
        run.kill()
        run.wait()
    assert "40/40 rounds" in screen and screen.count("fedavg, seed 0") == 1


@pytest.mark.slow
def test_a_comparison_and_ctrl_c(terminal, tmp_path):
    options = ["--methods", "fedavg,scaffold", "--seeds", "2", "--clients", "10", "--rounds", "15", "--epochs", "3"]
    compared = start(tmp_path, "compare", *options, "--jobs", "2", "--out", "two")
    try:
        terminal.type(watch("two"))
        terminal.wait("scaffold", "training")
        terminal("send-keys", "-t", "t", "C-c")
        screen = terminal.wait("code 0")
        assert "fedavg" in screen and "error" not in screen and compared.poll() is None
        terminal.type(watch("two"))
        screen = terminal.wait("4 runs, 4 finished", "code 0")
        assert screen.count("15/15") == 4
    finally:
        compared.terminate()
        compared.wait()
