"""The largest eigenvalues of the Hessian of the global model's loss: how sharp the minimum is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from unskew.base import seeds
from unskew.base.errors import InputError
from unskew.base.registry import param
from unskew.base.tree import Tree
from unskew.core.context import ClientContext
from unskew.core.task import Task
from unskew.data.batches import LocalData
from unskew.measures.base import Figures, Look, Measure, choose_samples, measures

log = logging.getLogger(__name__)
Product = Callable[[Tensor], Tensor]


def top_eigenvalues(product: Product, start: Tensor, top: int, most: int = 200, tolerance: float = 1e-3) -> list[float]:
    """The largest eigenvalues (by value, not by size), descending, of the symmetric matrix that `product` applies.

    Lanczos's method with restarts, from `start`, until each residual is below `tolerance` of its eigenvalue. If `most`
    products (at least `top` + 3) do not suffice, a warning says so, and only those that converged are given.
    """
    from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh  # slow to import, and few runs need it
    from threadpoolctl import threadpool_limits

    size = start.numel()
    if top >= size:  # eigsh does not give all of them
        matrix = torch.stack([product(unit) for unit in torch.eye(size).to(start)]).double()
        every: list[float] = torch.linalg.eigvalsh((matrix + matrix.T) / 2).flip(0).tolist()
        return every

    # eigsh takes 1 + basis products, then at least one restart, each of at most basis - top
    basis = min(size, max(2 * top + 1, 20), (most - 1 + top) // 2)
    restarts = (most - 1 - basis) // (basis - top)
    first = start.cpu().numpy()

    def apply(vector: Any) -> Any:
        return product(torch.from_numpy(vector).to(start)).cpu().numpy()

    operator = LinearOperator((size, size), matvec=apply, dtype=first.dtype)
    options = {"v0": first, "ncv": basis, "maxiter": restarts, "tol": tolerance, "return_eigenvectors": False}
    try:
        with threadpool_limits(1, user_api="blas"):  # sums round differently with another number of threads
            values = eigsh(operator, top, which="LA", **options).tolist()
    except ArpackError as error:
        values = list(getattr(error, "eigenvalues", ()))
        log.warning(
            "measure hessian: %d of %d eigenvalues converged within %d products (%s); raise most or tolerance",
            len(values), top, most, error,
        )  # fmt: skip
    return sorted(map(float, values), reverse=True)


def hessian_product(c: ClientContext, params: Tree, data: LocalData, batch: int) -> Product:
    """v → H v for the Hessian of the mean cross-entropy on these samples, eval mode, by differentiating twice."""
    names, samples = c.trainable, len(data)

    def product(vector: Tensor) -> Tensor:
        parts = torch.split(vector, [params[name].numel() for name in names])
        along = [part.view_as(params[name]) for part, name in zip(parts, names, strict=True)]
        total = torch.zeros_like(vector)
        for part in data.passes(batch):
            leaves = [params[name].detach().requires_grad_() for name in names]
            model = {**params, **dict(zip(names, leaves, strict=True))}
            with torch.enable_grad():
                loss = part.cross_entropy(c.forward(model, part.x, "eval").logits) * (len(part.y) / samples)
                first = torch.autograd.grad(loss, leaves, create_graph=True, materialize_grads=True)
                slope = torch.stack([(g * v).sum() for g, v in zip(first, along, strict=True)]).sum()
                second = torch.autograd.grad(slope, leaves, materialize_grads=True)
            total += torch.cat([grad.flatten() for grad in second])
        if not bool(total.isfinite().all()):
            raise FloatingPointError("the loss has no finite Hessian; the model diverged")
        return total

    return product


@measures.register("hessian")
class Hessian(Measure):
    """Largest eigenvalues of the Hessian of the global model's loss, and their ratio: how sharp the minimum is.

    Some hundred passes forward and backward over the samples; by default after the last round only.
    """

    reading: ClassVar[Mapping[str, str]] = {
        "hessian": "An eigenvalue of the loss's curvature, 1 being the largest; higher: a sharper minimum.",
        "hessian_ratio": "The largest eigenvalue over the last; higher: few directions are steeper than the others.",
    }

    samples: int = param(default=1000, ge=1, doc="at most so many samples (a fixed choice by the run's seed)")
    top: int = param(default=5, ge=1, doc="how many eigenvalues")
    on: Literal["test", "train"] = param(default="test", doc="whose loss: the common test set's or all training data's")
    every: int = param(default=0, ge=0, doc="rounds between measurements; 0: after the last round only")
    most: int = param(default=200, ge=4, doc="at most so many products with the Hessian; at least top + 3")
    tolerance: float = param(default=1e-3, gt=0, doc="accuracy of each eigenvalue, as a share of it")

    on_test: ClassVar[bool] = True

    def check(self, task: Task) -> None:
        """So many eigenvalues need some more products."""
        if self.most < self.top + 3:
            raise InputError(
                f"measure hessian: {self.top} eigenvalues need at least {self.top + 3} products, got most={self.most}"
            )

    def figures(self, look: Look) -> Figures:
        """`hessian_1` (the largest) to `hessian_5`, and `hessian_ratio`, the first over the last if all converged."""
        if not (look.final or (self.every and look.round % self.every == 0)):
            return {}
        task = look.task
        source = task.federation.dataset.train if self.on == "train" else task.federation.dataset.test
        data = choose_samples(task, source, self.samples)
        params = look.published["model"]
        product = hessian_product(look.context, params, data, task.eval_batch)
        count = sum(params[name].numel() for name in task.trainable)
        rng = seeds.generator(task.seed, "measure/hessian")
        start = torch.randn(count, generator=rng).to(params[task.trainable[0]])
        try:
            values = top_eigenvalues(product, start, self.top, self.most, self.tolerance)
        except FloatingPointError:
            values = []  # the model diverged
        whole = len(values) == min(self.top, count)
        return {
            **{f"hessian_{number}": value for number, value in enumerate(values or [None], 1)},
            "hessian_ratio": values[0] / values[-1] if whole and abs(values[-1]) > 1e-12 else None,
        }
