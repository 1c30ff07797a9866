"""FedLab: its standalone pipeline with the serial trainer, which is one process; torch uses all cores."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import torch

# FedLab imports torchvision for its data sets; one that was built for another torch lacks these operators, unused here
for operator in ("nms", "qnms"):
    torch.library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

# ruff: noqa: E402
from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler  # type: ignore
from fedlab.contrib.dataset.basic_dataset import BaseDataset, FedDataset  # type: ignore[import-not-found]
from fedlab.core.standalone import StandalonePipeline  # type: ignore[import-not-found]
from torch.utils.data import DataLoader

from benchmarks.peer_scripts import common


class Clients(FedDataset):  # type: ignore[misc]
    """Each client's samples behind a loader, as FedLab's own data sets have them."""

    def __init__(self, task: common.Task) -> None:
        super().__init__()
        self.num = len(task.x)
        self.parts = [
            BaseDataset(torch.from_numpy(x), torch.from_numpy(y)) for x, y in zip(task.x, task.y, strict=True)
        ]

    def get_dataset(self, id: int, type: str = "train") -> Any:
        """A client's samples."""
        return self.parts[id]

    def get_dataloader(self, id: int, batch_size: int, type: str = "train") -> Any:
        """A client's batches."""
        return DataLoader(self.parts[id], batch_size=batch_size, shuffle=True)


class Trainer(FedAvgSerialClientTrainer):  # type: ignore[misc]
    """SGD with momentum, fresh for each client."""

    def setup_momentum(self, momentum: float) -> None:
        """FedLab's own set-up has no momentum."""
        self.optimizer = torch.optim.SGD(self._model.parameters(), lr=self.lr, momentum=momentum)

    def train(self, model_parameters: Any, train_loader: Any) -> Any:
        """Forgets the last client's momentum first."""
        self.optimizer.state.clear()
        return super().train(model_parameters, train_loader)


class Pipeline(StandalonePipeline):  # type: ignore[misc]
    """Tests the global model after each round."""

    def __init__(self, handler: Any, trainer: Any, task: common.Task, clock: common.Clock) -> None:
        super().__init__(handler, trainer)
        self.task, self.clock = task, clock
        self.evaluate()

    def evaluate(self) -> None:
        """The end of a round."""
        self.clock.tick(common.evaluate(self.handler.model, self.task)[0])


if __name__ == "__main__":
    clock = common.Clock()
    source, report = common.arguments()
    task = common.load(source)
    s = task.settings
    trainer = Trainer(common.torch_model(task), len(task.x))
    trainer.setup_dataset(Clients(task))
    trainer.setup_optim(s["epochs"], s["batch"], s["lr"])
    trainer.setup_momentum(s["momentum"])
    handler = FedAvgServerHandler(common.torch_model(task), s["rounds"], s["cohort"] / len(task.x))
    Pipeline(handler, trainer, task, clock).main()
    clock.write(report, version("fedlab"))
