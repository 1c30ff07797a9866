"""FedSAM: clients take their gradient at the worst point nearby, and so look for flat minima.

Qu, Li, Duan, Liu, Tang, Lu, "Generalized Federated Learning via Sharpness Aware Minimization", ICML 2022; Caldarola,
Caputo, Ciccone, "Improving Generalization in Federated Learning by Seeking Flat Minima", ECCV 2022.

    paper          here
    rho            rho
    g              the gradient of the local loss at w
    eps            rho g / ||g||, the norm over all trained parameters together: `_ascend`
    grad F(w+eps)  the direction of the step, which starts from w

Two passes a batch; BatchNorm's running statistics follow from the first one, at w. The second paper also averages
weights over rounds (SWA); that is not part of this method.
"""

from __future__ import annotations

import torch

from unskew.base import tree
from unskew.base.batch import Batch
from unskew.base.registry import param
from unskew.base.tree import Tree
from unskew.core.context import ClientContext
from unskew.core.method import Method, methods
from unskew.methods.fedsol.one_pass import keep_statistics

TINY = 1e-12
"""Guard of the norm: a gradient of zeros moves nothing."""


@methods.register("fedsam")
class FedSAM(Method):
    """FedAvg with sharpness-aware local steps: the gradient is taken at w + rho g / ||g||."""

    rho: float = param(default=0.1, ge=0, doc="length of the perturbation", source="FedSOL, Table 8")

    def _ascend(self, w: Tree, grads: Tree) -> Tree:
        """eps = rho g / ||g||."""
        return tree.scale(grads, self.rho / (tree.norm(grads) + TINY))

    def gradient(self, c: ClientContext, params: Tree, batch: Batch) -> Tree:
        """grad F(w + eps), descended from w."""
        grads = super().gradient(c, params, batch)
        if self.rho == 0:
            return grads
        with torch.no_grad():
            eps = self._ascend(params, grads)
            there = {**params, **{name: params[name] + step for name, step in eps.items()}}
        still = keep_statistics(c)
        return c.grad(lambda p: self.loss(still, p, batch), there)
