"""Which job is handed out next and which reply is due: the longest job first, replies in order, few held at once."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from unskew.core.jobs import Job, Reply


class Window:
    """Jobs pulled ahead of the reply that is due.

    At most `limit` jobs are pulled and not yet merged. That bounds the messages and states held, and the replies
    that wait while an early client is slow: `limit - 1` of them at worst, however many clients a round has.
    """

    def __init__(self, jobs: Iterable[Job], limit: int) -> None:
        self._jobs, self._limit = iter(jobs), limit
        self._next = next(self._jobs, None)
        self._waiting: dict[int, Job] = {}
        self._replies: dict[int, Reply] = {}
        self._pulled = self._merged = 0
        self._users: dict[int, int] = {}

    @property
    def finished(self) -> bool:
        """Whether every job's reply was given."""
        return self._next is None and self._merged == self._pulled

    @property
    def ready(self) -> bool:
        """Whether the reply that is due has come."""
        return self._merged in self._replies

    def pick(self) -> tuple[int, Job] | None:
        """The job to hand out now, with its place in the order."""
        self._pull()
        if not self._waiting:
            return None
        if self._next is not None and 2 * len(self._waiting) <= self._limit:
            # more are to come and half the window waits for a short early job: it goes now, so that the window moves
            index = min(self._waiting)
        else:
            index = max(self._waiting, key=lambda place: (self._waiting[place].size, -place))
        return index, self._waiting.pop(index)

    def take(self, index: int, job: Job, reply: Reply) -> None:
        """Takes a job's reply."""
        self._replies[index] = reply
        for key in _tensors(job):
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key]  # the tensor may go, and its id be used again

    def give_back(self, index: int, job: Job) -> None:
        """A job that was handed out and not done: it waits again."""
        self._waiting[index] = job

    def pop_due(self) -> Reply:
        """The reply whose turn it is; it must be `ready`."""
        reply = self._replies.pop(self._merged)
        self._merged += 1
        return reply

    def is_shared(self, value: Tensor) -> bool:
        """Whether several jobs in the window are sent this tensor."""
        return self._users.get(id(value), 0) > 1

    def _pull(self) -> None:
        while self._next is not None and self._pulled - self._merged < self._limit:
            self._waiting[self._pulled] = self._next
            for key in _tensors(self._next):
                self._users[key] = self._users.get(key, 0) + 1
            self._pulled += 1
            self._next = next(self._jobs, None)


def _tensors(job: Job) -> set[int]:
    return {id(value) for tree in job.message.values() for value in tree.values()}
