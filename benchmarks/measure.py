"""Runs a measurement in a process of its own, watches the memory of its whole process tree, and sums up the times."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Facts = dict[str, Any]
ROOT = Path(__file__).resolve().parent.parent
INTERVAL = 0.25
"""Seconds between looks at the memory."""


def tree_pss(pid: int, kinds: Sequence[str] = ("Pss",)) -> int:
    """Proportional memory of a process and all its descendants, in bytes; what they share counts once."""
    return sum(_pss(process, kinds) for process in _tree(pid))


def tree_own(pid: int) -> int:
    """The same without files: a library's share falls when a stranger loads it too, so it says nothing of growth."""
    return tree_pss(pid, ("Pss_Anon", "Pss_Shmem"))


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in children.read_text().split():
                yield from _tree(int(child))


def _pss(pid: int, kinds: Sequence[str]) -> int:
    with contextlib.suppress(OSError):  # it may end while we look
        lines = [line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
        return sum(1024 * int(line[1]) for line in lines if line[0].rstrip(":") in kinds)
    return 0


class _Peak(threading.Thread):
    """Looks at the memory of a process tree until told to stop."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.peak, self._stopped = pid, 0, threading.Event()

    def run(self) -> None:
        """The largest sum seen."""
        while not self._stopped.wait(INTERVAL):
            self.peak = max(self.peak, tree_pss(self.pid))

    def stop(self) -> int:
        """Ends the thread; gives the peak."""
        self._stopped.set()
        self.join()
        return self.peak


def in_own_process(command: Sequence[str], timeout: float, environment: Mapping[str, str] | None = None) -> Facts:
    """Runs `command <file>`, which writes its facts as JSON into the file; adds start, peak memory, and what failed."""
    with tempfile.TemporaryDirectory(prefix="unskew-bench-") as folder:
        report = Path(folder) / "facts.json"
        with (Path(folder) / "output.txt").open("w+") as output:
            began = time.perf_counter()
            process = subprocess.Popen(
                [*command, str(report)], stdout=output, stderr=subprocess.STDOUT, cwd=ROOT,
                env={**os.environ, **(environment or {})}, start_new_session=True,
            )  # fmt: skip
            memory = _Peak(process.pid)
            memory.start()
            reason = ""
            try:
                code = process.wait(timeout)
                reason = f"ended with code {code}" if code else ""
            except subprocess.TimeoutExpired:
                reason = f"took longer than {timeout:g} s"
            finally:
                peak = memory.stop()
                _end(process)
            facts: Facts = json.loads(report.read_text()) if report.exists() else {}
            if not facts:
                output.seek(0)
                said = "" if reason.startswith("took") else f": {_last_line(output.read())}"
                facts = {"failed": (reason or "wrote no facts") + said}
    return facts | {"spawned": began, "peak_pss": peak}


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the process and what it left behind in its session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_line(text: str) -> str:
    """The line that says what went wrong: that of an error if there is one, else the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line.split(":")[0] and " " not in line.split(":")[0]]
    return (errors or lines or ["no output"])[-1][:300]


def python(module: str, **spec: Any) -> list[str]:
    """The command that runs a module of ours with a specification; the file for its facts comes last."""
    return [sys.executable, "-m", module, json.dumps(spec)]


def round_times(facts: Facts, warmup: int) -> list[float]:
    """Seconds of each round after the warm-up; `ends` starts with the moment before the first round."""
    return [after - before for before, after in itertools.pairwise(facts["ends"])][warmup:]


def spread(times: Sequence[float]) -> Facts:
    """Median, quartiles and mean."""
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else [times[0]] * 3
    return {"median": middle, "quartiles": [low, high], "mean": statistics.fmean(times), "rounds": len(times)}


def startup(facts: Facts) -> float:
    """Seconds from the call until the first round can begin, the test of the initial model aside."""
    return float(facts["ends"][0] - facts["began"] - facts.get("first_test", 0.0))


def machine() -> Facts:
    """What the figures depend on."""
    from importlib.metadata import version

    cpu: dict[str, str] = {}
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        cpu = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    wide = ("fma", "avx2", "avx512f", "avx512_bf16", "amx_bf16")
    return {
        "cpu": cpu.get("model name", platform.processor()),
        "cores": len(os.sched_getaffinity(0)),
        "flags": [flag for flag in wide if flag in cpu.get("flags", "").split()],
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "threads_per_process": 1,
        "python": platform.python_version(),
        "torch": version("torch"),
        "unskew": version("unskew"),
        "system": f"{platform.system()} {platform.release()}, {' '.join(platform.libc_ver())}",
        "load_before": os.getloadavg()[0],
    }


def write_json(path: Path, value: Any) -> None:
    """One readable file."""
    path.write_text(json.dumps(value, indent=1) + "\n")
