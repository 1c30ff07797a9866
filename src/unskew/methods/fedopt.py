"""FedAdam, FedYogi, FedAdagrad: the mean difference is a gradient for an adaptive optimiser at the server.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan, "Adaptive Federated Optimization", ICLR 2021.

    paper (algorithm 2)     here
    Delta_t                 merged["delta"], weighted by samples
    m_t, v_t                server["momentum"], server["second"]
    beta_1, beta_2, tau     beta1, beta2, tau
    eta                     server_lr

    m <- beta1 m + (1 - beta1) Delta
    v <- beta2 v + (1 - beta2) Delta^2                      FedAdam
    v <- v - (1 - beta2) Delta^2 sign(v - Delta^2)          FedYogi
    v <- v + Delta^2                                        FedAdagrad
    w <- w + eta m / (sqrt(v) + tau)

v starts at tau^2, and nothing is corrected for the start, as in the algorithm (Adam and Yogi as optimisers of a library
do correct). The algorithm prints a plain mean of the clients; we weight it by samples, as everywhere. BatchNorm's
buffers are averaged. The three are one algorithm, so they share this file.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unskew.base import tree
from unskew.base.registry import param, validated
from unskew.base.tree import Groups
from unskew.core.context import ServerContext
from unskew.core.method import Method, methods


@validated
class FedOpt(Method):
    """What the three share: a step along the running mean of differences, scaled entry by entry."""

    server_lr: float = param(default=0.1, gt=0, doc="step of the server", source="our choice; the paper searches it")
    beta1: float = param(default=0.9, ge=0, lt=1, doc="decay of the mean of differences", source="paper, Sec. 5")
    tau: float = param(default=1e-3, gt=0, doc="adaptivity: small steps are scaled up to it", source="paper, Sec. 5")

    def _second(self, v: Tensor, square: Tensor) -> Tensor:
        """v after a round whose squared difference this is."""
        raise NotImplementedError

    def update(self, s: ServerContext, server: Groups, merged: Groups) -> Groups:
        """m and v follow the mean difference; w <- w + eta m / (sqrt(v) + tau)."""
        delta = merged["delta"]
        momentum = {name: self.beta1 * server["momentum"][name] + (1 - self.beta1) * d for name, d in delta.items()}
        second = {name: self._second(server["second"][name], d.square()) for name, d in delta.items()}
        step = {name: self.server_lr * m / (second[name].sqrt() + self.tau) for name, m in momentum.items()}
        return {
            **super().update(s, server, {**merged, "delta": step}),
            "momentum": {**server["momentum"], **momentum},
            "second": {**server["second"], **second},
        }

    def init(self, s: ServerContext) -> Groups:
        """The initial model; m = 0, v = tau^2."""
        server = super().init(s)
        zeros = tree.zeros_like(self.shared(s, server["model"]))
        second = {name: value + self.tau**2 for name, value in zeros.items()}
        return {**server, "momentum": zeros, "second": second}


@methods.register("fedadam")
class FedAdam(FedOpt):
    """Adam at the server: steps are scaled by a running mean of squared differences."""

    beta2: float = param(default=0.99, ge=0, lt=1, doc="decay of the mean of squares", source="paper, Sec. 5")

    def _second(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square


@methods.register("fedyogi")
class FedYogi(FedOpt):
    """Yogi at the server: as Adam, but the mean of squares falls no faster than it rises."""

    beta2: float = param(default=0.99, ge=0, lt=1, doc="how fast the mean of squares moves", source="paper, Sec. 5")

    def _second(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * torch.sign(v - square)


@methods.register("fedadagrad")
class FedAdagrad(FedOpt):
    """Adagrad at the server: steps are scaled by the sum of all squared differences."""

    def _second(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square
