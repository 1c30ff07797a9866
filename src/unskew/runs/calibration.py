"""Choices made by measuring: executor, memory format, how many clients at once.

A choice is made once, kept in the user's cache, and written into the run's `run.toml`: a rerun or resume takes what is
written, so no number depends on a timing. Without a cache that can be written nothing is measured.
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
from torch import Tensor

from unskew.base import seeds, storage, tree
from unskew.base.cache import cache_dir
from unskew.base.errors import InputError
from unskew.base.process import prepare_process
from unskew.base.registry import construct
from unskew.core.jobs import Executor, Job
from unskew.core.method import methods
from unskew.core.task import Task
from unskew.data.batches import batch_bounds, num_steps
from unskew.executors.serial import Serial
from unskew.executors.stacked.executor import Stacked
from unskew.runs.client_store import StateStore
from unskew.runs.config import Run
from unskew.runs.sections import Execution

log = logging.getLogger(__name__)

AT_LEAST = 1.05
"""How much faster another way must be than the plain one to be chosen."""
MOST_CLIENTS = 64
"""More clients at once gain nothing further on tiny networks, and make chunks wait for their longest client."""
_STEPS = 3
_POOL_SECONDS_A_JOB = 4e-4


def settle(config: Run, task: Task) -> Run:
    """The run with nothing left to choose; logs what was chosen and why."""
    chosen = config.execution
    if chosen.memory_format == "auto":
        stacked = chosen.executor == "stacked"  # `vmap` knows no other format
        chosen = _change(chosen, memory_format="contiguous" if stacked else _choose_memory_format(task))
    task.net.channels_last = chosen.memory_format == "channels_last"
    if chosen.executor == "auto":
        chosen = _change(chosen, executor=_choose_executor(task, chosen))
    if chosen.executor == "stacked":
        task.net.channels_last = False
        chosen = _change(chosen, memory_format="contiguous", chunk=chosen.chunk or clients_at_once(task))
    return replace(config, execution=chosen)


def _change(execution: Execution, **values: Any) -> Execution:
    return construct(Execution, {**vars(execution), **values})


# -------------------------------------------------------------------------------------------- memory format


def _choose_memory_format(task: Task) -> str:
    if not any(value.dim() == 4 for value in task.initial["model"].values()):
        return "contiguous"

    def measure() -> tuple[str, str]:
        plain = replace(_shorten(task), method=methods.build("fedavg"))
        times = _time_in_turns({form: _visit_trial(plain, form) for form in ("contiguous", "channels_last")})
        gain = times["contiguous"] / times["channels_last"]
        form = "channels_last" if gain >= AT_LEAST else "contiguous"
        return form, f"channels_last is {gain:.2f} x as fast here"

    # not by method: methods that are compared use the same format
    return _recall_or_measure("memory format", task, (task.local.batch,), measure, "contiguous")


def _visit_trial(task: Task, form: str) -> Callable[[], None]:
    job = _make_jobs(task, 1)[0]

    def work() -> None:
        task.net.channels_last = form == "channels_last"
        task.work(job)

    return work


# ------------------------------------------------------------------------------------------------- executor


def _choose_executor(task: Task, execution: Execution) -> str:
    workers = min(execution.workers or os.cpu_count() or 1, task.cohort_size)

    def measure() -> tuple[str, str]:
        try:
            times = _estimate_seconds(task, workers if _can_fork(task, execution) else 1)
        except InputError:
            raise  # what a method refuses it refuses here, too
        except Exception as error:  # the run itself will say better what is wrong, and where
            return "serial", f"the trial failed: {type(error).__name__}"
        best = min(times, key=lambda name: times[name])
        listed = ", ".join(f"{name} {seconds:.2g}" for name, seconds in times.items())
        return best, f"estimated seconds a round: {listed}"

    about = (workers, task.cohort_size, str(task.method), replace(task.local, lr=1.0), task.buffer_policy)
    return _recall_or_measure("executor", task, about, measure, "serial")


def _can_fork(task: Task, execution: Execution) -> bool:
    return hasattr(os, "fork") and task.device.is_cpu and execution.threads == 1


def _estimate_seconds(task: Task, workers: int) -> dict[str, float]:
    """Estimated from a few steps of some clients of the first round."""
    short, cohort = _shorten(task), task.cohort_size
    some = min(cohort, clients_at_once(task))
    jobs = _make_jobs(short, some)
    ways = {"serial": _trial(Serial(short), jobs[:1])}
    if task.method.stackable and some > 1:
        stacked = Stacked(short, some)
        ways["stacked"] = _in_contiguous(task, _trial(stacked, jobs))
    times = _time_in_turns(ways)
    scale = _steps_a_visit(task, jobs) / _STEPS
    found = {"serial": cohort * times["serial"] * scale}
    if workers > 1:
        found["pool"] = found["serial"] / workers + cohort * _POOL_SECONDS_A_JOB
    if "stacked" in times and not stacked.fell_back:
        found["stacked"] = times["stacked"] * scale * -(-cohort // some)
    return found


def _trial(executor: Executor, jobs: list[Job]) -> Callable[[], None]:
    def work() -> None:
        for _ in executor.run(jobs):
            pass

    return work


def _in_contiguous(task: Task, work: Callable[[], None]) -> Callable[[], None]:
    def inside() -> None:
        before, task.net.channels_last = task.net.channels_last, False
        try:
            work()
        finally:
            task.net.channels_last = before

    return inside


def _steps_a_visit(task: Task, jobs: list[Job]) -> float:
    def steps(client: int) -> int:
        bounds = batch_bounds(len(task.federation.train(client)), task.local.batch, task.local.drop_last)
        return num_steps(task.local, len(bounds))

    return statistics.fmean(max(1, steps(job.client)) for job in jobs)


# ---------------------------------------------------------------------------------------------------- chunk


def clients_at_once(task: Task) -> int:
    """How many clients fit into a quarter of the free memory, weights, gradients and activations together."""
    model = tree.nbytes({"model": task.initial["model"]})
    fit = int(0.25 * free_memory(task.device.kind) / max(1, 8 * model + 3 * _saved_bytes(task)))
    return max(1, min(fit, MOST_CLIENTS, task.cohort_size))


def _saved_bytes(task: Task) -> int:
    """What autograd keeps of one step of the first client."""
    seen: dict[int, int] = {}

    def pack(value: Tensor) -> Tensor:
        seen[value.data_ptr()] = value.numel() * value.element_size()
        return value

    one = replace(task, local=replace(task.local, steps=1), method=methods.build("fedavg"))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        one.work(_make_jobs(one, 1)[0])
    return sum(seen.values())


def free_memory(device: torch.device) -> int:
    """Bytes that can still be had."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2)


# ------------------------------------------------------------------------------------------------ measuring


def _shorten(task: Task) -> Task:
    return replace(task, local=replace(task.local, steps=_STEPS))


def _make_jobs(task: Task, count: int) -> list[Job]:
    """Jobs of the first round's first clients."""
    cohort = task.sample_cohort(1)
    with seeds.preserve_global_generator(), closing(StateStore()) as store:
        task = replace(task, server_store=store)  # what a trial remembers is not the run's
        server = task.method.init(task.server_context(0))
        s = task.server_context(1, cohort, server).read_only()
        return [Job("train", 1, k, task.method.download(s, server, k)) for k in cohort[:count]]


def _time_in_turns(ways: dict[str, Callable[[], None]], repeats: int = 5, budget: float = 2.0) -> dict[str, float]:
    """Median seconds of each, taken in turns; whatever is slow is repeated less often."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    with prepare_process(threads=1):
        for work in ways.values():
            work()  # the first time pays for buffers and kernels
        for _ in range(repeats):
            for name, work in ways.items():
                if sum(times[name]) < budget or not times[name]:
                    began = time.perf_counter()
                    work()
                    times[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in times.items()}


def _recall_or_measure(
    what: str, task: Task, about: tuple[Any, ...], measure: Callable[[], tuple[str, str]], plain: str
) -> str:
    """The choice in the cache, or a new one, which is kept there; `plain` if nothing can be kept."""
    path = cache_dir() / "calibration" / f"{what.replace(' ', '-')}-{_key(task, about)}.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        choice, why = str(found["choice"]), f"{found['why']}, measured before"
    except (OSError, ValueError, KeyError, TypeError):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            choice, why = measure()
            storage.write_atomic(path, json.dumps({"what": what, "choice": choice, "why": why}).encode())
        except OSError as error:
            choice, why = plain, f"not measured: cannot write {path}: {error.strerror or error}"
    # shown only to users who asked for a choice; every choice is in run.toml
    log.log(logging.INFO if what == "executor" else logging.DEBUG, "%s: %s (%s)", what, choice, why)
    return choice


def _key(task: Task, about: tuple[Any, ...]) -> str:
    """Names the situation: machine, model, inputs and what else it is about."""
    model = [(name, tuple(value.shape)) for name, value in task.initial["model"].items()]
    machine = (platform.machine(), platform.processor(), os.cpu_count(), torch.__version__, str(task.device))
    text = repr((machine, model, tuple(task.federation.dataset.shape), about))
    return hashlib.sha256(text.encode()).hexdigest()[:24]
