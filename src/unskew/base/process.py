"""What a run sets in its process: threads, the global generator, garbage collection, freed memory."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from unskew.base import seeds

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4


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
def prepare_process(threads: int) -> Iterator[None]:
    """For a while: a fixed number of threads, without which sums round differently, and little garbage collection."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    often = gc.get_threshold()
    gc.freeze()  # what there is now need not be looked through again and again for garbage
    gc.set_threshold(20_000, 20, 20)  # collecting every 700 objects took a twentieth of tiny rounds
    try:
        with seeds.preserve_global_generator():
            yield
    finally:
        gc.set_threshold(*often)
        gc.unfreeze()
        torch.set_num_threads(before)


def count_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
