"""FedASAM: FedSAM whose perturbation is measured in units of each weight, so that rescaling layers changes nothing.

Caldarola, Caputo, Ciccone, "Improving Generalization in Federated Learning by Seeking Flat Minima", ECCV 2022, with
Kwon et al., "ASAM: Adaptive Sharpness-Aware Minimization", ICML 2021.

    paper          here
    rho, eta       rho, eta
    T_w            |w| (FedSOL's code), or |w| + eta for weights and 1 for biases (the authors' code)
    eps            rho T_w^2 g / ||T_w g||, the norm over all trained parameters together: `_ascend`

FedSOL, whose comparison gives the default of rho, takes T_w = |w| for every parameter (`form=fedsol`, the default). The
authors add eta and leave all but tensors named `weight` as they are in FedSAM (`form=authors`). Without SWA.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from unskew.base import tree
from unskew.base.registry import param
from unskew.base.tree import Tree
from unskew.core.method import methods
from unskew.methods.fedsam import TINY, FedSAM


@methods.register("fedasam")
class FedASAM(FedSAM):
    """FedSAM with the perturbation of each weight in proportion to its size."""

    rho: float = param(default=1.0, ge=0, doc="length of the perturbation, relative", source="FedSOL, Table 8")
    form: Literal["fedsol", "authors"] = param(
        default="fedsol", doc="T_w: |w| everywhere, or |w| + eta for weights and 1 for the rest", source="FedSOL's code"
    )
    eta: float = param(default=0.01, ge=0, doc="added to |w| in form=authors", source="authors' code")

    def _ascend(self, w: Tree, grads: Tree) -> Tree:
        """eps = rho T_w^2 g / ||T_w g||."""
        sizes = {name: self._measure(name, w[name]) for name in grads}
        scaled = {name: sizes[name] * grad for name, grad in grads.items()}
        radius = self.rho / (tree.norm(scaled) + TINY)
        return {name: radius * sizes[name] * grad for name, grad in scaled.items()}

    def _measure(self, name: str, value: Tensor) -> Tensor | float:
        """T_w."""
        if self.form == "fedsol":
            return value.abs()
        return value.abs() + self.eta if "weight" in name else 1.0
