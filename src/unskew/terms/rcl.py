"""FedRCL's relaxed contrastive term: a supervised contrast, and a penalty on samples of a class that are too alike."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from unskew.base.batch import Batch, Output
from unskew.base.registry import param
from unskew.base.tree import Tree
from unskew.core.context import ClientContext
from unskew.core.net import Names
from unskew.core.term import Term, terms
from unskew.terms.cosine import normalise


@terms.register("rcl")
class RelaxedContrast(Term):
    """contrast times SCL plus penalty times its divergence penalty, the mean over samples and over feature levels."""

    contrast: float = param(default=1.0, ge=0, doc="strength of the supervised contrast", source="FedRCL's code")
    penalty: float = param(default=1.0, ge=0, doc="strength of the penalty", source="FedRCL's code")
    tau: float = param(default=0.1, gt=0, doc="temperature of the cosines", source="FedBlade's experiments")
    threshold: float = param(
        default=0.7, ge=-1, le=1, doc="cosine from which samples of a class are too alike", source="FedRCL's code"
    )
    negatives: int = param(default=2, ge=1, doc="most similar samples of other classes in SCL", source="FedRCL's code")
    levels: Literal["blocks", "features"] = param(
        default="blocks", doc="features and the body's blocks before them, or features alone", source="FedRCL's code"
    )

    stacked_tolerance = 0.1  # cosines over tau are steep, and which samples are compared can turn by rounding

    def __call__(self, c: ClientContext, params: Tree, batch: Batch, out: Output) -> Tensor:
        """The mean over levels of both losses."""
        seen = [pool(out.maps[layer]) for layer in self.maps(c.names)]
        return torch.stack([self._contrast(batch, z) for z in [*seen, out.features]]).mean()

    def maps(self, names: Names) -> tuple[str, ...]:
        """The body's depths before the features, which are a level anyhow."""
        return names.depths if self.levels == "blocks" else ()

    def _contrast(self, batch: Batch, z: Tensor) -> Tensor:
        unit = normalise(z)
        cosines, itself = unit @ unit.T, torch.eye(len(z), dtype=torch.bool, device=z.device)
        same, other = batch.y.unsqueeze(1) == batch.y, batch.y.unsqueeze(1) != batch.y
        if batch.mask is not None:  # nobody is compared with padding; its own rows are left out by the mean
            same, other = same & batch.mask, other & batch.mask
        apart = scl(cosines, same | itself, other, self.negatives, self.tau)
        alike = divergence_penalty(cosines, same & ~itself, self.threshold, self.tau)
        return batch.mean(self.contrast * apart + self.penalty * alike)


def scl(cosines: Tensor, same: Tensor, other: Tensor, negatives: int, tau: float) -> Tensor:
    """-log(e^(s_p/tau) / (e^(s_p/tau) + sum_n e^(s_n/tau))) of each sample; 0 without samples of other classes.

    p: the least similar sample of its class, itself included; n: the most similar ones of other classes.
    """
    positive = torch.where(same, cosines, torch.inf).amin(1, keepdim=True)
    nearest = torch.where(other, cosines, -torch.inf).topk(min(negatives, len(cosines)), dim=1).values
    return -F.log_softmax(torch.cat([positive, nearest], 1) / tau, 1)[:, 0]


def divergence_penalty(cosines: Tensor, partners: Tensor, threshold: float, tau: float) -> Tensor:
    """-log(e^(s_ii/tau) / (e^(s_ii/tau) + e^(q/tau))) of each sample; q: its least similar partner's cosine.

    Below the threshold, and for a sample without partner, q is -1.
    """
    least = torch.where(partners, cosines, torch.inf).amin(1)
    found = partners.any(1) & (least >= threshold)
    return -F.logsigmoid((cosines.diagonal() - torch.where(found, least, -1.0)) / tau)


def pool(maps: Tensor) -> Tensor:
    """One vector a sample: the mean over pixels of [B, C, H, W], over tokens of [B, T, D]; [B, D] as it is."""
    return maps if maps.dim() == 2 else maps.mean(1) if maps.dim() == 3 else maps.flatten(2).mean(2)
