"""The two workloads every figure is measured on: W1 is arithmetic (a small CNN), W2 is overhead (a tiny MLP)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from unskew.data.dataset import Dataset, Samples
from unskew.data.sources.in_memory import GivenDataset
from unskew.runs.config import Run, from_table

EXECUTORS: dict[str, dict[str, Any]] = {
    "serial": {"executor": "serial"},
    "pool": {"executor": "pool"},
    "stacked": {"executor": "stacked"},
    "stacked+compile": {"executor": "stacked", "compile": True},
    "auto": {"executor": "auto"},
    "ray": {"executor": "ray"},
}
"""The names on the command line, and the `execution` options that each one means."""


@dataclass(frozen=True)
class Workload:
    """Random data of fixed sizes and the run that trains on them."""

    name: str
    about: str
    model: str
    shape: tuple[int, ...]
    samples: int
    """Training samples of one client."""
    test: int
    local: Mapping[str, Any]
    rounds: int
    """Rounds that are timed, unless the command line says otherwise."""
    warmup: int
    clients: int = 100
    cohort: int = 10
    classes: int = 10
    split: str = "iid"
    total: int = 0
    """Training samples in all; 0: as many as the clients hold together."""
    local_test: str = "none"
    """Personal methods need one: `proportional`."""

    def dataset(self) -> Dataset:
        """The same random samples every time: bytes for images, floats for flat inputs."""
        rng = torch.Generator().manual_seed(0)
        total = self.total or self.clients * self.samples
        train, test = self._draw(total, rng), self._draw(self.test, rng)
        return Dataset(self.name, train, test, tuple(str(k) for k in range(self.classes)), (0.5,), (0.5,))

    def _draw(self, number: int, rng: torch.Generator) -> Samples:
        if len(self.shape) == 3:
            x = torch.randint(0, 256, (number, *self.shape), generator=rng, dtype=torch.uint8)
        else:
            x = torch.randn(number, *self.shape, generator=rng)
        return Samples(x, torch.randint(0, self.classes, (number,), generator=rng))

    def table(self, data: Dataset, method: str = "fedavg", executor: str = "serial", rounds: int = 1) -> dict[str, Any]:
        """The run's table: everything that is not said here is unskew's default."""
        return {
            "method": method,
            "data": GivenDataset(kind=self.name, fingerprint=data.fingerprint()),
            "model": self.model,
            "split": self.split,
            "clients": self.clients,
            "sample": self.cohort / self.clients,
            "rounds": rounds,
            "local": dict(self.local),
            "evaluation": {"local_test": self.local_test},
            "execution": EXECUTORS[executor],
        }

    def run(self, data: Dataset, method: str = "fedavg", executor: str = "serial", rounds: int = 1) -> Run:
        """The run as an object; raises InputError for an executor that there is not."""
        return from_table(self.table(data, method, executor, rounds))


W1 = Workload(
    name="W1",
    about="FedAvg CNN without padding, 100 clients x 600 images 28x28x1, 10 a round, 5 epochs, batch 64, test 10,000",
    model="fedavg_cnn(padding=0, replicate_grey=false)",
    shape=(1, 28, 28),
    samples=600,
    test=10_000,
    local={"epochs": 5, "batch": 64, "lr": 0.01, "momentum": 0.9},
    rounds=3,
    warmup=1,
)
W2 = Workload(
    name="W2",
    about="MLP 64-64-10, 100 clients x 18 vectors of 64, 10 a round, 1 epoch, batch 16, test 360",
    model="mlp",
    shape=(64,),
    samples=18,
    test=360,
    local={"epochs": 1, "batch": 16, "lr": 0.05},
    rounds=300,
    warmup=30,
)
WORKLOADS = {workload.name: workload for workload in (W1, W2)}
