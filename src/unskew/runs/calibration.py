"""`auto` between `serial` and `pool`, which give the same bits, by measuring; what changes rounding has rules.

The choice is made once, kept in the user's cache, and written into the run's `run.toml`. Without a cache that can be
written nothing is measured.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from unskew.base import seeds, storage
from unskew.base.cache import cache_dir
from unskew.base.errors import InputError, is_from_signal, let_pass
from unskew.base.once import warn_once
from unskew.base.process import count_cores, prepare_process
from unskew.core.checks.asking import ask_server
from unskew.core.jobs import Job
from unskew.core.optimisers import SGD
from unskew.core.task import Task
from unskew.core.tolerance import USUAL, describe, find_tolerance
from unskew.data.batches import batch_bounds, num_steps
from unskew.executors.serial import Serial
from unskew.runs import rules
from unskew.runs.client_store import StateStore
from unskew.runs.config import Run
from unskew.runs.sections import Execution

log = logging.getLogger(__name__)

_STEPS = 3
_POOL_SECONDS_A_JOB = 4e-4


def settle(config: Run, task: Task) -> Run:
    """The resolved run with its executor chosen; logs the choice and why."""
    chosen = config.execution
    if chosen.executor == "auto":
        chosen = rules.change(chosen, executor=_choose_executor(task, chosen))
        if chosen.chunk:
            warn_once(log, f"execution.chunk (--chunk) is for executor 'stacked' and does nothing: auto took "
                      f"'{chosen.executor}'; add --executor stacked, or leave it out")  # fmt: skip
    elif chosen.executor == "stacked":
        _warn_of_memory(config, task)
        _warn_of_tolerance(config)
    return replace(config, execution=chosen)


def _warn_of_tolerance(config: Run) -> None:
    """Says so if `stacked` comes less near to `serial` than usual."""
    adaptive = [] if isinstance(config.local.optimiser, SGD) else [config.local.optimiser]
    if (promised := find_tolerance(config.method, (*config.wire, config.local.optimiser))) > USUAL:
        log.warning(
            "executor stacked with %s: %s (usually within %g); compare it with stacked runs only",
            ", ".join(map(str, (config.method, *config.wire, *adaptive))), describe(promised), USUAL,
        )  # fmt: skip


# --------------------------------------------------------------------------------------------------- memory


def _warn_of_memory(config: Run, task: Task) -> None:
    """Says so if the clients of a chunk need more memory than is free: the rule that chose it does not look."""
    assert config.model is not None
    data = task.federation.dataset
    with seeds.preserve_global_generator():  # a model to try on: the run's own must not meet these samples
        model = config.model.build(data.shape, data.num_classes)
        batch = min(config.local.batch, len(data.train))
        need = config.execution.chunk * rules.estimate_bytes(model, data.shape, batch)
    free = free_memory(task.device.kind)
    if need > free:
        log.warning(
            "%d clients at once need about %d MiB, but %d MiB are free; take a smaller --chunk",
            config.execution.chunk, need >> 20, free >> 20,
        )  # fmt: skip


def free_memory(device: torch.device) -> int:
    """Bytes that can still be had."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2)


# ------------------------------------------------------------------------------------------------- executor


def _choose_executor(task: Task, execution: Execution) -> str:
    workers = min(execution.workers or count_cores(), task.cohort_size)
    if workers == 1 or not _can_fork(task, execution):
        choice, why = "serial", "nothing else fits"
    else:
        about = (workers, task.cohort_size, str(task.method), replace(task.local, lr=1.0), task.buffer_policy)
        choice, why = _recall_or_measure(task, about, workers)
    log.info("executor: %s (%s)", choice, why)
    return choice


def _can_fork(task: Task, execution: Execution) -> bool:
    return hasattr(os, "fork") and task.device.is_cpu and execution.threads == 1


def _recall_or_measure(task: Task, about: tuple[Any, ...], workers: int) -> tuple[str, str]:
    """The choice in the cache, or a new one, which is kept there; `serial` if nothing can be kept."""
    path = cache_dir() / "calibration" / f"executor-{_key(task, about)}.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return _check_choice(found["choice"]), f"{found['why']}, measured before"
    except (OSError, ValueError, KeyError, TypeError) as error:
        let_pass(error)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        choice, why = _measure(task, workers)
        storage.write_atomic(path, json.dumps({"what": "executor", "choice": choice, "why": why}).encode())
        return choice, why
    except OSError as error:
        let_pass(error)
        return "serial", f"not measured: cannot write {path}: {error.strerror or error}"


def _check_choice(choice: object) -> str:
    """A cache may be old or edited: nothing but these two may come from it, since nothing else gives the same bits."""
    if choice not in ("serial", "pool"):
        raise ValueError(choice)
    return str(choice)


def _measure(task: Task, workers: int) -> tuple[str, str]:
    """The faster of the two, estimated from a few steps of a client of the first round."""
    try:
        job = _make_job(task)
        short = Serial(replace(task, local=replace(task.local, steps=_STEPS)))
        seconds = _time(lambda: list(short.run([job])))
    except InputError:
        raise  # what a method refuses it refuses here, too
    except Exception as error:  # the run itself will say better what is wrong, and where
        if is_from_signal(error):
            raise
        return "serial", f"the trial failed: {type(error).__name__}"
    cohort = task.cohort_size
    serial = cohort * seconds * _count_steps(task) / _STEPS
    pool = serial / workers + cohort * _POOL_SECONDS_A_JOB
    return "pool" if pool < serial else "serial", f"estimated seconds a round: serial {serial:.2g}, pool {pool:.2g}"


def _make_job(task: Task) -> Job:
    """The visit of the first round's first client."""
    cohort = task.sample_cohort(1)
    with seeds.preserve_global_generator(), closing(StateStore()) as store:
        task = replace(task, server_store=store)  # what a trial remembers is not the run's
        server = ask_server(task, "init", task.server_context(0))
        s = task.server_context(1, cohort, server).read_only()
        message = ask_server(task, "download", s, server, cohort[0], client=cohort[0])
    return Job("train", 1, cohort[0], message)


def _count_steps(task: Task) -> float:
    """Steps of a visit, the mean over some clients of the first round."""

    def steps(client: int) -> int:
        bounds = batch_bounds(len(task.federation.train(client)), task.local.batch, task.local.drop_last)
        return num_steps(task.local, len(bounds))

    return statistics.fmean(max(1, steps(client)) for client in task.sample_cohort(1)[:64])


def _time(work: Callable[[], object], repeats: int = 5, budget: float = 2.0) -> float:
    """Median seconds; what is slow is repeated less often."""
    times: list[float] = []
    with prepare_process(threads=1):
        work()  # the first time pays for buffers and kernels
        while len(times) < repeats and (sum(times) < budget or not times):
            began = time.perf_counter()
            work()
            times.append(time.perf_counter() - began)
    return statistics.median(times)


def _key(task: Task, about: tuple[Any, ...]) -> str:
    """Names the situation: machine, model, inputs and what else it is about."""
    model = [(name, tuple(value.shape)) for name, value in task.initial["model"].items()]
    machine = (platform.machine(), platform.processor(), os.cpu_count(), torch.__version__, str(task.device))
    text = repr((machine, model, tuple(task.federation.dataset.shape), task.net.channels_last, about))
    return hashlib.sha256(text.encode()).hexdigest()[:24]
