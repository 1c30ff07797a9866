"""The yardstick: the same arithmetic as W1 and W2 as a plain PyTorch loop, with no federated learning in it.

Nothing is sent, merged, reset, recorded or checked; the weights simply train on. Every trick that we know of is in it,
because it is the limit that the engine is measured against. Each can be left out, to see what it is worth:

    channels_last   the convolutions' weights and activations in NHWC order
    keep_memory     malloc keeps freed memory: glibc otherwise gives each batch's activations back to the kernel, which
                    hands them out again page by page (about 25,000 page faults an epoch of W1)
"""

from __future__ import annotations

import ctypes
import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.workloads import Workload
from unskew.data.dataset import Dataset, Samples

TEST_BATCH = 1000


@dataclass(frozen=True)
class Tricks:
    """Which tricks the loop uses, and on how many processes."""

    channels_last: bool = True
    keep_memory: bool = True
    processes: int = 2


VARIANTS = {
    "bare": Tricks(),
    "bare-contiguous": Tricks(channels_last=False),
    "bare-malloc": Tricks(keep_memory=False),
    "bare-plain": Tricks(channels_last=False, keep_memory=False),
}
"""Rows of `benchmarks.engine`; `bare` is what ratios are taken against."""


def play(workload: Workload, rounds: int, tricks: Tricks) -> list[float]:
    """Clock times: ready, then the end of each round."""
    torch.set_num_threads(1)  # before the fork: OpenMP's threads would not survive it
    data = workload.dataset()
    if len(workload.shape) == 1:  # a round of W2 is shorter than waking another process
        return _alone(_Loop(workload, data, range(workload.cohort), (0, workload.test), tricks), rounds)
    return _together(workload, data, rounds, tricks)


def _alone(loop: _Loop, rounds: int) -> list[float]:
    ends = [time.perf_counter()]
    for number in range(rounds):
        loop.round(number)
        ends.append(time.perf_counter())
    return ends


def _together(workload: Workload, data: Dataset, rounds: int, tricks: Tricks) -> list[float]:
    """Each process trains its share of the cohort and tests its share of the test set; a round waits for all."""
    context = multiprocessing.get_context("fork")
    pipes = []
    for number in range(tricks.processes):
        ours, theirs = context.Pipe()
        clients = range(number, workload.cohort, tricks.processes)
        bounds = [workload.test * k // tricks.processes for k in (number, number + 1)]
        arguments = (theirs, workload, data, clients, (bounds[0], bounds[1]), tricks)
        context.Process(target=_serve, args=arguments, daemon=True).start()
        pipes.append(ours)
    for pipe in pipes:
        pipe.recv_bytes()
    ends = [time.perf_counter()]
    for number in range(rounds):
        for pipe in pipes:
            pipe.send_bytes(str(number).encode())
        for pipe in pipes:
            pipe.recv_bytes()
        ends.append(time.perf_counter())
    return ends


def _serve(
    pipe: Connection,
    workload: Workload,
    data: Dataset,
    clients: Sequence[int],
    part: tuple[int, int],
    tricks: Tricks,
) -> None:
    torch.set_num_threads(1)
    loop = _Loop(workload, data, clients, part, tricks)
    pipe.send_bytes(b"ready")
    while True:
        try:
            number = int(pipe.recv_bytes())
        except EOFError:
            return
        loop.round(number)
        pipe.send_bytes(b"done")


class _Loop:
    """One process: a model, SGD, some clients' samples, a part of the test set."""

    def __init__(
        self, workload: Workload, data: Dataset, clients: Sequence[int], part: tuple[int, int], tricks: Tricks
    ) -> None:
        if tricks.keep_memory:
            keep_memory()
        torch.manual_seed(0)
        self.workload, self.data, self.clients = workload, data, clients
        self.test = Samples(data.test.x[slice(*part)], data.test.y[slice(*part)])
        self.model = _cnn() if len(workload.shape) == 3 else _mlp()
        self.layout = torch.channels_last if tricks.channels_last and len(workload.shape) == 3 else None
        if self.layout:
            self.model.to(memory_format=self.layout)  # type: ignore[call-overload]
        self.step = _sgd(self.model, workload.local["lr"], workload.local.get("momentum", 0.0))

    def round(self, number: int) -> float:
        """Trains this process's clients of the round, then tests; gives the share that was right."""
        size, batch, epochs = self.workload.samples, self.workload.local["batch"], self.workload.local["epochs"]
        for position in self.clients:
            client = (number * self.workload.cohort + position) % self.workload.clients
            own = slice(client * size, (client + 1) * size)
            x, y = self._inputs(self.data.train.x[own]), self.data.train.y[own]
            for _ in range(epochs):
                order = torch.randperm(size)
                x_epoch, y_epoch = x[order], y[order]
                for start in range(0, size, batch):
                    self.step(x_epoch[start : start + batch], y_epoch[start : start + batch])
        return self._right()

    def _right(self) -> float:
        """Accuracy and mean loss as any run records them."""
        right = torch.zeros((), dtype=torch.int64)
        loss = torch.zeros(())
        with torch.inference_mode():
            for start in range(0, len(self.test), TEST_BATCH):
                y = self.test.y[start : start + TEST_BATCH]
                logits = self.model(self._inputs(self.test.x[start : start + TEST_BATCH]))
                right += (logits.argmax(1) == y).sum()
                loss += F.cross_entropy(logits, y, reduction="sum")
        assert math.isfinite(float(loss)), "the bare loop diverged, so its time means nothing"
        return float(right) / len(self.test)

    def _inputs(self, x: Tensor) -> Tensor:
        if x.is_floating_point():
            return x
        inputs = x.float().mul_(2 / 255).sub_(1)
        return inputs.contiguous(memory_format=self.layout) if self.layout else inputs


def _sgd(model: nn.Module, lr: float, momentum: float) -> Callable[[Tensor, Tensor], None]:
    """A step of SGD; by hand, which is as fast as the fused optimiser and does not import the compiler."""
    weights: list[Tensor] = list(model.parameters())
    velocity = [torch.zeros_like(weight) for weight in weights]

    def step(x: Tensor, y: Tensor) -> None:
        grads = torch.autograd.grad(F.cross_entropy(model(x), y), weights)
        with torch.no_grad():
            if momentum:
                torch._foreach_mul_(velocity, momentum)
                torch._foreach_add_(velocity, grads)
                torch._foreach_add_(weights, velocity, alpha=-lr)
            else:
                torch._foreach_add_(weights, grads, alpha=-lr)

    return step


def _cnn() -> nn.Sequential:
    """ReLU after the max-pool: the same value for a quarter of the work."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(32, 64, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10),
    )  # fmt: skip


def _mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def keep_memory() -> None:
    """Tells glibc's malloc not to give memory back to the kernel; does nothing elsewhere."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        trim, mmap = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of malloc.h
        libc.mallopt(trim, 1 << 30)
        libc.mallopt(mmap, 1 << 30) or libc.mallopt(mmap, 32 << 20)  # old glibc takes 32 MiB at most
