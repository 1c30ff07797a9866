"""pfl: FederatedAveraging on the SimulatedBackend; two processes under torchrun, one thread each.

Users are not tested before and after training (`evaluation_frequency` beyond the last round), as in our workloads.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend  # type: ignore[import-not-found]
from pfl.algorithm.base import NNAlgorithmParams  # type: ignore[import-not-found]
from pfl.algorithm.federated_averaging import FederatedAveraging  # type: ignore[import-not-found]
from pfl.callback.base import TrainingProcessCallback  # type: ignore[import-not-found]
from pfl.callback.central_evaluation import CentralEvaluationCallback  # type: ignore[import-not-found]
from pfl.data.dataset import Dataset  # type: ignore[import-not-found]
from pfl.data.federated_dataset import FederatedDataset  # type: ignore[import-not-found]
from pfl.data.sampling import get_user_sampler  # type: ignore[import-not-found]
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams  # type: ignore[import-not-found]
from pfl.internal.ops.selector import get_framework_module  # type: ignore[import-not-found]
from pfl.metrics import Metrics, Weighted  # type: ignore[import-not-found]
from pfl.model.pytorch import PyTorchModel  # type: ignore[import-not-found]
from torch import Tensor, nn

from benchmarks.peer_scripts import common


class Net(nn.Module):
    """The network with the two functions that pfl asks for."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """What training minimises."""
        return F.cross_entropy(self.inner(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """Sums over a batch."""
        out = self.inner(x)
        loss, right = F.cross_entropy(out, y, reduction="sum").item(), (out.argmax(1) == y).sum().item()
        return {"loss": Weighted(loss, len(y)), "accuracy": Weighted(right, len(y))}


class Tick(TrainingProcessCallback):  # type: ignore[misc]
    """Comes after the central evaluation and reads its loss."""

    def __init__(self, clock: common.Clock) -> None:
        self.clock = clock

    def on_train_begin(self, *, model: Any) -> Any:
        """The initial model was tested by the callback before this one, which keeps the figures to itself."""
        self.clock.tick(float("nan"))
        return Metrics()

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        """The end of a round."""
        figures = aggregate_metrics.to_simple_dict()
        loss = next((float(value) for name, value in figures.items() if name.endswith("| loss")), float("nan"))
        if central_iteration == 0:  # pfl does not test after its first round: this is the initial model's loss
            self.clock.losses[0], loss = loss, float("nan")
        self.clock.tick(loss)
        return False, Metrics()


def main() -> None:
    """One process of two; the first writes the facts."""
    clock = common.Clock()
    torch.set_num_threads(1)
    source, report = common.arguments()
    task = common.load(source)
    s = task.settings
    net = Net(common.torch_model(task))
    model = PyTorchModel(
        net,
        local_optimizer_create=lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=s["momentum"]),
        central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
    )
    clients = [
        Dataset((torch.from_numpy(x), torch.from_numpy(y)), user_id=str(k))
        for k, (x, y) in enumerate(zip(task.x, task.y, strict=True))
    ]
    np.random.seed(0)
    data = FederatedDataset(lambda user: clients[user], get_user_sampler("minimize_reuse", list(range(len(clients)))))
    test = Dataset((torch.from_numpy(task.test_x), torch.from_numpy(task.test_y)))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=s["rounds"],
            evaluation_frequency=10**9,
            train_cohort_size=s["cohort"],
            val_cohort_size=0,
        ),
        SimulatedBackend(data, data),
        model,
        NNTrainHyperParams(local_num_epochs=s["epochs"], local_learning_rate=s["lr"], local_batch_size=s["batch"]),
        NNEvalHyperParams(local_batch_size=common.TEST_BATCH),
        [CentralEvaluationCallback(test, NNEvalHyperParams(local_batch_size=common.TEST_BATCH)), Tick(clock)],
        send_metrics_to_platform=False,
    )
    if get_framework_module().distributed.global_rank == 0:
        clock.write(report, version("pfl"))


if __name__ == "__main__":
    main()
