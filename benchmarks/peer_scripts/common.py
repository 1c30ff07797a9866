"""What the scripts share: the arrays, the networks in PyTorch, the clock. Imports torch only where it is used."""

from __future__ import annotations

import functools
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor, nn

TEST_BATCH = 1000


@dataclass(frozen=True)
class Task:
    """A workload: what `benchmarks.peers` saved. Client k holds `x[k]`, already normalised."""

    x: list[NDArray[np.float32]]
    y: list[NDArray[np.int64]]
    test_x: NDArray[np.float32]
    test_y: NDArray[np.int64]
    weights: list[NDArray[np.float32]]
    """Initial weights in the order and shapes of the torch model's parameters."""
    settings: dict[str, Any]
    """`epochs`, `batch`, `lr`, `momentum`, `cohort`, `rounds`."""

    @property
    def is_image(self) -> bool:
        """Whether it is the CNN's task."""
        return self.test_x.ndim == 4


@functools.cache
def load(path: str) -> Task:
    """Reads the file once a process."""
    with np.load(path, allow_pickle=False) as held:
        cuts = np.cumsum(held["sizes"])[:-1]
        weights = [held[f"weight_{number}"] for number in range(int(held["weights"]))]
        return Task(
            x=np.split(_normalised(held["x"]), cuts),
            y=np.split(held["y"], cuts),
            test_x=_normalised(held["test_x"]),
            test_y=held["test_y"],
            weights=weights,
            settings=json.loads(str(held["settings"])),
        )


def _normalised(x: NDArray[Any]) -> NDArray[np.float32]:
    return ((x.astype(np.float32) / 255 - 0.5) / 0.5).astype(np.float32) if x.dtype == np.uint8 else x


def torch_model(task: Task) -> nn.Sequential:
    """The same network as unskew's with the same initial weights; ReLU after the max-pool, as there."""
    import torch
    from torch import nn

    if task.is_image:
        model = nn.Sequential(
            nn.Conv2d(1, 32, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(32, 64, 5), nn.MaxPool2d(2), nn.ReLU(),
            nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10),
        )  # fmt: skip
    else:
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), task.weights, strict=True):
            parameter.copy_(torch.from_numpy(value))
    return model


def train(model: nn.Module, x: Tensor, y: Tensor, settings: dict[str, Any]) -> None:
    """The local loop that a careful user writes where a peer leaves it to them: no loader, shuffled slices."""
    import torch
    import torch.nn.functional as F

    optimiser = torch.optim.SGD(model.parameters(), lr=settings["lr"], momentum=settings["momentum"])
    for _ in range(settings["epochs"]):
        order = torch.randperm(len(y))
        x_epoch, y_epoch = x[order], y[order]
        for start in range(0, len(y), settings["batch"]):
            optimiser.zero_grad()
            out = model(x_epoch[start : start + settings["batch"]])
            F.cross_entropy(out, y_epoch[start : start + settings["batch"]]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()


def evaluate(model: nn.Module, task: Task) -> tuple[float, float]:
    """Mean loss and accuracy on the test set."""
    import torch
    import torch.nn.functional as F

    loss, right = 0.0, 0
    model.eval()
    with torch.inference_mode():
        for start in range(0, len(task.test_y), TEST_BATCH):
            x = torch.from_numpy(task.test_x[start : start + TEST_BATCH])
            y = torch.from_numpy(task.test_y[start : start + TEST_BATCH])
            out = model(x)
            loss += float(F.cross_entropy(out, y, reduction="sum"))
            right += int((out.argmax(1) == y).sum())
    model.train()
    return loss / len(task.test_y), right / len(task.test_y)


class Clock:
    """Collects the end of each round, after its test, and the test's loss; writes them into the file of facts."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.ends: list[float] = []
        self.losses: list[float] = []

    def tick(self, loss: float) -> None:
        """A round is over (the first call: everything is ready and the initial model is tested)."""
        self.ends.append(time.perf_counter())
        self.losses.append(float(loss))

    def write(self, path: str, version: str) -> None:
        """The facts, for `benchmarks.peers`."""
        facts = {"began": self.began, "ends": self.ends, "losses": self.losses, "version": version}
        Path(path).write_text(json.dumps(facts))


def arguments() -> tuple[str, str]:
    """The file of arrays and the file for the facts."""
    return sys.argv[1], sys.argv[2]
