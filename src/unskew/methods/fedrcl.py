"""FedRCL: a supervised contrast within each batch, relaxed where samples of a class are already alike.

Seo, Kim, Kim, Han, "Relaxed Contrastive Learning for Federated Learning", CVPR 2024.

    paper                       here
    SCL loss                    `scl` in terms/rcl.py, times `contrast`
    divergence penalty, beta    `divergence_penalty` in terms/rcl.py, times `penalty`
    lambda, the threshold       threshold
    tau                         tau
    multi-level                 levels: the body's blocks with weights, globally average pooled, and the features

The official code compares a sample with the least similar one of its class and the two most similar ones of others, has
threshold 0.7, weights of 1 and tau 0.05; FedBlade's experiments say 0.1, and call 0.7 a weight. It takes feature maps
before a block's last ReLU; we take what the block gives. Its mixed precision and gradient clipping are left out.
"""

from __future__ import annotations

from typing import Literal

from unskew.base.registry import param
from unskew.core.method import Method, methods
from unskew.core.term import Term
from unskew.terms.rcl import RelaxedContrast


@methods.register("fedrcl")
class FedRCL(Method):
    """FedAvg with a relaxed contrast of the batch's samples, at several depths, added to the local loss."""

    contrast: float = param(default=1.0, ge=0, doc="strength of the supervised contrast", source="official code")
    penalty: float = param(default=1.0, ge=0, doc="strength of the penalty", source="official code")
    tau: float = param(
        default=0.1, gt=0, doc="temperature of the cosines", source="FedBlade's experiments; official code: 0.05"
    )
    threshold: float = param(
        default=0.7, ge=-1, le=1, doc="cosine from which samples of a class are too alike", source="official code"
    )
    negatives: int = param(default=2, ge=1, doc="most similar samples of other classes in SCL", source="official code")
    levels: Literal["blocks", "features"] = param(
        default="blocks", doc="features and the body's blocks before them, or features alone", source="official code"
    )

    def own_terms(self) -> tuple[Term, ...]:
        """Both losses."""
        return (
            RelaxedContrast(
                contrast=self.contrast, penalty=self.penalty, tau=self.tau, threshold=self.threshold,
                negatives=self.negatives, levels=self.levels,
            ),
        )  # fmt: skip
