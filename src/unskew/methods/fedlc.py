"""FedLC: in training, logits are lowered by a margin that grows as a class gets rarer at the client.

Zhang, Li, Li, Xu, Wu, Ding, Wu, "Federated Learning with Label Distribution Skew via Logits Calibration", ICML 2022.

    paper                       here
    tau                         tau
    n_k^c                       c.counts
    f(x) - tau n^(-1/4)         `criterion`: cross-entropy of the calibrated logits

The paper's formula leaves the true class out of the denominator; the codes that we know keep it, and so do we (without
it the loss would have no lower bound). A class that the client lacks has an infinite margin: it leaves the softmax,
with weight and gradient 0. Predictions use the logits as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unskew.base.batch import Batch, Output
from unskew.base.registry import param
from unskew.core.context import ClientContext
from unskew.core.method import Method, methods


@methods.register("fedlc")
class FedLC(Method):
    """FedAvg whose clients train with logits calibrated by their class counts."""

    tau: float = param(
        default=1.0, ge=0, doc="size of the margins", source="our choice, as in code of others; FedBlade prints 10"
    )

    def criterion(self, c: ClientContext, out: Output, batch: Batch) -> Tensor:
        """Cross-entropy of o - tau n_k^(-1/4)."""
        counts = c.counts.to(out.logits.dtype)
        margins = torch.where(counts > 0, self.tau * counts.clamp(min=1) ** -0.25, torch.inf)
        return batch.cross_entropy(out.logits - margins)
