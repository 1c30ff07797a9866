"""Written rules for what changes rounding: memory format, whether clients are stacked, how many at once, the device,
samples in a test batch.

They look at the network, the data's shape and the options, never at a clock or at the memory that is free now: equal
runs are equal on every machine. `Run.resolve` applies them, so that the choices are part of a run's hash and run.toml.
docs/performance.md has the measurements behind them.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from unskew.base import seeds
from unskew.base.process import hold_process
from unskew.base.registry import construct
from unskew.base.torch_private import BatchNormBase
from unskew.core.context import BufferPolicy
from unskew.core.device import Device
from unskew.models.base import Model
from unskew.runs.sections import Execution

log = logging.getLogger(__name__)

MEMORY_BUDGET = 1 << 30
"""Bytes that the clients of a chunk may need together."""
MOST_CLIENTS = 64
"""More clients at once gain nothing further on tiny networks, and make chunks wait for their longest client."""
STACKED_PARAMETERS = 10_000
"""`auto` stacks networks up to this size."""
STACKED_CLIENTS = 8
"""`auto` stacks rounds of at least so many clients."""
TEST_BYTES = 8 << 20
"""What the largest layer may give for a test batch: it then stays in a core's share of the cache."""
TEST_BATCHES = (1000, 500, 250, 200, 125, 100, 50, 40, 25, 20, 10)
"""Test batches to choose from: parts of a thousand samples."""


def fix_execution(
    execution: Execution, build: Callable[[], Model], shape: tuple[int, ...], batch: int, cohort: int, stackable: bool
) -> Execution:
    """The options with nothing left open that changes rounding; the model is built only if a rule must look at it."""
    if execution.device == "auto":
        execution = change(execution, device=str(Device.from_name("auto").kind))
    model = functools.cache(build)
    with hold_process(), seeds.seed_everything(0, "model"):
        # who fixed the memory format fixed the rounding: a resumed run, for one, must not change over to `stacked`
        free = execution.executor == execution.memory_format == "auto" and stackable
        if free and is_worth_stacking(model(), cohort):
            execution = change(execution, executor="stacked")
            log.info("executor: stacked (a tiny dense network, %d clients a round)", cohort)
        if execution.executor == "stacked":
            chunk = execution.chunk or choose_chunk(model(), shape, batch, cohort)
            return change(execution, memory_format="contiguous", chunk=chunk)
        if execution.memory_format == "auto":
            return change(execution, memory_format=choose_memory_format(model(), execution))
    return execution


def change(execution: Execution, **values: Any) -> Execution:
    """The section with other values, validated."""
    return construct(Execution, {**vars(execution), **values})


def choose_memory_format(model: nn.Module, execution: Execution) -> str:
    """`channels_last` for a network with convolutions, on a GPU only in tf32 or bfloat16; else `contiguous`.

    On the CPU it was faster for every shipped network but VGG-11 in batches of 10, and no slower for the transformer.
    The rule for GPUs, whose tensor cores take channels last, is untested here.
    """
    convolves = any(isinstance(module, nn.Conv2d) for module in model.modules())
    on_gpu = not execution.device.startswith("cpu")
    return "channels_last" if convolves and not (on_gpu and execution.precision == "float32") else "contiguous"


def fix_test_batch(
    batch: int, execution: Execution, build: Callable[[], Model], shape: tuple[int, ...], buffers: BufferPolicy
) -> int:
    """The samples in a test batch; 0 leaves them to the rule, which builds the model to look at it."""
    if batch:
        return batch
    with hold_process(), seeds.seed_everything(0, "model"):
        return choose_test_batch(build(), shape, execution, buffers)


def choose_test_batch(model: Model, shape: tuple[int, ...], execution: Execution, buffers: BufferPolicy) -> int:
    """As many samples as keep the largest layer's values within `TEST_BYTES`, at least 10, at most 1000.

    On a GPU 1000, and where tests take the statistics of their batch (BatchNorm whose running ones are not averaged,
    or not kept), which fewer samples would change.
    """
    norms = [module for module in model.modules() if isinstance(module, BatchNormBase)]
    by_batch = any(buffers != "average" or not norm.track_running_stats for norm in norms)
    if by_batch or not execution.device.startswith("cpu"):
        return TEST_BATCHES[0]
    largest = max(_list_kept_bytes(model, shape), default=0)
    return next((each for each in TEST_BATCHES if each * largest <= TEST_BYTES), TEST_BATCHES[-1])


def is_worth_stacking(model: nn.Module, cohort: int) -> bool:
    """Whether a network is dense and has at most 10,000 parameters, and a round has at least 8 clients.

    There stacking took less than half of the time; with convolutions or larger layers a process per core is faster.
    """
    dense = all(value.dim() <= 2 for value in model.parameters())
    size = sum(value.numel() for value in model.parameters())
    return dense and size <= STACKED_PARAMETERS and cohort >= STACKED_CLIENTS


def choose_chunk(model: Model, shape: tuple[int, ...], batch: int, cohort: int) -> int:
    """As many clients as `MEMORY_BUDGET` holds, at least one, at most `MOST_CLIENTS` and the cohort."""
    return max(1, min(MEMORY_BUDGET // estimate_bytes(model, shape, batch), MOST_CLIENTS, cohort))


def estimate_bytes(model: Model, shape: tuple[int, ...], batch: int) -> int:
    """Memory that a client of a stack needs: weights, gradients, what autograd keeps of a step, and copies of them."""
    weights = sum(value.nbytes for value in model.parameters())
    return 8 * weights + 3 * batch * sum(_list_kept_bytes(model, shape)) + 1


def _list_kept_bytes(model: Model, shape: tuple[int, ...]) -> list[int]:
    """Sizes of what autograd keeps of one sample's forward pass, weights aside."""
    weights = {value.data_ptr() for value in model.parameters()}
    kept: dict[int, int] = {}

    def pack(value: Tensor) -> Tensor:
        if value.data_ptr() not in weights:
            kept[value.data_ptr()] = value.nbytes
        return value

    samples = 2  # BatchNorm refuses one
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        out = model(torch.zeros(samples, *shape))
    del out  # it held the graph, so that no address was used twice
    return [size // samples for size in kept.values()]
