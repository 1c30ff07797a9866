"""Signals, sent to real processes: a checkpoint of the last whole round, one line, an exit code; nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

import unskew
from unskew.base import storage
from unskew.cli import main, signals
from unskew.runs import engine
from unskew.runs.folder import RunFolder

RUN = "run --clients 8 --sample 0.5 --rounds 150 --model mlp --quiet --checkpoint-every 1000"
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}

SLOW = """
import os, signal, time
from unskew import Method, registries

@registries.methods.register("test_slow")
class Slow(Method):
    def train(self, c, params):
        time.sleep(0.02)
        return super().train(c, params)

@registries.methods.register("test_long_clients")
class LongClients(Method):
    def train(self, c, params):
        if c.round == 3:
            open(f"at-work-{os.getpid()}", "w").close()
            time.sleep(30)
        return super().train(c, params)
"""


class Command:
    """`unskew` in a session and with a folder for temporary files of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "tmp").mkdir()
        (folder / "slow.py").write_text(SLOW)

    def start(self, line: str, ignore: signal.Signals | None = None) -> subprocess.Popen[str]:
        def prepare() -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs ignore it
            if ignore is not None:
                signal.signal(ignore, signal.SIG_IGN)

        environment = {**os.environ, "TMPDIR": str(self.folder / "tmp")}
        return subprocess.Popen(
            [sys.executable, "-m", "unskew", *line.split()], cwd=self.folder, env=environment, text=True,
            start_new_session=True, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, preexec_fn=prepare,
        )  # fmt: skip

    def ended(self, process: subprocess.Popen[str]) -> tuple[int, list[str]]:
        _, said = process.communicate(timeout=60)
        wait_until(lambda: not alive(process))
        assert not list((self.folder / "tmp").iterdir()) and not list(self.folder.rglob("*.part"))
        return process.returncode, said.splitlines()

    def rounds(self, run: str) -> int:
        rows = self.folder / run / "rounds.jsonl"
        return rows.read_bytes().count(b"\n") if rows.exists() else 0


def alive(process: subprocess.Popen[str]) -> list[int]:
    found = []
    for other in psutil.process_iter():
        try:
            if os.getsid(other.pid) == process.pid and other.status() != psutil.STATUS_ZOMBIE:
                found.append(other.pid)
        except (OSError, psutil.Error):
            continue
    return found


def wait_until(what) -> None:
    deadline = time.monotonic() + 60
    while not what() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert what()


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.mark.parametrize(
    "number", [n if n == signal.SIGTERM else pytest.param(n, marks=pytest.mark.slow) for n in CODES]
)
@pytest.mark.parametrize("executor", ["serial", "pool --workers 2"])
def test_a_signal_saves_the_last_whole_round_and_names_the_folder(command: Command, number, executor: str):
    process = command.start(f"{RUN} --executor {executor} --out cut")
    wait_until(lambda: command.rounds("cut") > 5)
    os.killpg(process.pid, number)  # as a terminal and a scheduler do: the workers get it, too
    code, said = command.ended(process)
    words = {130: "interrupted", 143: "terminated (SIGTERM)", 129: "hung up (SIGHUP)"}[code]
    assert code == CODES[number] and said == [f"error: {words}; resume the run with 'unskew resume cut'"]
    kept = [int(path.name[6:12]) for path in (command.folder / "cut/checkpoint").glob("round-*")]
    assert max(kept) >= command.rounds("cut") - 2  # rows begin with round 0, the last one may not be whole
    folder, config = RunFolder.open(command.folder / "cut")
    assert not folder.finished
    resumed = engine.resume(command.folder / "cut")
    assert storage.encode(resumed.server) == storage.encode(engine.run(config).server)


def test_workers_outlive_a_sigterm_to_the_group_until_the_parent_has_saved(command: Command):
    line = f"{RUN} --plugin slow.py --method test_long_clients --executor pool --workers 2 --out cut"
    process = command.start(line)
    wait_until(lambda: len(list(command.folder.glob("at-work-*"))) == 2)
    workers = [int(path.name.removeprefix("at-work-")) for path in command.folder.glob("at-work-*")]
    for worker in workers:
        os.kill(worker, signal.SIGTERM)
        os.kill(worker, signal.SIGHUP)
    time.sleep(0.3)
    assert process.poll() is None and all(psutil.Process(worker).is_running() for worker in workers)
    process.send_signal(signal.SIGTERM)
    code, said = command.ended(process)
    assert code == 143 and len(said) == 1
    assert list((command.folder / "cut/checkpoint").glob("round-000002.*"))


@pytest.mark.slow
def test_nohup_goes_on_after_a_hangup(command: Command):
    process = command.start(f"{RUN} --executor serial --rounds 40 --out run", ignore=signal.SIGHUP)
    wait_until(lambda: command.rounds("run") > 2)
    process.send_signal(signal.SIGHUP)
    assert command.ended(process) == (0, [])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "delay",
    [
        0.15,
        pytest.param(0.3, marks=pytest.mark.slow),
        0.5,
        pytest.param(0.8, marks=pytest.mark.slow),
        1.1,
        pytest.param(1.5, marks=pytest.mark.slow),
    ],
)
def test_a_signal_while_modules_are_imported_prints_no_traceback(command: Command, number, delay: float):
    process = command.start(f"{RUN} --executor serial --out run")
    time.sleep(delay)
    process.send_signal(number)
    code, said = command.ended(process)
    if code < 0:
        pytest.skip("it came before Python had begun")
    assert code == CODES[number] and len(said) == 1 and said[0].startswith("error: ")


@pytest.mark.slow
def test_a_second_signal_ends_at_once_and_leaves_whole_files(command: Command):
    (command.folder / "saving.py").write_text(
        "import time\nfrom unskew.runs import checkpoint\nplain = checkpoint.save\n"
        "def save(*args):\n    open('saving', 'w').close()\n    time.sleep(20)\n    plain(*args)\n"
        "checkpoint.save = save\n"
    )
    process = command.start(f"{RUN} --plugin saving.py --executor serial --out cut")
    wait_until(lambda: command.rounds("cut") > 5)
    process.send_signal(signal.SIGTERM)
    wait_until((command.folder / "saving").exists)
    time.sleep(signals.SAME_EVENT + 0.1)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    code, said = command.ended(process)
    assert code == 143 and len(said) == 1 and time.monotonic() - began < 5
    (command.folder / "saving.py").write_text("")
    process = command.start("resume cut --quiet")
    assert command.ended(process)[0] == 0


def test_a_signal_sent_twice_at_once_is_one(command: Command):
    process = command.start(f"{RUN} --executor serial --out cut")
    wait_until(lambda: command.rounds("cut") > 5)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.02)
    process.send_signal(signal.SIGTERM)  # as `timeout` does
    code, said = command.ended(process)
    assert code == 143 and len(said) == 1 and list((command.folder / "cut/checkpoint").glob("round-*"))


@pytest.mark.slow
def test_a_signal_at_the_end_leaves_a_run_that_can_be_finished(command: Command):
    (command.folder / "finishing.py").write_text(
        "import time\nfrom unskew.runs.folder import RunFolder\nplain = RunFolder.write_model\n"
        "def write(self, data):\n    plain(self, data)\n    open('finishing', 'w').close()\n    time.sleep(20)\n"
        "RunFolder.write_model = write\n"
    )
    process = command.start(f"{RUN} --plugin finishing.py --executor serial --rounds 5 --out cut")
    wait_until((command.folder / "finishing").exists)
    process.send_signal(signal.SIGTERM)
    code, said = command.ended(process)
    assert code == 143 and said == ["error: terminated (SIGTERM); resume the run with 'unskew resume cut'"]
    (command.folder / "finishing.py").write_text("")
    assert command.ended(command.start("resume cut --quiet"))[0] == 0
    assert (command.folder / "cut/summary.json").exists()


@pytest.mark.slow
def test_a_comparison_goes_on_with_the_same_command(command: Command):
    line = "compare --plugin slow.py --methods fedavg,test_slow --seeds 1 --model mlp --clients 4 --rounds 30 --quiet"
    line += " --executor serial --out c"
    process = command.start(line)
    wait_until(lambda: any(command.rounds(f"c/runs/{path.name}") > 3 for path in command.folder.glob("c/runs/test_*")))
    process.send_signal(signal.SIGTERM)
    code, said = command.ended(process)
    assert code == 143 and len(said) == 1 and "the same command again goes on from there" in said[0]
    code, said = command.ended(command.start(line))
    assert code == 0 and any("resuming after round" in text for text in said)
    assert (command.folder / "c/table.md").exists()


# ------------------------------------------------------------------------------------ callers from Python


def test_python_callers_handlers_are_left_alone(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = [signal.getsignal(number) for number in CODES]
    seen = []
    options = {"clients": 4, "model": "mlp", "rounds": 1}
    unskew.run(**options, watch=lambda row: seen.append([signal.getsignal(number) for number in CODES]))
    assert all(found == before for found in seen) and seen
    with pytest.raises(SystemExit):
        main(["--version"])
    assert [signal.getsignal(number) for number in CODES] == before


def test_the_command_line_in_a_thread_installs_nothing(capsys):
    before = [signal.getsignal(number) for number in CODES]

    def call() -> None:
        with pytest.raises(SystemExit):
            main(["--version"])

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert [signal.getsignal(number) for number in CODES] == before


@pytest.mark.parametrize("executor", ["serial", "pool"])
def test_ctrl_c_in_python_reaches_the_caller_and_leaves_a_checkpoint_and_no_worker(tmp_path: Path, executor: str):
    def press(row) -> None:
        if row["round"] == 3:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)

    options = {"clients": 4, "model": "mlp", "rounds": 6, "executor": executor, "workers": 2, "checkpoint_every": 100}
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            unskew.run("scaffold", **options, out=tmp_path / "run", watch=press)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not [p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]
    assert list((tmp_path / "run/checkpoint").glob("round-000003.*"))
    resumed = unskew.resume(tmp_path / "run")
    assert storage.encode(resumed.server) == storage.encode(unskew.run("scaffold", **options).server)


@pytest.mark.slow
def test_a_signal_leaves_all_runs_side_by_side_resumable(command: Command):
    # so many rounds that none is finished when the signal comes
    line = "compare --methods fedavg,fedprox(mu=1) --seeds 1 --model mlp --clients 4 --rounds 400 --quiet --jobs 2"
    process = command.start(f"{line} --checkpoint-every 1000 --out cut")
    wait_until(lambda: len(rows := list(command.folder.glob("cut/runs/*/rounds.jsonl"))) == 2
               and min(path.read_bytes().count(b"\n") for path in rows) > 3)  # fmt: skip
    os.killpg(process.pid, signal.SIGTERM)
    code, said = command.ended(process)
    assert code == 143
    assert said == [
        "error: terminated (SIGTERM); the runs so far are in cut; the same command again goes on from there"
    ]
    cells = list(command.folder.glob("cut/runs/*"))
    assert len(cells) == 2 and not list(command.folder.glob("cut/runs/*/summary.json"))
    for cell in cells:
        kept = [int(path.name[6:12]) for path in (cell / "checkpoint").glob("round-*")]
        assert max(kept) >= (cell / "rounds.jsonl").read_bytes().count(b"\n") - 2 > 0
    for out, jobs in (("cut", 2), ("whole", 1)):
        code, said = command.ended(command.start(f"{line} --jobs {jobs} --out {out}"))
        assert code == 0 and ["resuming" in text for text in said] == [True, True] * (out == "cut")
    models = [{path.parent.name: path.read_bytes() for path in command.folder.glob(f"{out}/runs/*/model.safetensors")}
              for out in ("cut", "whole")]  # fmt: skip
    assert models[0] == models[1] and len(models[0]) == 2
