"""Condensed images: what clients of FedAF and FedDM send instead of a model, one of each class, to look at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from unskew.base.registry import param
from unskew.base.tree import Tree
from unskew.core.reducers import Reducer, Reducers
from unskew.measures.base import Absent, Figures, Look, Measure, measures

if TYPE_CHECKING:
    from unskew.core.context import ServerContext
    from unskew.core.jobs import Reply


class FirstImages(Reducer):
    """A reducer that keeps the first image of each class."""

    def __init__(self, s: ServerContext) -> None:
        self.images: dict[int, Tensor] = {}

    def add(self, value: Tree, reply: Reply) -> None:
        """Takes in one client's images `x` and their classes `y`."""
        if "x" not in value or "y" not in value:
            return
        for place, label in enumerate(value["y"].tolist()):
            if label not in self.images:
                self.images[label] = value["x"][place].detach().float().cpu()

    def result(self) -> Any:
        """Images by class."""
        return self.images


def to_grey_levels(image: Tensor) -> list[int]:
    """Pixels from 0, the darkest of this image, to 255, the brightest."""
    low, high = image.min(), image.max()
    scaled = (image - low) / (high - low) if high > low else torch.zeros_like(image)
    levels: list[int] = (255 * scaled).round().int().flatten().tolist()
    return levels


@measures.register("condensed")
class Condensed(Measure):
    """One condensed image of each class that clients sent in the last round (FedAF, FedDM)."""

    reading: ClassVar[Mapping[str, str]] = {"condensed": "What the server learns from, recognisable or not."}

    classes: int = param(default=20, ge=1, doc="at most so many classes, the first ones")

    def reducers(self) -> Reducers:
        """Sees every client's `data`."""
        return {f"{self.name}/data": ("data", FirstImages)}

    def figures(self, look: Look) -> Figures:
        """`condensed`: class → shape and pixels of 0 to 255; after the last round only."""
        if not look.final or not look.replied:
            return {}
        images: dict[int, Tensor] = look.observed[f"{self.name}/data"].result()
        if not images:
            raise Absent(f"{look.task.method.name}'s clients send no images (group data)")
        chosen = [label for label in sorted(images) if images[label].ndim == 3][: self.classes]
        shown = {str(label): {"shape": list(images[label].shape), "pixels": to_grey_levels(images[label])}
                 for label in chosen}  # fmt: skip
        return {"condensed": shown} if shown else {}
