"""What a run sets in its process: threads, the global generator, garbage collection, freed memory."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import NamedTuple

import torch

from unskew.base import seeds
from unskew.base.errors import InputError
from unskew.base.torch_private import read_default_device

log = logging.getLogger(__name__)
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4


class _Claim:
    """Who works with the process's settings: one thread at a time, which may do so again inside."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.owner = ""
        self.prepared = False


_claim = _Claim()


_forked = False


def renew_in_forked(renew: Callable[[], None]) -> None:
    """Has a function called in forked processes: they have no other threads, so that a lock of one is never free."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=renew)


def _begin_forked() -> None:
    global _claim, _forked
    _claim, _forked = _Claim(), True


renew_in_forked(_begin_forked)


@contextmanager
def without_lost_threads() -> Iterator[None]:
    """For a while, in a forked process: one thread, as OpenMP waits for ever for others, lost by the fork."""
    before = torch.get_num_threads()
    if not _forked or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def hold_process() -> Iterator[_Claim]:
    """For a while no other thread changes what all threads share: torch's generator, threads, garbage collection.

    A thread that has to wait says so once.
    """
    claim = _claim
    if not claim.lock.acquire(blocking=False):
        log.warning("waiting for the run in thread '%s' to end: runs in one process take turns", claim.owner)
        claim.lock.acquire()
    try:
        claim.owner = threading.current_thread().name
        yield claim
    finally:
        claim.lock.release()


def keep_freed_memory() -> None:
    """Large blocks come from the heap and stay in it; for processes of our own: workers and the command line.

    By default glibc maps each block above 32 MB anew and gives freed ones back; fetching the pages again made the test
    of the FedAvg CNN in batches of 1000 take 1.7 times as long.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, 512 << 20)


@contextmanager
def neutral_torch() -> Iterator[None]:
    """For a while: float32 on the CPU by default, gradients, no autocast, no inference mode; whatever has been set."""
    default = torch.get_default_dtype()
    with torch.inference_mode(False), torch.enable_grad(), _without_autocast(), default_to_cpu():
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(default)


@contextmanager
def keep_torch_modes() -> Iterator[None]:
    """Leaves what a function may set in torch as it was: autocast, default type and device, gradients, determinism."""
    before = _read_modes()
    try:
        yield
    finally:
        if _read_modes() != before:
            _set_modes(before)


class _Modes(NamedTuple):
    grad: bool
    default: torch.dtype
    device: torch.device | None
    autocast: tuple[bool, torch.dtype, bool, torch.dtype]
    nesting: int
    deterministic: tuple[bool, bool]


def _read_modes() -> _Modes:
    torch.autocast_increment_nesting()  # the only way to ask how many are open
    return _Modes(
        torch.is_grad_enabled(), torch.get_default_dtype(), read_default_device(),
        (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"),
         torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")),
        torch.autocast_decrement_nesting(),
        (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
    )  # fmt: skip


def _set_modes(modes: _Modes) -> None:
    torch.set_grad_enabled(modes.grad)
    torch.set_default_dtype(modes.default)
    if read_default_device() != modes.device:
        torch.set_default_device(modes.device)
    cpu, cpu_type, cuda, cuda_type = modes.autocast
    for kind, enabled, dtype in (("cpu", cpu, cpu_type), ("cuda", cuda, cuda_type)):
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)
    for _ in range(_read_modes().nesting - modes.nesting):  # with one left open, copies of weights would stay for ever
        torch.autocast_decrement_nesting()
    torch.clear_autocast_cache()
    torch.use_deterministic_algorithms(modes.deterministic[0], warn_only=modes.deterministic[1])


@contextmanager
def default_to_cpu() -> Iterator[None]:
    """For a while, in this thread: new tensors are on the CPU, whatever default device the program has set."""
    default = read_default_device()
    if default is not None:
        torch.set_default_device(None)
    try:
        # the program may also be inside `with torch.device(...)`
        with nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu"):
            yield
    finally:
        if default is not None:
            torch.set_default_device(default)


@contextmanager
def _without_autocast() -> Iterator[None]:
    with ExitStack() as stack:
        for kind in ("cpu", "cuda", "mps", "xpu"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextmanager
def prepare_process(threads: int) -> Iterator[None]:
    """For a while: a fixed number of threads, without which sums round differently, and little garbage collection.

    What the program has set in torch, such as autocast, is off.
    """
    if _forked and threads > 1:
        raise InputError(
            f"execution.threads = {threads} in a forked process, where OpenMP's threads are lost and work may wait for "
            "them for ever; use execution.threads = 1, or start the process with multiprocessing's 'spawn'"
        )
    with hold_process() as claim:
        before, often = torch.get_num_threads(), gc.get_threshold()
        outermost, claim.prepared = not claim.prepared, True  # a run may be started inside another one
        torch.set_num_threads(threads)
        if outermost:
            gc.freeze()  # what there is now need not be looked through again and again for garbage
        gc.set_threshold(20_000, 20, 20)  # collecting every 700 objects took a twentieth of tiny rounds
        try:
            with neutral_torch(), seeds.preserve_global_generator():
                yield
        finally:
            gc.set_threshold(*often)
            if outermost:
                claim.prepared = False
                gc.unfreeze()
            torch.set_num_threads(before)


def count_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
