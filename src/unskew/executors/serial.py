"""The reference executor: one client after the other, in this process."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator

from unskew.base.errors import ClientError, InputError, one_line
from unskew.core.jobs import Job, Reply
from unskew.core.task import Task


class Serial:
    """Works off the jobs in order."""

    longest_first = False

    def __init__(self, task: Task) -> None:
        self.task = task

    def run(self, jobs: Iterable[Job]) -> Iterator[Reply]:
        """A reply for each job."""
        for job in jobs:
            try:
                reply = self.task.work(job)
            except InputError:
                raise
            except Exception as error:
                what = f"{type(error).__name__}: {one_line(error)}"
                raise ClientError(job.client, job.round, what, traceback.format_exc()) from error
            yield reply

    def close(self) -> None:
        """Nothing to end."""
