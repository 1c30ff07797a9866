"""One `Run` object says everything about a run; a TOML file, the command line and Python build the same object."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import sys
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import tomli_w
from typing_extensions import dataclass_transform

import unskew.methods
import unskew.terms  # noqa: F401 - registers the terms
from unskew.core.context import BufferPolicy, LocalSettings
from unskew.core.device import Device, Precision
from unskew.core.method import Method, methods
from unskew.core.registry import (
    Component,
    Registry,
    component_fields,
    construct,
    nearest,
    param,
    to_table,
    validated,
)
from unskew.core.text import Table, parse
from unskew.data import sources
from unskew.data.dataset import Dataset
from unskew.data.federation import LocalTest
from unskew.data.source import Source
from unskew.data.splits import Split, splits
from unskew.data.transforms import Augment, transforms
from unskew.errors import InputError
from unskew.models import Architecture, architectures
from unskew.plugins import load_plugin

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

C = typing.TypeVar("C", bound=type)


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
    lr: float = param(default=0.05, gt=0, doc="learning rate of the first round")
    lr_decay: float = param(default=1.0, gt=0, le=1, doc="factor on the learning rate after each round")
    momentum: float = param(default=0.0, ge=0, lt=1, doc="momentum of SGD, fresh at every visit")
    weight_decay: float = param(default=0.0, ge=0, doc="weight decay of SGD")
    drop_last: bool = param(default=False, doc="drop a short last batch if the client has a full one")
    shuffle: bool = param(default=True, doc="shuffle the client's samples in each epoch")
    buffers: BufferPolicy = param(default="average", doc="BatchNorm statistics: averaged, kept at the client, or reset")

    def settings(self) -> LocalSettings:
        """What the local loop needs of it."""
        return LocalSettings(
            lr=self.lr, batch=self.batch, epochs=self.epochs, steps=self.steps, momentum=self.momentum,
            weight_decay=self.weight_decay, drop_last=self.drop_last, shuffle=self.shuffle,
        )  # fmt: skip


@section
class Evaluation(Component):
    """What is measured, and when."""

    every: int = param(
        default=1, ge=1, doc="rounds between tests of the global model (the last round is always tested)"
    )
    clients_every: int = param(default=0, ge=0, doc="rounds between tests at the clients; 0: after the last round only")
    local_test: LocalTest = param(
        default="proportional", doc="clients' test sets: none, test samples in their label shares, or held out"
    )
    holdout: float = param(
        default=0.25, gt=0, lt=1, doc="share of a client's samples that `holdout` keeps for testing", source="FedAS"
    )
    max_clients: int = param(default=1000, ge=1, doc="at most so many clients are tested (a fixed random choice)")
    validation: float = param(
        default=0.0, ge=0, lt=1, doc="share of the training samples held out to choose the best round"
    )
    last_k: int = param(default=10, ge=1, doc="tested rounds in the figure 'mean of the last k'")
    batch: int = param(default=1000, ge=1, doc="samples in a test batch")


@section
class Execution(Component):
    """How the work is done. `serial` and `pool` give the same bits; the rest changes rounding at most."""

    executor: Literal["serial", "pool", "stacked", "auto"] = param(
        default="serial", doc="who does the clients' work; auto: what a quick trial finds fastest"
    )
    workers: int = param(default=0, ge=0, doc="processes of the pool; 0: one per core")
    retries: int = param(default=0, ge=0, doc="how often a job whose worker died is given to a new one")
    chunk: int = param(default=0, ge=0, doc="clients that `stacked` runs at once; 0: as many as fit the free memory")
    compile: bool = param(default=False, doc="`stacked` compiles the local step (torch.compile's backend)")
    memory_format: Literal["auto", "contiguous", "channels_last"] = param(
        default="auto", doc="how images and convolutions lie in memory; auto: what a quick trial finds faster"
    )
    device: str = param(default="cpu", doc="where clients work: cpu, cuda, cuda:1, or auto: a GPU if there is one")
    precision: Precision = param(
        default="float32", doc="of products: float32, tf32 (GPUs that have it), or bfloat16 (autocast)"
    )
    threads: int = param(default=1, ge=1, doc="threads of each process; the same number gives the same bits")
    checkpoint_every: int = param(
        default=0, ge=0, doc="rounds between checkpoints; 0: 10, and at least 5 seconds (a slow disk must not rule)"
    )
    state_memory: int = param(default=256, ge=1, doc="MiB of client state kept in memory; the rest is paged to disk")


@section
class Run(Component):
    """Everything about a run."""

    method: Method = param(default=methods.build("fedavg"), doc="the method")
    data: Source = param(default=sources.build("digits"), doc="the data set")
    model: Architecture | None = param(default=None, doc="the model; default: one that fits the data's shape")
    split: Split = param(default=splits.build("dirichlet:0.1"), doc="how the data are dealt to the clients")
    split_seed: int | None = param(
        default=None, ge=0, lt=2**32, doc="seed of the split alone; default: from the run's seed"
    )
    pool_test: bool = param(default=False, doc="deal training and test samples to the clients together (FedAS)")
    augment: Augment = param(default=transforms.build("none"), doc="augmentation of training batches")
    clients: int | None = param(default=None, ge=1, doc="number of clients; default: what the split says, else 20")
    sample: float = param(default=1.0, gt=0, le=1, doc="share of the clients that take part in a round")
    dropout: float = param(default=0.0, ge=0, lt=1, doc="probability that a sampled client fails to reply")
    rounds: int = param(default=20, ge=1, doc="communication rounds")
    seed: int = param(default=0, ge=0, lt=2**63, doc="fixes everything random")
    local: Local = param(default=Local(), doc="local training")
    evaluation: Evaluation = param(default=Evaluation(), doc="evaluation")
    execution: Execution = param(default=Execution(), doc="execution")
    plugins: tuple[str, ...] = param(default=(), doc="Python files or modules to import first, for what they register")

    @property
    def hash(self) -> str:
        """Names the run: equal for runs that must give equal results."""
        table = to_table(self)
        del table["plugins"]  # where the code lies is not what it does
        # sums round differently with another number of threads, and bfloat16 is another computation
        table["execution"] = {"threads": self.execution.threads, "precision": self.execution.precision}
        return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:12]

    def resolved(self, data: Dataset) -> Run:
        """The run with what depends on the data filled in, the number of clients and the model; refuses a misfit."""
        if not self.augment.is_identity:
            self.augment.check(data.shape)
        if self.method.output == "personal" and self.evaluation.local_test == "none":
            raise InputError(
                f"{self.method.name} gives personal models only, so it needs local test sets; "
                "set evaluation.local_test (--local-test) to proportional or holdout"
            )
        if self.pool_test and self.evaluation.local_test != "holdout":
            raise InputError("pool_test deals the test samples to the clients; set evaluation.local_test to holdout")
        if self.execution.executor == "pool" and self.execution.threads > 1:
            raise InputError(
                f"executor 'pool' runs one thread in each worker, got execution.threads = {self.execution.threads}; "
                "set it to 1 and take more workers, or use executor 'serial'"
            )
        device = Device.named(self.execution.device)
        if self.execution.executor == "pool" and not device.is_cpu:
            raise InputError("executor 'pool' works on the CPU; on a GPU use stacked or serial (--executor stacked)")
        if self.execution.compile and self.execution.executor != "stacked":
            raise InputError(
                f"execution.compile compiles the steps of executor 'stacked', got '{self.execution.executor}'; "
                "add --executor stacked"
            )
        if self.execution.executor == "stacked" and self.execution.memory_format == "channels_last":
            raise InputError(
                "executor 'stacked' keeps images contiguous; leave execution.memory_format (--memory-format) at auto"
            )
        clients = self.clients or self.split.fixed_clients(data) or 20
        return dataclasses.replace(self, clients=clients, model=self.model or default_model(data.shape))

    @property
    def title(self) -> str:
        """A folder's name for this run."""
        return f"{self.method.name}-{self.data.name}-{self.hash}"

    def to_toml(self) -> str:
        """The resolved run as a TOML file."""
        table = to_table(self)
        return tomli_w.dumps({key: _without_names(value) for key, value in table.items() if key != "name"})


def default_model(shape: tuple[int, ...]) -> Architecture:
    """A small model that fits: an MLP for flat inputs, cnn8 for tiny images, the FedAvg CNN for the rest."""
    if len(shape) != 3:
        return architectures.build("mlp")
    return architectures.build("cnn8" if min(shape[1:]) < 16 else "fedavg_cnn")


SECTIONS: dict[str, type[Component]] = {"local": Local, "evaluation": Evaluation, "execution": Execution}


def _without_names(value: Any) -> Any:
    """A section is named by its place in the file."""
    if isinstance(value, dict) and value.get("name") in SECTIONS:
        return {key: item for key, item in value.items() if key != "name"}
    return value


def from_table(table: Mapping[str, Any]) -> Run:
    """A run from nested tables; unknown keys are errors that name the nearest ones."""
    load_plugins(table)
    registries: dict[str, Registry[Any]] = component_fields(Run)
    names = [field.name for field in dataclasses.fields(Run)]
    values: Table = {}
    for key, value in table.items():
        if key not in names:
            raise InputError(f"a run has no option '{key}'; {nearest(key, names)}")
        if key in SECTIONS:
            values[key] = _section(key, value)
        elif key in registries:
            if not isinstance(value, (str, Mapping, Component)):
                raise InputError(
                    f'{key}: expected a name such as "{next(iter(registries[key]))}" or a table, got {value!r}'
                )
            values[key] = registries[key].build(value)
        else:
            values[key] = value
    return construct(Run, values)


def load_plugins(table: Mapping[str, Any]) -> None:
    """Imports the files that a run's table names, for what they register."""
    paths = table.get("plugins", ())
    if not isinstance(paths, (list, tuple)) or not all(isinstance(path, str) and path for path in paths):
        raise InputError(f'plugins: expected a list of Python files or modules, such as ["mine.py"], got {paths!r}')
    for path in paths:
        load_plugin(path)


def _section(key: str, value: Any) -> Component:
    if isinstance(value, SECTIONS[key]):
        return value
    if not isinstance(value, Mapping):
        raise InputError(f"{key}: expected a table of options, got {value!r}")
    known = [field.name for field in dataclasses.fields(SECTIONS[key])]
    for name in value:
        if name not in known:
            raise InputError(f"{key} has no option '{name}'; {nearest(name, known)}")
    return construct(SECTIONS[key], dict(value))


def read_file(path: Path) -> Table:
    """The tables of a TOML run file."""
    try:
        table: Table = tomllib.loads(path.read_text(encoding="utf-8"))
        return table
    except OSError as error:
        raise InputError(
            f"cannot read the run file {path}: {error.strerror or error}; give the path of a TOML file"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a valid TOML file: {error}; mend it there") from None


def override(table: Mapping[str, Any], path: str, value: Any) -> Table:
    """The table with one value set by its path, such as `method.inner.mu`; text of a component is opened first."""
    result = copy.deepcopy(dict(table))
    registries = component_fields(Run)
    place: Any = result
    *above, last = path.split(".")
    for depth, key in enumerate(above):
        inside = place.get(key, {})
        if depth == 0 and key in registries and not isinstance(inside, dict):
            inside = to_table(registries[key].build(inside))
        elif depth == 0 and key in registries and not inside and getattr(Run(), key) is not None:
            inside = to_table(getattr(Run(), key))
        elif isinstance(inside, str):
            inside = parse(inside)
        if not isinstance(inside, dict):
            raise InputError(
                f"cannot set '{path}': '{'.'.join(above[: depth + 1])}' is the value {inside!r}, not a table"
            )
        place[key] = inside
        place = inside
    place[last] = value
    return result


def read_assignment(text: str) -> tuple[str, Any]:
    """`method.mu=0.1` as a path and a typed value; a value that is not TOML is taken as text."""
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise InputError(f"--set expects path=value, such as method.mu=0.1, got '{text}'")
    try:
        return path.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return path.strip(), value.strip()


FLAGS = {
    "method": "method", "data": "data", "model": "model", "split": "split", "clients": "clients", "sample": "sample",
    "rounds": "rounds", "epochs": "local.epochs", "steps": "local.steps", "batch": "local.batch", "lr": "local.lr",
    "lr_decay": "local.lr_decay", "momentum": "local.momentum", "weight_decay": "local.weight_decay",
    "augment": "augment", "buffers": "local.buffers", "dropout": "dropout", "seed": "seed", "split_seed": "split_seed",
    "eval_every": "evaluation.every", "clients_every": "evaluation.clients_every",
    "local_test": "evaluation.local_test", "validation": "evaluation.validation", "executor": "execution.executor",
    "workers": "execution.workers", "retries": "execution.retries", "checkpoint_every": "execution.checkpoint_every",
    "chunk": "execution.chunk", "compile": "execution.compile", "memory_format": "execution.memory_format",
    "device": "execution.device", "precision": "execution.precision",
}  # fmt: skip
"""The short names of options, on the command line and in Python; every other one is set by its path."""
