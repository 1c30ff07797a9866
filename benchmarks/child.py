"""One measurement, in a process of its own: `python -m benchmarks.child '{"kind": ..., ...}' facts.json`."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import bare, measure
from benchmarks.workloads import WORKLOADS, Workload
from unskew.base.errors import InputError
from unskew.base.process import keep_freed_memory
from unskew.runs import engine


def play(
    workload: Workload, method: str, executor: str, rounds: int, memory_every: int, folder: Path
) -> dict[str, Any]:
    """A run of unskew that records on disk as any run does; the memory after every so many rounds if asked."""
    keep_freed_memory()  # as the command line does
    data = workload.dataset()
    config = workload.run(data, method, executor, rounds)
    ends: list[float] = []
    tests: list[float] = []
    losses: list[float] = []
    memory: list[int] = []

    def watch(row: dict[str, Any]) -> None:
        ends.append(time.perf_counter())
        tests.append(row["seconds"]["evaluate"])
        losses.append(row["loss"])
        if memory_every and row["round"] % memory_every == 0:
            memory.append(measure.tree_own(os.getpid()))

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
    if spec["executor"] in bare.VARIANTS:
        return _play_bare(workload, spec["executor"], spec["rounds"])
    try:
        return play(workload, spec["method"], spec["executor"], spec["rounds"], spec.get("memory_every", 0), folder)
    except InputError as error:
        return {"refused": " ".join(str(error).split())}


if __name__ == "__main__":
    report = Path(sys.argv[2])
    report.write_text(json.dumps(_facts(json.loads(sys.argv[1]), report.parent)))
