"""FedSOL: a step's gradient is taken where the weights are moved against forgetting, so that the two do not conflict.

Lee, Jeong, Kim, Oh, Yun, "FedSOL: Stabilized Orthogonal Learning with Proximal Restrictions in Federated Learning",
CVPR 2024.

    paper            here
    L_p, g_p         prox, `proximal`: its gradient
    rho, Lambda      rho, scaling
    eps_p* (eq. 8)   what `perturb.moved` adds to the weights of `where`
    w_g              c.received["model"]

A step follows grad L_local(w + eps), L_local being the inner method's criterion and the terms that the user added.
Inside FedSOL a method's own proximal gradient is g_p and no longer part of the step; all else of it stays.
Paper and code differ: Lambda is normed over a layer (`paper`) or over each tensor's first dimension (`code`, which gave
the results); head and rho 2 (paper) or all layers and rho 1 (code's configuration): the paper's are the defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from unskew.base import tree
from unskew.base.batch import Batch, Output
from unskew.base.errors import InputError
from unskew.base.registry import param
from unskew.base.tree import Groups, Tree
from unskew.core import local_loop
from unskew.core.context import ClientContext, ServerContext
from unskew.core.method import Method, methods
from unskew.core.term import Term
from unskew.core.wrapper import Wrapper
from unskew.methods.fedavg import FedAvg
from unskew.methods.fedsol.perturb import Scaling, Where, calm, moved, part, projected
from unskew.methods.fedsol.proximal import See, check_plain, overrides, proximal_gradient, supervised
from unskew.terms.kl import KL

STRATEGIES = {
    "A1": ("p", ""), "A2": ("w", "p"), "A3": ("p", "p"), "A4": ("c", "c"), "A5": ("w", "w"), "A6": ("p", "w"),
}  # fmt: skip
"""Table 12: where the gradients of L_local and (times beta) of L_p are taken: w, w + eps_p or w + eps_c."""


@methods.register("fedsol")
class FedSOL(Wrapper):
    """The inner method, with the local gradient taken at weights moved along its proximal gradient."""

    inner: Method = param(default=FedAvg(), doc="the method inside; its proximal gradient is used unless `prox` is set")
    prox: Term | None = param(
        default=None, doc="proximal loss; none: the inner method's own, kl if it has none", source="paper, Sec. 4.1: kl"
    )
    rho: float = param(default=2.0, ge=0, doc="radius of the perturbation", source="paper, Sec. 4.1")
    where: Where = param(
        default="head", doc="which parameters are perturbed", source="paper, Sec. 4.1; the code's configuration: all"
    )
    scaling: Scaling = param(
        default="code", doc="Lambda: as in the code, eq. 7 by layer (paper), eq. 7 by tensor, or 1", source="code"
    )
    threshold: float = param(
        default=1e-6, ge=0, doc="a proximal gradient not longer than this is noise: nothing is moved", source="ours"
    )
    strategy: Literal["A0", "A1", "A2", "A3", "A4", "A5", "A6"] = param(
        default="A1", doc="which gradients make the step (Table 12); A1 is FedSOL", source="paper, Table 12"
    )
    beta: float = param(default=1.0, ge=0, doc="strength of L_p in A2 to A6", source="our choice; the paper gives none")
    projection: bool = param(default=False, doc="ablation: project the local gradient instead (eq. 3)", source="paper")

    def __post_init__(self) -> None:
        """Refuses what would silently do something else."""
        if self.projection and self.strategy != "A1":
            raise InputError(f"fedsol: projection=true takes the place of a strategy, got strategy={self.strategy}")
        check_plain("fedsol", self.inner)

    def init(self, s: ServerContext) -> Groups:
        """The inner method's."""
        if not part(s, self.where):
            raise InputError(f"fedsol(where={self.where}) has nothing to move: {self.inner} does not train that part")
        return self.inner.init(s)

    def train(self, c: ClientContext, params: Tree) -> Tree:
        """Local training along this method's gradient; what the received model says is looked up where possible."""
        asks = not self._is_plain and any(isinstance(term, KL) for term in self._losses())
        return local_loop.sgd(c.with_taught() if asks else c, params, self.gradient)

    def proximal(self, c: ClientContext, params: Tree, batch: Batch) -> Tree:
        """g_p, the gradient of the proximal loss."""
        return self._proximal(c, params, batch, c.trainable, lambda p: c.forward(p, batch.x))

    def gradient(self, c: ClientContext, params: Tree, batch: Batch) -> Tree:
        """grad L_local(w + eps_p), or what an ablation has instead."""
        if self.projection:
            return projected(self._local(c, params, batch), self.proximal(calm(c), params, batch))  # eq. 3
        if self._is_plain:
            return self._local(c, params, batch)
        if self.strategy == "A1" and self.where == "head":
            return self._with_head_moved(c, params, batch)
        g_p = self.proximal(c, params, batch)
        still = calm(c)  # BatchNorm's statistics are those of w, whose pass is behind us
        place, prox_place = STRATEGIES[self.strategy]
        if place == "c":
            g_c = tree.add_scaled(self._local(still, params, batch), g_p, self.beta)
        there = self._moved(c, params, g_c if place == "c" else g_p)
        grads = self._local(still, params if place == "w" else there, batch)
        if not prox_place:
            return grads
        g_p = g_p if prox_place == "w" else self.proximal(still, there, batch)
        return tree.add_scaled(grads, g_p, self.beta)

    @property
    def _is_plain(self) -> bool:
        """Whether nothing is moved nor added, as in FedAvg."""
        return not self.projection and (self.strategy == "A0" or (self.strategy == "A1" and self.rho == 0))

    def _with_head_moved(self, c: ClientContext, params: Tree, batch: Batch) -> Tree:
        """grad L_local(w + eps_p) where only the head is moved: one pass through the body serves both losses."""

        def loss(p: Tree) -> Tensor:
            z = c.features(p, batch.x)
            seen = z.detach()
            g_p = self._proximal(c, p, batch, part(c, self.where), lambda q: Output(c.classify(q, seen), seen))
            there = self._moved(c, p, g_p)
            return supervised(self.inner, c, there, batch, Output(c.classify(there, z, "batch"), z))

        return self._noted(c, loss, params)

    def _local(self, c: ClientContext, params: Tree, batch: Batch) -> Tree:
        """grad L_local(params)."""
        return self._noted(c, lambda p: supervised(self.inner, c, p, batch, c.forward(p, batch.x)), params)

    def _noted(self, c: ClientContext, loss: Callable[[Tree], Tensor], params: Tree) -> Tree:
        grads, value = c.grad_and_value(loss, params)
        c.diagnostics.note("train_loss", value)
        return grads

    def _proximal(self, c: ClientContext, params: Tree, batch: Batch, names: tuple[str, ...], see: See) -> Tree:
        return proximal_gradient(self.inner, self._losses(), c, params, batch, names, see)

    def _losses(self) -> tuple[Term, ...]:
        """The terms whose gradient is g_p; none: the inner method corrects gradients itself (SCAFFOLD's c - c_k)."""
        if self.prox is not None:
            return (self.prox,)
        return () if overrides(self.inner, "proximal") else self.inner.own_terms() or (KL(),)

    def _moved(self, c: ClientContext, params: Tree, direction: Tree) -> Tree:
        """w + eps."""
        chosen = tree.select(direction, part(c, self.where))
        return {**params, **moved(params, chosen, c.received["model"], self.rho, self.scaling, self.threshold)}
