"""A vision transformer for small data sets (Lee, Lee, Song 2021)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unskew.models.base import Architecture, Model, architectures
from unskew.models.layers import Residual, image_shape, resize_layer

GRID = 4  # patches a side
WIDTH = 192
BLOCKS = 9
HEADS, HEAD_WIDTH = 12, 64


@architectures.register("sl_vit")
class SLViT(Architecture):
    """SL-ViT of FedSOL: shifted patch tokens, 9 blocks, 12 heads with a learned temperature and a masked diagonal."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> Model:
        """192 features (the normalised class token), a linear head; images below 32 pixels are resized to 32."""
        channels, height, width = image_shape("sl_vit", shape, at_least=16)
        patch = max(-(-max(height, width) // GRID), 32 // GRID)
        side = GRID * patch
        patch_size = 5 * channels * patch**2
        body = nn.Sequential(
            resize_layer(height, width, side, side),
            ShiftedPatches(patch),
            nn.LayerNorm(patch_size),
            nn.Linear(patch_size, WIDTH),
            ClassToken(),
            *(_block() for _ in range(BLOCKS)),
            First(),
            nn.LayerNorm(WIDTH),
        )
        return Model(body, nn.Linear(WIDTH, num_classes))


def _block() -> nn.Module:
    attention = nn.Sequential(nn.LayerNorm(WIDTH), LocalAttention())
    mlp = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
    return nn.Sequential(Residual(attention, nn.Identity()), Residual(mlp, nn.Identity()))


class ShiftedPatches(nn.Module):
    """Patches of the image and of its four copies shifted by one pixel."""

    def __init__(self, patch: int) -> None:
        super().__init__()
        self.patch = patch

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] to [B, patches, 5 * C * patch * patch]."""
        shifts = ((1, -1, 0, 0), (-1, 1, 0, 0), (0, 0, 1, -1), (0, 0, -1, 1))
        x = torch.cat([x, *(F.pad(x, shift) for shift in shifts)], dim=1)
        x = x.reshape(*x.shape[:2], GRID, self.patch, GRID, self.patch)
        return x.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)


class ClassToken(nn.Module):
    """Puts a learned token before the patches and adds learned positions."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.randn(1, GRID**2 + 1, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """[B, N, WIDTH] to [B, N + 1, WIDTH]."""
        return torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions


class LocalAttention(nn.Module):
    """Self-attention in which no token sees itself and the temperature is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(HEAD_WIDTH**-0.5).log())
        self.qkv = nn.Linear(WIDTH, 3 * HEADS * HEAD_WIDTH, bias=False)
        self.out = nn.Linear(HEADS * HEAD_WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """[B, N, WIDTH] to the same shape."""
        q, k, v = self.qkv(x).unflatten(2, (3, HEADS, HEAD_WIDTH)).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q @ k.transpose(-2, -1)) * self.temperature.exp()
        itself = torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
        weights = scores.masked_fill(itself, torch.finfo(scores.dtype).min).softmax(dim=-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class First(nn.Module):
    """The first token."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, N, D] to [B, D]."""
        return x[:, 0]
