"""The sections of a run: how clients train, what is measured, how the work is done."""

from __future__ import annotations

import dataclasses
import logging
import typing
from typing import Any, Literal

from typing_extensions import dataclass_transform

from unskew.base.errors import InputError
from unskew.base.once import warn_once
from unskew.base.registry import Component, param, validated
from unskew.base.settings import LocalSettings
from unskew.base.text import Table
from unskew.core.context import BufferPolicy
from unskew.core.device import Device, Precision
from unskew.core.optimisers import SGD, SHARED, Optimiser, optimisers
from unskew.core.schedule import Schedule, fit_schedule, schedules
from unskew.data.federation import LocalTest

log = logging.getLogger(__name__)
C = typing.TypeVar("C", bound=type)
LARGEST = 3.4e38
"""The largest number of float32, in which clients compute."""
SMALLEST = 1.2e-38
"""The smallest that float32 holds in full: a smaller rate would change no weight."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(param,))
def section(cls: C) -> C:
    """Makes a class a part of the configuration: frozen, validated, unknown keys are errors."""
    made: Any = validated(cls)
    made.name = cls.__name__.lower()
    return typing.cast("C", made)


@section
class Local(Component):
    """How a client trains."""

    epochs: int = param(default=1, ge=1, doc="passes over the client's data in a round")
    steps: int | None = param(default=None, ge=1, doc="exactly so many batches instead of epochs")
    batch: int = param(default=32, ge=1, doc="samples in a batch")
    lr: float = param(default=0.05, gt=0, le=LARGEST, doc="learning rate, or with its schedule: cosine(0.1, warmup=10)")
    lr_decay: float = param(default=1.0, gt=0, le=1, doc="factor on the learning rate after each round")
    schedule: Schedule = param(
        default=schedules.build("constant"),
        doc="the rate over the rounds: constant, exponential(0.99), inverse(0.001), step(30), cosine, warmup(10)",
    )
    optimiser: Optimiser = param(
        default=optimisers.build("sgd"), doc="what makes local steps, with a memory that is fresh at every visit: sgd, "
        "adam, adamw(weight_decay=0.01)"
    )  # fmt: skip
    momentum: float = param(default=0.0, ge=0, lt=1, doc="momentum of SGD, fresh at every visit")
    nesterov: bool = param(default=False, doc="whether that momentum looks one step ahead, as Nesterov's")
    weight_decay: float = param(default=0.0, ge=0, le=LARGEST, doc="weight decay of SGD and Adam")
    clip: float | None = param(
        default=None,
        gt=0,
        le=LARGEST,
        doc="largest L2 norm of a local step's gradient, to which longer ones are clipped",
    )
    drop_last: bool = param(default=False, doc="drop a short last batch if the client has a full one")
    shuffle: bool = param(default=True, doc="shuffle the client's samples in each epoch")
    buffers: BufferPolicy | None = param(
        default=None,
        doc="BatchNorm statistics: averaged (unless the method has its own way), kept at the client, or reset",
    )

    def check(self, rounds: int) -> None:
        """An error where rates or optimisers' options do not fit together, or would change nothing."""
        _ = fit_schedule(self.chosen_schedule, rounds)
        for option in SHARED:
            if getattr(self, option) and option not in self.optimiser.uses:
                self._refuse_unused(option)
        if self.nesterov and not self.momentum:
            raise InputError(
                "local.nesterov (--nesterov) changes momentum, and local.momentum (--momentum) is 0; set it, too, such "
                "as --momentum 0.9"
            )
        if self.lr < SMALLEST:
            raise InputError(
                f"local.lr (--lr) = {self.lr:g} would change no weight: expected at least {SMALLEST:g}, the smallest "
                "that float32 holds in full"
            )

    def _refuse_unused(self, option: str) -> None:
        name, own = self.optimiser.name, [field.name for field in dataclasses.fields(self.optimiser)]
        value = getattr(self, option)
        users = " and ".join(sorted(other for other in optimisers if option in optimisers.get(other).uses))
        instead = f'write --optimiser "{name}({option}={value})"' if option in own else f"use {users}"
        raise InputError(
            f"local.{option} (--{option.replace('_', '-')}) = {value} belongs to {users} and means nothing to {name}, "
            f"whose own options are {', '.join(own) or 'none'}; leave it out, or {instead}"
        )

    @property
    def chosen_schedule(self) -> Schedule:
        """The schedule, of which `lr_decay` is a short form."""
        if self.lr_decay == 1:
            return self.schedule
        if self.schedule != schedules.build("constant"):
            raise InputError(
                f"local.lr_decay = {self.lr_decay:g} and local.schedule = {self.schedule} both change the learning "
                "rate; leave one of them out"
            )
        return schedules.build({"name": "exponential", "decay": self.lr_decay})

    def settings(self) -> LocalSettings:
        """What the local loop needs of it."""
        return LocalSettings(
            lr=self.lr, batch=self.batch, epochs=self.epochs, steps=self.steps, momentum=self.momentum,
            weight_decay=self.weight_decay, drop_last=self.drop_last, shuffle=self.shuffle, nesterov=self.nesterov,
            clip=self.clip, optimiser=None if isinstance(self.optimiser, SGD) else self.optimiser,
        )  # fmt: skip


@section
class Evaluation(Component):
    """What is measured, and when."""

    every: int = param(
        default=1, ge=1, doc="rounds between tests of the global model (the last round is always tested)"
    )
    clients_every: int = param(default=0, ge=0, doc="rounds between tests at the clients; 0: after the last round only")
    local_test: LocalTest = param(
        default="proportional",
        doc="clients' test sets: none, test samples in their label shares, all test samples (common), or held out",
    )
    holdout: float = param(
        default=0.25, gt=0, lt=1, doc="share of a client's samples that `holdout` keeps for testing", source="FedAS"
    )
    max_clients: int = param(default=1000, ge=1, doc="at most so many clients are tested (a fixed random choice)")
    validation: float = param(
        default=0.0, ge=0, lt=1, doc="share of the training samples held out to choose the best round"
    )
    last_k: int = param(default=10, ge=1, doc="tested rounds in the figure 'mean of the last k'")
    batch: int = param(
        default=0, ge=0, doc="samples in a test batch; 0: as many as a core's cache holds in this network, at most 1000"
    )
    figures: bool = param(
        default=False, doc="record macro F1, balanced accuracy, AUC and calibration error of every test"
    )


@section
class Execution(Component):
    """How the work is done. `serial`, `pool`, `ray` give the same bits; what changes rounding is part of the hash."""

    executor: Literal["serial", "pool", "stacked", "ray", "auto"] = param(
        default="serial",
        doc="who does the clients' work; auto: stacked for tiny dense networks, else serial or pool by a quick trial",
    )
    workers: int = param(default=0, ge=0, doc="processes of the pool, actors on ray; 0: one per core")
    retries: int = param(
        default=0, ge=0, doc="how often a job whose worker died is given to a new one; on ray 3 or more"
    )
    address: str = param(
        default="", doc="a Ray cluster, such as 10.0.0.5:6379 or auto; empty: one of this machine alone"
    )
    gpus: float = param(default=0.0, ge=0, doc="GPUs of each actor on ray, such as 0.25")
    chunk: int = param(default=0, ge=0, doc="clients that `stacked` runs at once; 0: as many as fit 1 GiB, at most 64")
    compile: bool = param(default=False, doc="`stacked` compiles the local step (torch.compile's backend)")
    memory_format: Literal["auto", "contiguous", "channels_last"] = param(
        default="auto",
        doc="memory layout of images and weights; auto: channels_last with convolutions (on GPUs not in float32)",
    )
    device: str = param(default="cpu", doc="where clients work: cpu, cuda, cuda:1, or auto: a GPU if there is one")
    precision: Precision = param(
        default="float32", doc="of products: float32, tf32 (GPUs that have it), or bfloat16 (autocast)"
    )
    threads: int = param(default=1, ge=1, doc="threads of each process; the same number gives the same bits")
    checkpoint_every: int = param(
        default=0, ge=0, doc="rounds between checkpoints; 0: 10, and at least 5 seconds, or any after a minute"
    )
    state_memory: int = param(
        default=256, ge=1, doc="MiB of client state kept in memory, and of the server's state of clients"
    )

    @property
    def rounding(self) -> Table:
        """What may change the last bits of a result: equal for `serial`, `pool` and `ray`, whatever their workers."""
        stacked = {"chunk": self.chunk, "compile": self.compile} if self.executor == "stacked" else None
        return {
            "threads": self.threads,  # sums are split among them
            "precision": self.precision,
            "device": self.device.partition(":")[0],  # its number does not matter
            "memory_format": self.memory_format,
            "stacked": stacked,
        }

    def check(self) -> None:
        """An error where options do not fit together, or the machine lacks what they ask for."""
        if self.executor in ("pool", "ray") and self.threads > 1:
            raise InputError(
                f"executor '{self.executor}' runs one thread in each worker, got execution.threads = {self.threads}; "
                "set it to 1 and take more workers, or use executor 'serial'"
            )
        device = Device.from_name(self.device)
        if self.executor == "pool" and not device.is_cpu:
            raise InputError("executor 'pool' works on the CPU; on a GPU use stacked or serial (--executor stacked)")
        if self.compile and self.executor != "stacked":
            raise InputError(
                f"execution.compile compiles the steps of executor 'stacked', got '{self.executor}'; "
                "add --executor stacked"
            )
        idle = (
            ("chunk", self.chunk, ("stacked",)), ("workers", self.workers, ("pool", "ray")),
            ("retries", self.retries, ("pool", "ray")), ("address", self.address, ("ray",)),
            ("gpus", self.gpus, ("ray",)),
        )  # fmt: skip
        for option, value, needed in idle:
            if value and self.executor not in (*needed, "auto"):
                warn_once(
                    log,
                    f"execution.{option} (--{option}) is for executor '{needed[0]}' and does nothing with "
                    f"'{self.executor}'; add --executor {needed[0]}, or leave it out",
                )
        if self.executor == "stacked" and self.memory_format == "channels_last":
            raise InputError(
                "executor 'stacked' keeps images contiguous; leave execution.memory_format (--memory-format) at auto"
            )
