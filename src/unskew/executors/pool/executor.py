"""Worker processes on one machine, one thread each; the same bits as `serial`.

Workers are forked, so the data set, the model and the method are theirs without a copy, whatever the user built them
from. Long clients go first, so that none is left for the end; replies are merged in the sampled order.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
from collections.abc import Iterable, Iterator

from unskew.base.errors import ClientError, InputError, name_worker
from unskew.core.jobs import Job, Reply
from unskew.core.task import Task
from unskew.executors.pool.shared_memory import SharedTensors
from unskew.executors.pool.worker import STILL_AT_WORK, Worker
from unskew.executors.window import Window

log = logging.getLogger(__name__)


class Pool:
    """Hands jobs to forked workers and gives the replies in the order of the jobs.

    A job whose worker dies is given to a new worker `retries` times, then the run ends.
    """

    longest_first = True

    def __init__(self, task: Task, workers: int, retries: int = 0) -> None:
        if not hasattr(os, "fork"):
            raise InputError("executor 'pool' needs a system that can fork (Linux, macOS); use --executor serial")
        self._task, self._retries = task, retries
        self._shared_inputs = SharedTensors()
        self._workers = [Worker(number, self._shared_inputs) for number in range(workers)]
        try:
            for worker in self._workers:
                self._start(worker)
        except BaseException:
            self.close()
            raise

    def run(self, jobs: Iterable[Job]) -> Iterator[Reply]:
        """A reply for each job, in order; replies that come early wait their turn."""
        self._drain()
        # far enough ahead to see a usual cohort whole; `Window` says what that can cost in memory
        window = Window(jobs, max(16, 4 * len(self._workers)))
        while not window.finished:
            for worker in self._workers:
                if worker.job is None and (picked := window.pick()) is not None:
                    worker.give(*picked, window.is_shared)
            for worker in self._wait_for_replies(0 if window.ready else None):
                self._collect(worker, window)
            if window.ready:
                yield window.pop_due()

    def close(self) -> None:
        """Ends the workers; nothing of them is left."""
        for worker in self._workers:
            if worker.process is not None:
                worker.process.kill()  # all at once, then one after the other is waited for
        for worker in self._workers:
            worker.end()
            worker.close()
        if self._workers:
            self._shared_inputs.close()
        self._workers.clear()

    def _start(self, worker: Worker) -> None:
        worker.start(self._task, [w.pipe for w in self._workers if w is not worker and w.pipe is not None])

    def _drain(self) -> None:
        """Reads what workers still send for jobs whose replies nobody took: they must not answer the next ones."""
        for worker in self._workers:
            if worker.job is not None:
                with contextlib.suppress(ClientError, InputError):
                    while worker.receive() is STILL_AT_WORK:
                        pass
                worker.job = None
        self._shared_inputs.clear()

    def _wait_for_replies(self, timeout: float | None) -> list[Worker]:
        """Workers whose reply, or whose end, can be read now; waits for one without using the processor."""
        busy = {worker.handle: worker for worker in self._workers if worker.job is not None}
        poll = select.poll()  # multiprocessing's `wait` does the same in three times the time
        for handle in busy:
            poll.register(handle, select.POLLIN)
        return [busy[handle] for handle, _ in poll.poll(timeout)]

    def _collect(self, worker: Worker, window: Window) -> None:
        assert worker.job is not None
        index, job = worker.index, worker.job
        reply = worker.receive()
        if reply is STILL_AT_WORK:
            return
        if reply is None:
            self._replace(worker, job)
        else:
            window.take(index, job, reply)

    def _replace(self, worker: Worker, job: Job) -> None:
        """A new process in a dead one's place, for the same job: what it was sent is still there."""
        how = worker.clean_up_dead()
        worker.deaths += 1
        if worker.deaths > self._retries:
            times = f" ({worker.deaths} times now)" if worker.deaths > 1 else ""
            raise ClientError(job.client, job.round, f"{how}{times}")
        log.warning("%s in round %d: %s; a new worker tries again", name_worker(job.client), job.round, how)
        self._start(worker)
        worker.post()
