"""FedETF: all clients share one fixed classifier, whose class vectors are as far apart as vectors can be.

Li, Shang, He, Lin, Wu, "No Fear of Classifier Biases: Neural Collapse Inspired Federated Learning with Synthetic and
Fixed Classifier", ICCV 2023.

    paper                         here
    V_ETF (eq. 3)                 c.constants["head.vectors"], [p, C]: `simplex` in models/etf.py
    beta mu^T V, the logits       `ETFHead` in models/etf.py
    projection layer, mu          the parameters head.projector.*, its normalised output
    beta, the temperature         the parameter head.scale, at first `etf_scale`
    n_{k,c}                       c.counts
    balanced feature loss (eq. 7) `criterion`: softmax of the logits plus log n_{k,c}

The head replaces the model's own; projector and scale are averaged, V never changes. The code starts the scale at 1
for ResNet and MobileNetV2 and at 10 for its small CNN, with p = C and p = 64. The fine-tuning of personal models, a
second part of the paper, is left out.
"""

from __future__ import annotations

from torch import Tensor

from unskew.base.batch import Batch, Output
from unskew.base.registry import param
from unskew.base.tree import Tree
from unskew.core.context import ClientContext
from unskew.core.method import Method, methods
from unskew.models.base import Model
from unskew.models.etf import attach_etf_head


@methods.register("fedetf")
class FedETF(Method):
    """A learned projector before a fixed simplex classifier, trained with a softmax balanced by class counts."""

    etf_scale: float = param(default=1.0, gt=0, doc="initial value of the learned scale", source="official code")
    p: int = param(
        default=0, ge=0, doc="dimensions of the projector's output, at least the number of classes; 0: as many",
        source="official code",
    )  # fmt: skip

    offers = ("etf_head",)

    def remodel(self, model: Model, num_classes: int) -> Model:
        """The model with projector, scale and fixed vectors as its head."""
        return attach_etf_head(model, num_classes, self.p, self.etf_scale)

    def criterion(self, c: ClientContext, out: Output, batch: Batch) -> Tensor:
        """Cross-entropy of logits + log n_k: a class that the client lacks has weight 0 (eq. 7)."""
        return batch.cross_entropy(out.logits + c.counts.to(out.logits.dtype).log())

    def predict(self, c: ClientContext, params: Tree, x: Tensor) -> Tensor:
        """The logits, which decide as mu^T V does; hence without the sign of the scale, should it ever be below 0."""
        scale = params["head.scale"].abs().clamp(min=1e-12)
        return c.forward({**params, "head.scale": scale}, x, mode="eval").logits
