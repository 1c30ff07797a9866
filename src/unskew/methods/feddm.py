"""FedDM: clients condense their data by matching distributions, the server trains on what they send.

Xiong, Wang, Cheng, Yu, Hsieh, "FedDM: Iterative Distribution Matching for Communication-Efficient Federated Learning",
CVPR 2023. No official code; loss and values as in FedAF's comparison, perturbation as in m13891290332/fedDM.

    paper          here
    S_k            what `train` makes, c.made["images"]: images `x`, classes `y`
    w ~ P(w; w_r)  `network`: w_r + noise, at most rho long
    h, f           features, logits: their class means are matched
    rho            rho

The community code draws first images from single real ones, uses running statistics in BatchNorm and momentum 0.5 on
pixels; we take FedAF's choices (mean of ten, statistics of the batch, 0.9), so that the two differ by method only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unskew.base import tree
from unskew.base.batch import Output
from unskew.base.registry import param
from unskew.base.tree import Tree
from unskew.core.context import ClientContext
from unskew.core.method import methods
from unskew.methods.condensation import Condensing, squared_gap


def perturb(params: Tree, noise: Tree, rho: float) -> Tree:
    """w + noise, the noise shortened to length rho if it is longer."""
    return tree.add_scaled(params, noise, (rho / (tree.norm(noise) + 1e-12)).clamp(max=1))


def clip_norm(grads: Tree, longest: float) -> Tree:
    """The gradient, shortened to this length if it is longer; 0: as it is."""
    return tree.scale(grads, (longest / (tree.norm(grads) + 1e-6)).clamp(max=1)) if longest else grads


@methods.register("feddm")
class FedDM(Condensing):
    """Clients send condensed data that match the real ones' mean features and logits; the server trains on them."""

    rho: float = param(default=5.0, ge=0, doc="length of the network's perturbation, at most", source="community code")
    clip: float = param(
        default=2.0, ge=0, doc="longest gradient of the pixels; 0: not clipped", source="community code"
    )
    logits: bool = param(default=True, doc="match mean logits beside mean features", source="community code")

    def network(self, c: ClientContext, params: Tree) -> Tree:
        """w + noise, a new one in each step."""
        if self.rho == 0:
            return params
        rng, free = c.rng(f"condense/noise/{c.step}"), c.drop_fixed(params)
        noise = {
            name: torch.randn(value.shape, generator=rng, dtype=value.dtype).to(value.device)
            for name, value in free.items()
        }
        return c.add_fixed(perturb(free, noise, self.rho))

    def matching(self, c: ClientContext, real: Output, made: Output) -> Tensor:
        """Squared distances of the mean features and of the mean logits, summed over the classes."""
        features = squared_gap(real.features, made.features)
        return features + squared_gap(real.logits, made.logits) if self.logits else features

    def direction(self, grads: Tree) -> Tree:
        """The clipped gradient."""
        return clip_norm(grads, self.clip)
