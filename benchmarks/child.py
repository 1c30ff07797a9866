"""One measurement, in a process of its own: `python -m benchmarks.child '{"kind": ..., ...}' facts.json`."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import bare, measure
from benchmarks.workloads import WORKLOADS, Workload
from unskew.base.errors import InputError
from unskew.base.process import keep_freed_memory
from unskew.runs import engine


class Turns:
    """Plays some rounds, prints their seconds, and waits until it is told to go on; see benchmarks.commits."""

    def __init__(self, rounds: int, warmup: int) -> None:
        self._rounds, self._warmup = rounds, warmup
        self._times: list[float] = []
        self._began = time.perf_counter()

    def finished(self, number: int) -> None:
        """A round has ended."""
        now = time.perf_counter()
        self._times.append(now - self._began)
        if number >= self._warmup and (number - self._warmup) % self._rounds == 0:
            print(json.dumps(self._times), flush=True)
            sys.stdin.readline()
            self._times = []
        self._began = time.perf_counter()


def play(
    workload: Workload,
    method: str,
    executor: str,
    rounds: int,
    memory_every: int,
    folder: Path,
    turns: Turns | None = None,
) -> dict[str, Any]:
    """A run of unskew that records on disk as any run does; the memory after every so many rounds if asked."""
    keep_freed_memory()  # as the command line does
    data = workload.dataset()
    config = workload.run(data, method, executor, rounds)
    ends: list[float] = []
    tests: list[float] = []
    losses: list[float | None] = []
    memory: list[int] = []

    def watch(row: dict[str, Any]) -> None:
        ends.append(time.perf_counter())
        tests.append(row["seconds"]["evaluate"])
        losses.append(row.get("loss"))  # personal methods have none
        if memory_every and row["round"] % memory_every == 0:
            memory.append(measure.tree_own(os.getpid()))
        if turns is not None:
            turns.finished(row["round"])

    began = time.perf_counter()
    result = engine.run(config, folder / "run", dataset=data, watch=watch)
    chosen = {key: value for key, value in vars(result.run.execution).items() if isinstance(value, (str, int, float))}
    parameters = sum(value.numel() for value in result.published["model"].values())
    return {
        "began": began, "ends": ends, "first_test": tests[0], "execution": chosen, "memory": memory,
        "parameters": parameters, "losses": losses,
    }  # fmt: skip


def _play_bare(workload: Workload, variant: str, rounds: int) -> dict[str, Any]:
    began = time.perf_counter()
    return {"began": began, "ends": bare.play(workload, rounds, bare.VARIANTS[variant])}


def _facts(spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What the specification asks for; a refusal is a fact too. The caller clears the folder, even if we are killed."""
    workload = dataclasses.replace(WORKLOADS[spec["workload"]], **spec.get("changes", {}))
    turns = Turns(spec["turn"], spec["warmup"]) if spec.get("turn") else None
    if spec["executor"] in bare.VARIANTS:
        return _play_bare(workload, spec["executor"], spec["rounds"])
    try:
        return play(
            workload, spec["method"], spec["executor"], spec["rounds"], spec.get("memory_every", 0), folder, turns
        )
    except InputError as error:
        return {"refused": " ".join(str(error).split())}


if __name__ == "__main__":
    specification = json.loads(sys.argv[1])
    if specification.get("turn"):
        with tempfile.TemporaryDirectory(prefix="unskew-bench-") as place:
            print(json.dumps(_facts(specification, Path(place))), flush=True)
    else:
        report = Path(sys.argv[2])
        report.write_text(json.dumps(_facts(specification, report.parent)))
