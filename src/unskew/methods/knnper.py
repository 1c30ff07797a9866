"""kNN-Per: a client's predictions are mixed with the labels of its nearest training samples, by the model's features.

Marfoq, Neglia, Kameni, Vidal, "Personalized Federated Learning through Local Memorization", ICML 2022; around any
method whose clients predict by the network.

    paper                              here
    datastore of client m              made once a test, in `personalise`: features and labels of its training samples
    the k nearest, d(.,.)              by the squared distance of features; k
    h_kNN(x)                           `vote`: exp(-d^2 / (dim scale)) of the k nearest, summed by class, shares of all
    lambda_m h_kNN + (1 - lambda_m) h  `mixture`; share

FedSOL, which compares with it, fine-tunes the model first; hence the default inner method is finetuned(fedavg), and
knnper(fedavg) is the paper's. FedSOL's code mixes the neighbours' shares with raw logits (mix=logits), the paper with
probabilities, which is the default. The paper tunes lambda_m at each client; it is one number here.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from unskew.base.errors import InputError
from unskew.base.registry import param
from unskew.base.tree import Tree
from unskew.core.context import STATISTICS, ClientContext, Outcome
from unskew.core.method import Method, methods
from unskew.core.slots import overrides
from unskew.core.wrapper import Wrapper
from unskew.methods.fedavg import FedAvg
from unskew.methods.finetuned import Finetuned

STORE = "knnper/store"
FAR = 1e30
"""Squared distance to what is no sample: the padding of smaller clients in a stack."""
Mix = Literal["probabilities", "logits"]


def vote(features: Tensor, store: Tree, k: int, scale: float) -> Tensor:
    """h_kNN [B, C]: the k nearest samples of the store count exp(-d^2 / (dim scale)) for their class; rows sum to 1."""
    kept, labels = store["features"], store["labels"]
    distances = torch.cdist(features, kept, compute_mode="donot_use_mm_for_euclid_dist").square()
    near = torch.where(store["real"], distances, FAR).topk(min(k, len(kept)), largest=False)
    # the softmax is exp(-d^2 ...) over its sum, and does not vanish where all neighbours are far
    similar = F.softmax(-near.values / (features.shape[1] * scale), 1)
    return (similar.unsqueeze(2) * labels[near.indices]).sum(1)


def mixture(knn: Tensor, logits: Tensor, share: float, mix: Mix) -> Tensor:
    """share h_kNN + (1 - share) h, where h are the model's probabilities, or its logits."""
    return share * knn + (1 - share) * (F.softmax(logits, 1) if mix == "probabilities" else logits)


@methods.register("knnper")
class KNNPer(Wrapper):
    """The inner method; clients mix its predictions with the labels of the nearest of their own samples."""

    inner: Method = param(
        default=Finetuned(inner=FedAvg()), doc="the method inside", source="FedSOL; the paper: fedavg, not fine-tuned"
    )
    k: int = param(default=5, ge=1, doc="neighbours", source="FedSOL's code")
    share: float = param(default=0.5, ge=0, le=1, doc="share of the neighbours in a prediction", source="FedSOL's code")
    capacity: int = param(default=500, ge=1, doc="samples that a client stores at most", source="FedSOL's code")
    scale: float = param(default=1.0, gt=0, doc="width of the similarity", source="FedSOL's code")
    mix: Mix = param(
        default="probabilities", doc="what of the model is mixed in", source="paper; FedSOL's code: logits"
    )

    @property
    def output(self) -> Literal["global", "personal", "both", "tuned"]:  # type: ignore[override]
        """Still the global model, to which clients add their samples before use; a personal method's as ever."""
        return "tuned" if self.inner.output == "global" else self.inner.output

    def personalise(self, c: ClientContext) -> Outcome:
        """The inner method's model, and the features and labels of the client's samples, at most `capacity`."""
        found = Outcome.of(self.inner.personalise(c))
        c = c.with_buffers(own) if (own := found.made.get(STATISTICS)) else c
        features, labels = [], []
        with torch.no_grad():
            for batch in c.draw_part(1.0, "knnper", at_most=self.capacity).passes():
                features.append(c.features(found.params, batch.x, "eval"))
                labels.append(batch.one_hot(c.num_classes).to(features[-1].dtype))
        if not features:  # no data, no neighbours
            return found
        hot = torch.cat(labels)
        return Outcome.of(found, **{STORE: {"features": torch.cat(features), "labels": hot, "real": hot.sum(1) > 0}})

    def predict(self, c: ClientContext, params: Tree, x: Tensor) -> Tensor:
        """The mixture, probabilities as their logarithm, so that scores are log-likelihoods as ever."""
        if STORE not in c.made:  # the global model's test
            return self.inner.predict(c, params, x)
        out, store = c.forward(params, x, "eval"), c.made[STORE]
        mixed = mixture(vote(out.features, store, self.k, self.scale), out.logits, self.share, self.mix)
        return mixed.clamp(min=torch.finfo(mixed.dtype).tiny).log() if self.mix == "probabilities" else mixed

    @property
    def gives_logits(self) -> bool:  # type: ignore[override]
        """Votes added to logits are none."""
        return self.mix == "probabilities"

    def __post_init__(self) -> None:
        """Refuses a method whose clients predict by something else than logits of the network."""
        if overrides(self.inner, "predict"):
            raise InputError(
                f"knnper needs a method whose clients predict by the network alone; {self.inner.name} has a rule of "
                "its own, wrap another"
            )
