"""FedSOL's toy problem (App. L): a client's loss is a bowl around (u_l, v_l), and the server's weights are (0, 0).

    loss             0.5 (u - u_l)^2 + 0.5 delta (v - v_l)^2
    FedProx ends at  (u_l / (1 + mu), delta v_l / (delta + mu)): it turns away from where the client wants to go
    FedSOL ends at   (u_l, v_l) (1 - rho / r_l): on the ray to it, rho before it

The methods are the package's own; what is made for it is a network of two parameters and a criterion.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unskew.base.batch import Batch, Output
from unskew.base.registry import param, validated
from unskew.base.settings import LocalSettings
from unskew.base.tree import Tree
from unskew.core.context import ClientContext
from unskew.core.jobs import Job
from unskew.core.method import Method
from unskew.core.net import Net
from unskew.core.observer import Observer
from unskew.core.schedule import Constant
from unskew.core.task import Task
from unskew.data.dataset import Dataset, Samples
from unskew.data.federation import Federation
from unskew.data.partition.splits import splits
from unskew.data.transforms import Augment
from unskew.methods.fedprox import FedProx
from unskew.methods.fedsol.method import FedSOL
from unskew.models.base import Model
from unskew.terms.l2 import L2

Path = list[tuple[float, float]]


class Point(nn.Module):
    """Two parameters, whatever the input."""

    def __init__(self) -> None:
        super().__init__()
        self.uv = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        """(u, v) for every sample."""
        return self.uv.expand(len(x), 2)


def bowl(delta: float, out: Output, batch: Batch) -> Tensor:
    """0.5 (u - u_l)^2 + 0.5 delta (v - v_l)^2: the sample is (u_l, v_l)."""
    curvature = torch.tensor([1.0, delta])
    return 0.5 * (curvature * (out.logits[0] - batch.x[0]).square()).sum()


@validated
class Bowl(Method):
    """FedAvg in the bowl."""

    delta: float = param(default=0.1, doc="how flat the bowl is along v")

    def criterion(self, c: ClientContext, out: Output, batch: Batch) -> Tensor:
        """The bowl."""
        return bowl(self.delta, out, batch)


@validated
class BowlProx(FedProx):
    """FedProx in the bowl."""

    delta: float = param(default=0.1, doc="how flat the bowl is along v")

    def criterion(self, c: ClientContext, out: Output, batch: Batch) -> Tensor:
        """The bowl."""
        return bowl(self.delta, out, batch)


class _Walk(Observer):
    """Where the client is before every step."""

    def __init__(self) -> None:
        self.path: Path = []

    def before_step(self, c: ClientContext, params: Tree, batch: Batch) -> None:
        """Notes the point."""
        u, v = params["head.uv"].detach().tolist()
        self.path.append((u, v))


def walk(method: Method, goal: tuple[float, float], start: tuple[float, float], steps: int, lr: float) -> Path:
    """Local training from `start`: the points before each step, and the last one."""
    sample = Samples(torch.tensor([goal]), torch.tensor([0]))
    data = Dataset("bowl", sample, sample, ("0", "1"), (0.0,), (1.0,))
    federation = Federation(data, splits.build("iid").cut(data, 1, 0), Augment())
    net, watched = Net(Model(nn.Identity(), Point())), _Walk()
    params, buffers = net.trees()
    task = Task(
        method, federation, net, {"model": params, "buffers": buffers}, 0, LocalSettings(lr, 1, steps), Constant(),
        "average", 1, observers=(watched,),
    )  # fmt: skip
    c = task.visit(Job("train", 1, 0, {"model": params}), federation.train(0))
    ended = method.train(c, {"head.uv": torch.tensor(start)})
    assert isinstance(ended, dict)
    u, v = ended["head.uv"].tolist()
    return [*watched.path, (u, v)]


def walk_both() -> dict[str, Path]:
    """4000 steps at 0.01 from the client's own optimum (1, 1), delta = 0.1, as in the paper."""
    sol = FedSOL(inner=Bowl(delta=0.1), prox=L2(), rho=0.5, where="all", scaling="fixed")
    prox = BowlProx(mu=0.5, delta=0.1)
    return {
        name: walk(method, (1.0, 1.0), (1.0, 1.0), 4000, 0.01)
        for name, method in (("FedProx, mu = 0.5", prox), ("FedSOL, rho = 0.5", sol))
    }
