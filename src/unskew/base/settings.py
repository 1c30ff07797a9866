"""How clients train."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LocalSettings:
    """How a client trains in this round; `lr` is already decayed."""

    lr: float
    batch: int
    epochs: int = 1
    steps: int | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    drop_last: bool = False
    shuffle: bool = True
