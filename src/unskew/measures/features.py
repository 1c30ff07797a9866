"""What measures of the global model's features on the test set share: a base class, and features split by class."""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from unskew.base.errors import InputError
from unskew.base.registry import param, validated
from unskew.core.task import Task
from unskew.measures.base import Figures, Look, Measure, has_projector

Space = Literal["all", "extractor", "projector"]


class Classes(NamedTuple):
    """Features by class; classes without a sample are left out."""

    within: Tensor
    """[N, D]: each feature minus its class's mean."""
    number: Tensor
    """[N]: which of the classes it belongs to."""
    means: Tensor
    """[C, D]."""

    @property
    def centred(self) -> Tensor:
        """The class means minus their unweighted mean, [C, D]."""
        return self.means - self.means.mean(0)


def by_class(features: Tensor, y: Tensor) -> Classes:
    """Features split by label."""
    _, number, counts = torch.unique(y, return_inverse=True, return_counts=True)
    sums = torch.zeros(len(counts), features.shape[1], dtype=features.dtype).index_add_(0, number, features)
    means = sums / counts.unsqueeze(1)
    return Classes(features - means[number], number, means)


@validated
class FeatureMeasure(Measure):
    """A measure of features: of the extractor's (the penultimate ones) and, in heads that project them, of those."""

    samples: int = param(default=2000, ge=2, doc="at most so many test samples (a fixed choice by the run's seed)")
    every: int = param(default=0, ge=0, doc="rounds between measurements; 0: whenever the global model is tested")
    space: Space = param(default="all", doc="extractor: penultimate features; projector: the head's; all there are")

    on_test: ClassVar[bool] = True
    names: ClassVar[tuple[str, ...]] = ()
    """The names of its figures."""

    def check(self, task: Task) -> None:
        """A projector must be there to be looked at."""
        if self.space == "projector" and not has_projector(task):
            raise InputError(
                f"measure {self.name}: {task.method.name}'s model has no head.projector; use space=extractor, or a "
                "method whose head projects"
            )

    def figures(self, look: Look) -> Figures:
        """The extractor's figures by their names, the projector's with `projector_` before them."""
        if not look.due(self.every):
            return {}
        spaces, y = look.features(self.samples)
        found: Figures = {}
        for space, values in spaces.items():
            if self.space in ("all", space):
                before = "" if space == "extractor" else f"{space}_"
                found |= {before + name: value for name, value in self.measure_finite(values[""], y).items()}
        return found

    def measure_finite(self, features: Tensor, y: Tensor) -> Figures:
        """The figures; none of a model that diverged: eigenvalues of NaN are errors, not numbers."""
        return self.measure(features, y) if bool(features.isfinite().all()) else dict.fromkeys(self.names)

    def measure(self, features: Tensor, y: Tensor) -> Figures:
        """The figures of features [N, D] with labels [N]."""
        raise TypeError(f"{type(self).__name__} must define measure(features, y)")
