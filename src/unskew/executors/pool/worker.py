"""One worker of the pool: a forked process that does jobs, and the parent's end of it.

Tensors travel through shared memory, a few numbers about them as JSON through a pipe; nothing is pickled.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from typing import Any

import torch
from torch import Tensor

from unskew.base import progress
from unskew.base.errors import InputError, is_from_signal
from unskew.base.process import keep_freed_memory
from unskew.base.tree import Groups
from unskew.base.user_code import Loaded
from unskew.core.jobs import Job, Reply
from unskew.core.task import Task
from unskew.executors.answers import answer, read_job, read_reply
from unskew.executors.packing import Layout, map_groups
from unskew.executors.pool.forked import Forked, die_with
from unskew.executors.pool.shared_memory import SharedTensors

STILL_AT_WORK = Reply(client=-1)


@dataclass
class Worker:
    """The parent's end: hands over one job at a time and takes its reply."""

    number: int
    shared_inputs: SharedTensors
    """What several jobs are sent; one for all workers."""
    inputs: SharedTensors = field(default_factory=SharedTensors)
    """What this worker's job alone is sent."""
    replies: SharedTensors = field(default_factory=SharedTensors)
    process: Forked | None = None
    pipe: Connection | None = None
    index: int = -1
    job: Job | None = None
    deaths: int = 0
    """How many processes this job has cost."""
    _header: bytes = b""
    _delivered: bool = True

    @property
    def handle(self) -> int:
        """The file that can be read once the reply is there or the process has died."""
        assert self.pipe is not None
        return self.pipe.fileno()

    def start(self, task: Task, others: list[Connection]) -> None:
        """Forks the process, at the beginning or in a dead one's place; `others` are the parent's other pipes."""
        self.pipe, theirs = Pipe()
        inputs, parent = (self.shared_inputs, self.inputs), os.getpid()
        closed = [*others, self.pipe]
        with theirs:
            try:
                self.process = Forked(lambda: _serve(task, theirs, closed, inputs, self.replies, parent))
            except OSError as error:
                if is_from_signal(error):
                    raise
                raise InputError(f"cannot start worker {self.number}: {error.strerror}; take fewer --workers") from None

    def give(self, index: int, job: Job, is_shared: Callable[[Tensor], bool]) -> None:
        """Hands over a job; a tensor that others are sent too (`is_shared`) is written once for all."""
        self.index, self.job, self.deaths = index, job, 0
        self.inputs.clear()
        message = map_groups(lambda value: self._put(value, is_shared(value)), job.message)
        state = map_groups(lambda value: self._put(value, False), job.state)
        self._header = json.dumps({**job._asdict(), "message": message, "state": state}).encode()
        self.post()

    def _put(self, value: Tensor, for_all: bool) -> tuple[Any, ...]:
        to_all = for_all or value in self.shared_inputs
        return (*(self.shared_inputs if to_all else self.inputs).put(value), 0 if to_all else 1)

    def post(self) -> None:
        """Sends the process its job; the tensors stay in place, so that it can be sent to a new process too."""
        assert self.pipe is not None
        try:
            self.pipe.send_bytes(self._header)
            self._delivered = True
        except OSError as error:
            if is_from_signal(error):
                raise
            self._delivered = False  # it died while idle; waiting for its reply will show it

    def receive(self) -> Reply | None:
        """The reply to the job, None if the process died; a client's exception is raised here.

        `STILL_AT_WORK` where it only said how far it has come.
        """
        assert self.pipe is not None and self.job is not None
        try:
            header: dict[str, Any] = json.loads(self.pipe.recv_bytes())
            while "progress" in header:
                progress.say(*header["progress"])
                if not self.pipe.poll():
                    return STILL_AT_WORK
                header = json.loads(self.pipe.recv_bytes())
        except (EOFError, OSError) as error:
            if is_from_signal(error):
                raise
            return None
        job, self.job = self.job, None
        self.inputs.clear()
        return read_reply(header, job, self.replies.copy)

    def clean_up_dead(self) -> str:
        """Frees what is left of a dead process; says how it died."""
        assert self.process is not None and self.job is not None
        self.process.join(1)
        self.end()
        when, name = "during" if self._delivered else "before", f"worker {self.number} (process {self.process.pid})"
        return f"{name} died with {self.process.death} {when} its {self.job.kind} job"

    def end(self) -> None:
        """Ends the process; it holds nothing that needs saving."""
        if self.pipe is not None:
            self.pipe.close()
        if self.process is not None:
            self.process.kill()
            self.process.join()

    def close(self) -> None:
        """Frees the shared memory."""
        self.inputs.close()
        self.replies.close()


# ------------------------------------------------------------------------------------------- in the process


def _serve(
    task: Task,
    pipe: Connection,
    others: list[Connection],
    inputs: tuple[SharedTensors, SharedTensors],
    replies: SharedTensors,
    parent: int,
) -> None:
    """The process of a worker: jobs in, replies out, until the pipe closes."""
    die_with(parent)
    keep_freed_memory()
    for other in others:
        other.close()  # or the end of the parent would go unnoticed here
    progress.listen(lambda *said: _send_progress(pipe, said))
    torch.set_num_threads(1)  # OpenMP's threads do not survive a fork: with several it would wait for them for ever
    loaded = Loaded()
    while True:
        try:
            header = json.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)
        job = read_job(header, _read(header.pop("message"), inputs), _read(header.pop("state"), inputs))
        replies.clear()
        with contextlib.suppress(BrokenPipeError):  # the parent left; the next read ends this worker
            pipe.send_bytes(json.dumps(answer(task, job, replies.write, loaded)).encode())


def _send_progress(pipe: Connection, said: tuple[Any, ...]) -> None:
    with contextlib.suppress(BrokenPipeError):
        pipe.send_bytes(json.dumps({"progress": said}).encode())


def _read(layout: Layout, inputs: tuple[SharedTensors, SharedTensors]) -> Groups:
    return map_groups(lambda place: inputs[place[4]].view(place), layout)
