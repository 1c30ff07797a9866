"""The largest eigenvalues of the Hessian of the global model's loss, by Lanczos's method with restarts."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

import torch
from torch import Tensor

from unskew.base import seeds
from unskew.base.registry import param
from unskew.base.tree import Tree
from unskew.core.context import ClientContext
from unskew.data.batches import LocalData
from unskew.measures.base import Figures, Look, Measure, choose_samples, choose_test_samples, measures

Product = Callable[[Tensor], Tensor]


def top_eigenvalues(
    product: Product, start: Tensor, top: int, most: int = 200, basis: int = 24, tolerance: float = 1e-3
) -> list[float]:
    """The largest eigenvalues (by value, not by size) of the symmetric matrix that `product` multiplies by.

    Thick-restart Lanczos with full orthogonalisation: when `basis` vectors are kept, the best directions found so far
    and the newest one start the next ones. It ends when each residual is below `tolerance` of the largest eigenvalue,
    or after `most` products.
    """
    basis = max(basis, 2 * top + 2)
    vectors = (start / start.norm()).unsqueeze(0)
    projected = start.new_zeros(0, 0, dtype=torch.float64)
    for number in range(1, most + 1):
        image = product(vectors[-1])
        column = (vectors @ image).double()
        size = len(vectors)
        grown = projected.new_zeros(size, size)
        grown[: len(projected), : len(projected)] = projected
        grown[:, -1] = grown[-1, :] = column
        projected = grown
        rest = image - column.to(image.dtype) @ vectors
        rest = rest - (vectors @ rest) @ vectors  # once more: rounding leaves the first attempt not quite orthogonal
        length = rest.norm()
        values, directions = torch.linalg.eigh(projected)
        residuals = float(length) * directions[-1].abs()[-top:]
        scale = float(values.abs().max())
        found = size >= top and bool((residuals <= tolerance * scale).all())
        if found or size == start.numel() or float(length) <= 1e-12 * scale or number == most:
            break
        if size >= basis:
            kept = min(size - 1, top + basis // 4)
            vectors = directions[:, -kept:].T.to(vectors.dtype) @ vectors
            projected = values[-kept:].diag()
        vectors = torch.cat([vectors, (rest / length).unsqueeze(0)])
    found_values: list[float] = values.flip(0)[:top].tolist()
    return found_values


def hessian_product(c: ClientContext, params: Tree, data: LocalData, batch: int) -> Product:
    """v → H v for the Hessian of the mean cross-entropy on these samples, eval mode, by differentiating twice."""
    names, whole = c.trainable, len(data)

    def product(vector: Tensor) -> Tensor:
        parts = torch.split(vector, [params[name].numel() for name in names])
        along = [part.view_as(params[name]) for part, name in zip(parts, names, strict=True)]
        total = torch.zeros_like(vector)
        for part in data.passes(batch):
            leaves = [params[name].detach().requires_grad_() for name in names]
            laid = {**params, **dict(zip(names, leaves, strict=True))}
            with torch.enable_grad():
                loss = part.cross_entropy(c.forward(laid, part.x, "eval").logits) * (len(part.y) / whole)
                first = torch.autograd.grad(loss, leaves, create_graph=True, materialize_grads=True)
                slope = torch.stack([(g * v).sum() for g, v in zip(first, along, strict=True)]).sum()
                second = torch.autograd.grad(slope, leaves, materialize_grads=True)
            total += torch.cat([grad.flatten() for grad in second])
        return total

    return product


@measures.register("hessian")
class Hessian(Measure):
    """Largest eigenvalues of the Hessian of the global model's loss, and their ratio: how sharp the minimum is.

    Some hundred passes forward and backward over the samples; by default after the last round only.
    """

    samples: int = param(default=1000, ge=1, doc="at most so many samples (a fixed choice by the run's seed)")
    top: int = param(default=5, ge=1, doc="how many eigenvalues")
    on: Literal["test", "train"] = param(default="test", doc="whose loss: the common test set's or all training data's")
    every: int = param(default=0, ge=0, doc="rounds between measurements; 0: after the last round only")
    most: int = param(default=200, ge=1, doc="at most so many products with the Hessian")
    tolerance: float = param(default=1e-3, gt=0, doc="accuracy of the eigenvalues, as a share of the largest")

    on_test: ClassVar[bool] = True

    def figures(self, look: Look) -> Figures:
        """`hessian_1` (the largest) to `hessian_5`, and `hessian_ratio`, the first over the last."""
        if not (look.final or (self.every and look.round % self.every == 0)):
            return {}
        task = look.task
        train = self.on == "train"
        data = (
            choose_samples(task, task.federation.dataset.train, self.samples)
            if train
            else choose_test_samples(task, self.samples)
        )
        params = look.published["model"]
        product = hessian_product(look.context, params, data, task.eval_batch)
        count = sum(params[name].numel() for name in task.trainable)
        rng = seeds.generator(task.seed, "measure/hessian")
        start = torch.randn(count, generator=rng).to(params[task.trainable[0]])
        if not bool(torch.isfinite(product(start)).all()):
            return {"hessian_1": None, "hessian_ratio": None}  # the model diverged
        values = top_eigenvalues(product, start, self.top, self.most, tolerance=self.tolerance)
        found = {f"hessian_{number}": value for number, value in enumerate(values, 1)}
        return {**found, "hessian_ratio": values[0] / values[-1] if abs(values[-1]) > 1e-12 else None}
