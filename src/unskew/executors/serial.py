"""The reference executor: one client after the other, in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from unskew.base.errors import InputError, SlotError, is_from_signal
from unskew.core.checks.faults import CAUGHT, client_error
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
            except (InputError, SlotError):
                raise
            except CAUGHT as error:
                if is_from_signal(error):
                    raise
                raise client_error(error, job.client, job.round) from error
            yield reply

    def close(self) -> None:
        """Nothing to end."""
