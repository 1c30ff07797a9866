"""FedSOL: the local gradient is taken at weights moved along the proximal gradient, so that the two do not conflict.

Lee, Jeong, Kim, Oh, Yun, "FedSOL: Stabilized Orthogonal Learning with Proximal Restrictions in Federated Learning",
CVPR 2024.

    paper                    here
    L_local                  the inner method's loss without its proximal terms (`loss_terms`)
    L_p, g_p                 `proximal_losses` (by default the term kl, terms/kl.py); `proximal_gradient`
    Lambda (eq. 7), rho      scaling, rho
    eps_p* (eq. 8)           `perturbation`
    grad L_local(w + eps)    `gradient`, the direction of every local step (alg. 1)
    w_g                      c.received["model"]

g_p is the gradient of `prox` if it is set; else of the proximal part that makes the inner method (terms such as prox
and kl, and a correction such as SCAFFOLD's c - c_i); else of kl. That part is no longer in the step itself. All else of
the inner method stays, and so do terms that the user added, proximal or not.
Paper and code differ: Lambda is normalised over a layer (`paper`) or over each tensor's first dimension (`code`, which
gave the results); head and rho 2 (paper) or all layers and rho 1 (code's configuration): the paper's are the defaults.
The ablations (Table 12, projection of eq. 3) are in strategies.py, how one pass through the body serves both losses is
in one_pass.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from unskew.base import tree
from unskew.base.batch import Batch
from unskew.base.errors import InputError
from unskew.base.naming import helper
from unskew.base.registry import param
from unskew.base.torch_private import is_batched
from unskew.base.tree import Groups, Tree
from unskew.core import local_loop
from unskew.core.context import ClientContext, Context, ServerContext
from unskew.core.method import Method, methods
from unskew.core.slots import overrides
from unskew.core.term import Term
from unskew.core.wrapper import Wrapper
from unskew.methods.fedavg import FedAvg
from unskew.methods.fedsol import strategies
from unskew.methods.fedsol.inner import check_inner, split_terms
from unskew.methods.fedsol.one_pass import Pass, Passes, keep_statistics
from unskew.terms.kl import KL

log = logging.getLogger(__name__)
Where = Literal["head", "body", "all"]
Scaling = Literal["code", "paper", "tensor", "fixed"]
TINY = 1e-12
"""Guard of the norms that something is divided by, torch's own for `F.normalize`."""


def perturbation(g_p: Tree, w: Tree, w_g: Tree, rho: float, scaling: Scaling, threshold: float) -> Tree:
    """eps_p* = rho Lambda g_p / ||g_p|| (eq. 8), the norm over all names of `g_p`; Lambda = |w - w_g| / length (eq. 7).

    A gradient not longer than `threshold` is rounding noise (at first w = w_g): its eps is 0. eps has no gradient.
    """
    with torch.no_grad():
        norm = tree.norm(g_p)
        radius = torch.where(norm > threshold, rho / (norm + TINY), 0.0)
        if scaling == "fixed":  # Lambda = 1
            return tree.scale(g_p, radius)
        away = {name: (w[name] - w_g[name]).abs() for name in g_p}
        length = lengths(away, scaling)
        # d / length is Lambda, radius g_p is rho g_p / ||g_p||
        return {name: d * g_p[name] * (radius / length[name].clamp(min=TINY)) for name, d in away.items()}


def lengths(away: Tree, scaling: Scaling) -> Tree:
    """What |w - w_g| is divided by to give Lambda (eq. 7), for each name, in a shape that fits.

    `code`: its norm along the first dimension of each tensor; `tensor`: its norm in each tensor; `paper`: its norm in
    each layer, weight and bias together.
    """
    if scaling == "code":
        return {name: torch.linalg.vector_norm(d, dim=0, keepdim=True) for name, d in away.items()}
    if scaling == "tensor":
        return {name: torch.linalg.vector_norm(d) for name, d in away.items()}
    layers: dict[str, Tree] = {}
    for name, d in away.items():
        layers.setdefault(name.rpartition(".")[0], {})[name] = d
    norms = {layer: tree.norm(own) for layer, own in layers.items()}
    return {name: norms[name.rpartition(".")[0]] for name in away}


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

    stacked_tolerance = 0.2  # rounding of a small g_p turns g_p / ||g_p||, and with it the step

    # ------------------------------------------------------------------------------------ a local step

    def gradient(self, c: ClientContext, params: Tree, batch: Batch) -> Tree:
        """grad L_local(w + eps_p*), descended from w (alg. 1)."""
        if self.projection:
            return strategies.project(self, c, params, batch)
        if self.strategy != "A1" or self.rho == 0:  # rho = 0 is A0
            return strategies.combine(self, c, params, batch)

        def loss(w: Tree) -> Tensor:
            passes = Passes(c, w, batch, body_once=self.where == "head")
            g_p = self.proximal_gradient(c, w, batch, self.targets(c), passes.at_w)
            return self.inner.loss(passes.at_moved(), self.move(c, w, g_p), batch)

        return self.gradient_of(c, loss, params)

    @helper
    def move(self, c: ClientContext, w: Tree, g_p: Tree) -> Tree:
        """w + eps_p*; only what `where` names is moved."""
        chosen = tree.select(g_p, self.targets(c))
        eps = perturbation(chosen, w, c.received["model"], self.rho, self.scaling, self.threshold)
        return {**w, **{name: w[name] + step for name, step in eps.items()}}

    @helper
    def proximal_gradient(
        self,
        c: ClientContext,
        w: Tree,
        batch: Batch,
        names: tuple[str, ...] | None = None,
        forward: Pass | None = None,
    ) -> Tree:
        """g_p = grad L_p(w), for these names or all; BatchNorm's running statistics follow from this one pass at w."""
        names, losses = names or c.trainable, self.proximal_losses()
        see = forward or (lambda p: c.forward(p, batch.x, maps=c.maps))
        found = tree.zeros_like(tree.select(w, names))
        if losses:

            def value(p: Tree) -> Tensor:
                out = see(p)
                loss = torch.stack([term(c, p, batch, out) for term in losses]).sum()
                if not (is_batched(loss) or loss.requires_grad):
                    raise InputError(
                        f"fedsol: the proximal loss {losses[0]} does not depend on what where={self.where} moves; "
                        "use where=all or where=body"
                    )
                return loss

            found = c.grad(value, w, names)
        elif c.has_batchnorm:
            with torch.no_grad():
                see(w)
        given = None if self.prox is not None else self.inner.correction(keep_statistics(c), w, batch)
        if given is None:
            return found
        return tree.add(found, tree.select(given, names)) if losses else tree.select(given, names)

    @helper
    def proximal_losses(self) -> tuple[Term, ...]:
        """L_p as terms; none: the inner method corrects gradients itself (SCAFFOLD's c - c_i)."""
        if self.prox is not None:
            return (self.prox,)
        own = split_terms(self.inner).proximal
        return own if own or overrides(self.inner, "correction") else (KL(),)

    def loss_terms(self) -> tuple[Term, ...]:
        """The terms of L_local: those of the inner method that are not proximal, and all that the user added."""
        return (*split_terms(self.inner).local, *self.terms)

    def used_terms(self) -> tuple[Term, ...]:
        """Also L_p, where anything is moved or combined."""
        moves = self.projection or (self.strategy != "A0" and (self.strategy != "A1" or self.rho > 0))
        return (*self.loss_terms(), *self.proximal_losses()) if moves else self.loss_terms()

    @helper
    def targets(self, context: Context) -> tuple[str, ...]:
        """The trained parameters that are moved: of the head (the network's last child module), the body, or all."""
        if self.where == "all":
            return context.trainable
        head = context.names.match(("head.*",))
        return tuple(name for name in context.trainable if (name in head) == (self.where == "head"))

    # ----------------------------------------------------------------------------------- other slots

    def train(self, c: ClientContext, params: Tree) -> Tree:
        """Local training along `gradient`."""
        return local_loop.sgd(c, params, self.gradient)

    @helper
    def local_gradient(self, c: ClientContext, params: Tree, batch: Batch) -> Tree:
        """grad L_local(params)."""
        return self.gradient_of(c, lambda p: self.inner.loss(c, p, batch), params)

    @helper
    def gradient_of(self, c: ClientContext, loss: Callable[[Tree], Tensor], params: Tree) -> Tree:
        """The gradient of a loss, whose value is noted as the step's."""
        grads, value = c.grad_and_value(loss, params)
        c.diagnostics.note("train_loss", value)
        return grads

    def init(self, s: ServerContext) -> Groups:
        """The inner method's; refuses to move what is not trained, and says what an explicit `prox` replaces."""
        if not self.targets(s):
            raise InputError(
                f"fedsol(where={self.where}) has nothing to move: {self.inner} or the network froze that part; "
                "choose another where"
            )
        dropped = [str(term) for term in split_terms(self.inner).proximal]
        dropped += [f"the correction of {self.inner.name}"] if overrides(self.inner, "correction") else []
        if self.prox is not None and dropped:
            log.warning("fedsol: prox=%s takes the place of %s, which is left out", self.prox, " and ".join(dropped))
        return self.inner.init(s)

    def __post_init__(self) -> None:
        """Refuses what would silently do something else."""
        if self.projection and self.strategy != "A1":
            raise InputError(f"fedsol: projection=true takes the place of a strategy, got strategy={self.strategy}")
        check_inner("fedsol", self.inner)
