"""Stacked clients whose local steps are compiled."""

from __future__ import annotations

from unskew.core.jobs import Job
from unskew.core.task import Task
from unskew.executors.compiled.graph import CompiledContext, Compiler
from unskew.executors.compiled.steps import CompiledLanes
from unskew.executors.stacked.executor import Stacked


class CompiledStacked(Stacked):
    """`Stacked` with one graph for a few local steps instead of Python for each."""

    context = CompiledContext

    def __init__(self, task: Task, chunk: int) -> None:
        super().__init__(task, chunk)
        self._compiler = Compiler()

    def lanes(self, count: int) -> CompiledLanes:
        """So many clients side by side."""
        return CompiledLanes(count, self.task.device.kind, self._compiler)

    def fill(self, jobs: list[Job]) -> list[Job]:
        """Every count of clients would be a graph of its own: who is missing is played by the first one."""
        if jobs[0].kind != "train":
            return jobs
        return [*jobs, *jobs[:1] * (min(self.chunk, self.task.cohort_size) - len(jobs))]
