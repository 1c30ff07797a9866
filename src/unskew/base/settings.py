"""How clients train."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from unskew.base.tree import Tree


class StepRule(Protocol):
    """How a step is made of its direction (core/optimisers.py)."""

    def init(self, params: Tree) -> Tree:
        """What it remembers before the first step."""

    def step(self, params: Tree, grads: Tree, memory: Tree, settings: LocalSettings) -> tuple[Tree, Tree]:
        """The parameters after a step, and what it remembers then."""


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
    nesterov: bool = False
    clip: float | None = None
    """The largest L2 norm of a step's direction, all parameters together; None: any."""
    optimiser: StepRule | None = None
    """What makes a step of a direction; None: SGD with this momentum."""


PLAIN: dict[str, Any] = {
    "momentum": 0.0, "weight_decay": 0.0, "nesterov": False, "clip": None, "optimiser": None,
}  # fmt: skip
"""Plain SGD, whatever trains the model: for steps that a paper takes beside it (`c.aside(lr=0.01, **PLAIN)`)."""
