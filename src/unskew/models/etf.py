"""A fixed classifier: class vectors that form a simplex equiangular tight frame, behind a learned projector."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unskew.base.errors import InputError
from unskew.models.base import Model


class ETFHead(nn.Module):
    """Logits `scale * normalise(projector(z)) V`; `scale` and `projector` are learned, `vectors` V is fixed.

    V is not part of the state dict: it never changes, so it need not travel with the parameters.
    """

    vectors: Tensor

    def __init__(self, features: int, size: int, num_classes: int, scale: float = 1.0) -> None:
        super().__init__()
        if num_classes < 2 or size < num_classes:
            raise InputError(
                f"a simplex frame of {num_classes} classes needs at least 2 classes and at least as many dimensions "
                f"as classes, got p={size}; leave p out or set p >= {num_classes}"
            )
        self._scale = scale
        self.projector = nn.Linear(features, size)
        self.scale = nn.Parameter(torch.empty(()))
        self.reset_parameters()
        self.register_buffer("vectors", simplex(draw_orthonormal(size, num_classes)).float(), persistent=False)

    def reset_parameters(self) -> None:
        """Sets the scale to its first value; the projector has an initialiser of its own."""
        nn.init.constant_(self.scale, self._scale)

    def forward(self, features: Tensor) -> Tensor:
        """[B, d] to logits [B, C]; a zero projection gives zero logits."""
        return self.scale * (F.normalize(self.projector(features), dim=-1, eps=1e-12) @ self.vectors)


def draw_orthonormal(rows: int, columns: int) -> Tensor:
    """U: orthonormal columns from the QR of a uniform random matrix, float64, from the global generator."""
    q, r = torch.linalg.qr(torch.rand(rows, columns, dtype=torch.float64))
    signed: Tensor = q * r.diagonal().sign()  # libraries differ in the signs
    return signed


def simplex(u: Tensor) -> Tensor:
    """V = sqrt(C/(C-1)) U (I - 11^T/C): columns of norm 1 with pairwise inner product -1/(C-1)."""
    classes = u.shape[1]
    return math.sqrt(classes / (classes - 1)) * (u - u.mean(1, keepdim=True))


def attach_etf_head(model: Model, num_classes: int, size: int, scale: float) -> Model:
    """A copy of the model with this head; `size` 0: as many dimensions as classes."""
    made = copy.deepcopy(model)
    made.head = ETFHead(head_inputs(model.head), size or num_classes, num_classes, scale).to(next(model.parameters()))
    return made


def head_inputs(head: nn.Module) -> int:
    """How many features a head takes, by its first layer that says so."""
    for layer in head.modules():
        if isinstance(layer, nn.Linear):
            return layer.in_features
        if isinstance(layer, nn.Unflatten):  # in front of a convolution
            return math.prod(layer.unflattened_size)
        if isinstance(layer, nn.LayerNorm):
            return math.prod(layer.normalized_shape)
        if isinstance(layer, nn.BatchNorm1d):
            return layer.num_features
    raise InputError(f"expected a linear layer as the model's head, got {type(head).__name__}; name one with head=...")
