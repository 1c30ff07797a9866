"""The scales of FedSOL's perturbation, layer by layer; FedSOL's function does the work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from unskew.base.tree import Tree
from unskew.core.context import ServerContext
from unskew.core.jobs import Reply
from unskew.core.reducers import Reducer
from unskew.measures.base import Figures, measures
from unskew.measures.updates import UpdateMeasure
from unskew.methods.fedsol.method import TINY, lengths


class LayerScales(Reducer):
    """The mean of Lambda = |w_k - w_g| / length (FedSOL, eq. 7, as its code has it) over a layer, client by client."""

    def __init__(self, s: ServerContext) -> None:
        self._sums: dict[str, float] = {}
        self.clients = 0

    def add(self, value: Tree, reply: Reply) -> None:
        """Takes in one client's update, which is w_k - w_g."""
        away = {name: moved.abs().double() for name, moved in value.items()}
        length = lengths(away, "code")
        layers: dict[str, list[torch.Tensor]] = {}
        for name, moved in away.items():
            scale = moved / length[name].clamp(min=TINY)
            layers.setdefault(name.rpartition(".")[0], []).append(scale.flatten())
        for layer, parts in layers.items():
            self._sums[layer] = self._sums.get(layer, 0.0) + float(torch.cat(parts).mean())
        self.clients += 1

    def result(self) -> dict[str, float]:
        """Layer → the mean over clients, in the model's order."""
        return {layer: total / self.clients for layer, total in self._sums.items()}


@measures.register("scales")
class Scales(UpdateMeasure):
    """FedSOL's Lambda after local training, its mean over each layer's parameters and over clients (FedSOL, Fig. 5)."""

    reading: ClassVar[Mapping[str, str]] = {
        "scales": "How far the weights of each layer move in local training, relative to their size.",
    }

    reducer: ClassVar[Any] = LayerScales

    def measure(self, updates: LayerScales) -> Figures:
        """`scales` (layer → mean)."""
        return {"scales": updates.result()}
