"""FedRS: in training, logits of classes that a client lacks are scaled down, so that it pushes them less.

Li, Zhan, "FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data", KDD 2021.

    paper                 here
    alpha                 alpha
    alpha_k^c             1 for a class that the client holds (c.counts > 0), else alpha
    restricted softmax    `criterion`: cross-entropy of the scaled logits

The paper scales the classifier's weights of missing classes, which is the same for a classifier without bias. Like
FedDecorr's code we scale logits, which holds for any head. Predictions use the logits as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unskew.base.batch import Batch, Output
from unskew.base.registry import param
from unskew.core.context import ClientContext
from unskew.core.method import Method, methods


@methods.register("fedrs")
class FedRS(Method):
    """FedAvg whose clients train with a softmax restricted towards the classes they hold."""

    alpha: float = param(
        default=0.5, ge=0, le=1, doc="factor on the logits of classes that a client lacks", source="FedDecorr's code"
    )

    def criterion(self, c: ClientContext, out: Output, batch: Batch) -> Tensor:
        """Cross-entropy of the logits, those of missing classes times alpha."""
        return batch.cross_entropy(torch.where(c.counts > 0, out.logits, self.alpha * out.logits))
