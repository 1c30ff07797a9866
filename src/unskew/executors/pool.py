"""Worker processes on one machine, one thread each by default; the same bits as `serial`.

Workers are forked, so the data set, the model and the method are theirs without a copy, whatever the user built them
from. Tensors travel through shared memory, a few numbers about them as JSON through a pipe; nothing is pickled.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import multiprocessing
import os
import signal
import sys
import traceback
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from unskew.core.jobs import Job, Reply
from unskew.core.task import Task
from unskew.errors import ClientError, InputError, one_line
from unskew.executors.arena import Arena


@dataclass
class _Worker:
    number: int
    pipe: Connection
    states: Arena = field(default_factory=Arena)
    replies: Arena = field(default_factory=Arena)
    process: BaseProcess | None = None
    busy: tuple[int, Job] | None = None


class Pool:
    """Hands jobs to forked workers and gives the replies in the order of the jobs."""

    def __init__(self, task: Task, workers: int) -> None:
        if not hasattr(os, "fork"):
            raise InputError("executor 'pool' needs a system that can fork (Linux, macOS); use --executor serial")
        self._messages = Arena()
        self._workers: list[_Worker] = []
        context = multiprocessing.get_context("fork")
        inherited: list[Connection] = []
        for number in range(workers):
            ours, theirs = context.Pipe()
            worker = _Worker(number, ours)
            inherited.append(ours)
            arguments = (task, theirs, list(inherited), self._messages, worker.states, worker.replies)
            worker.process = context.Process(target=_serve, args=arguments, daemon=True, name=f"unskew-{number}")
            with warnings.catch_warnings():
                # forking beside threads is unsafe for locks; a worker with one thread enters no parallel region
                warnings.simplefilter("ignore", DeprecationWarning)
                worker.process.start()
            theirs.close()
            self._workers.append(worker)

    def run(self, jobs: Iterable[Job]) -> Iterator[Reply]:
        """A reply for each job, in order; replies that come early wait their turn."""
        self._drain()
        self._messages.clear()
        todo = enumerate(jobs)
        early: dict[int, Reply] = {}
        idle = deque(self._workers)
        next_up, handed_out, exhausted = 0, 0, False
        while True:
            # not further ahead than twice the workers: replies that wait for a slow client take memory
            while idle and not exhausted and handed_out - next_up < 2 * len(self._workers):
                item = next(todo, None)
                if item is None:
                    exhausted = True
                else:
                    handed_out += 1
                    self._send(idle.popleft(), *item)
            if next_up in early:
                yield early.pop(next_up)
                next_up += 1
                continue
            if exhausted and next_up == handed_out:
                return
            for worker in self._finished():
                index, reply = self._receive(worker)
                early[index] = reply
                idle.append(worker)

    def _drain(self) -> None:
        """Takes what workers still send for a run that ended early: it must not answer the next one's jobs."""
        for worker in self._workers:
            if worker.busy and worker.process is not None and worker.process.is_alive():
                with contextlib.suppress(ClientError, InputError):
                    self._receive(worker)
            worker.busy = None

    def close(self) -> None:
        """Ends the workers; they hold nothing that needs saving."""
        for worker in self._workers:
            worker.pipe.close()
        for worker in self._workers:
            if worker.process is not None and worker.process.is_alive():
                worker.process.join(0.2)
                worker.process.kill()
                worker.process.join()
            worker.states.close()
            worker.replies.close()
        if self._workers:
            self._messages.close()
        self._workers.clear()

    def _send(self, worker: _Worker, index: int, job: Job) -> None:
        worker.states.clear()
        header = {
            "kind": job.kind, "round": job.round, "client": job.client, "part": job.part,
            "message": self._messages.write(job.message), "state": worker.states.write(job.state),
        }  # fmt: skip
        worker.busy = (index, job)
        try:
            worker.pipe.send_bytes(json.dumps(header).encode())
        except OSError:
            self._died(worker)

    def _finished(self) -> list[_Worker]:
        busy = {worker.pipe: worker for worker in self._workers if worker.busy}
        return [busy[pipe] for pipe in wait(list(busy)) if isinstance(pipe, Connection)]

    def _receive(self, worker: _Worker) -> tuple[int, Reply]:
        try:
            header: dict[str, Any] = json.loads(worker.pipe.recv_bytes())
        except (EOFError, OSError):
            self._died(worker)
        assert worker.busy is not None
        index, job = worker.busy
        worker.busy = None
        if "error" in header:
            if header["input"]:
                raise InputError(header["error"])
            raise ClientError(job.client, job.round, header["error"], header["traceback"])
        groups = worker.replies.read(header.pop("groups"), copy=True)
        state = worker.replies.read(header.pop("state"), copy=True)
        return index, Reply(groups=groups, state=state, **header)

    def _died(self, worker: _Worker) -> None:
        assert worker.busy is not None and worker.process is not None
        job = worker.busy[1]
        worker.process.join(1)
        code = worker.process.exitcode
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        what = f"worker {worker.number} (process {worker.process.pid}) died with {how} during its {job.kind} job"
        raise ClientError(job.client, job.round, what, "")


def _serve(
    task: Task, pipe: Connection, others: list[Connection], messages: Arena, states: Arena, replies: Arena
) -> None:
    """A worker's life: jobs in, replies out, until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    _die_with_parent()
    for other in others:
        other.close()  # or the end of the parent would go unnoticed here
    torch.set_num_threads(1)  # OpenMP's threads do not survive a fork: with several it would wait for them for ever
    while True:
        try:
            header = json.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)
        message = messages.read(header.pop("message"), copy=False)
        state = states.read(header.pop("state"), copy=False)
        job = Job(message=message, state=state, **{**header, "part": tuple(header["part"])})
        with contextlib.suppress(BrokenPipeError):  # the parent left; the next read ends this worker
            pipe.send_bytes(json.dumps(_answer(task, job, replies)).encode())


def _answer(task: Task, job: Job, replies: Arena) -> dict[str, Any]:
    try:
        reply = task.work(job)
        replies.clear()
        return {
            "client": reply.client, "weight": reply.weight, "num_samples": reply.num_samples,
            "num_steps": reply.num_steps, "seconds": reply.seconds, "diagnostics": reply.diagnostics,
            "groups": replies.write(reply.groups), "state": replies.write(reply.state),
        }  # fmt: skip
    except Exception as error:
        is_input = isinstance(error, InputError)
        what = one_line(error) if is_input else f"{type(error).__name__}: {one_line(error)}"
        return {"error": what, "input": is_input, "traceback": traceback.format_exc()}


def _die_with_parent() -> None:
    """On Linux the kernel ends a worker whose parent was killed, even in the middle of a long job."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
