"""Measures of the global model's features on the test set: separability, effective rank, neural collapse."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from unskew.base.errors import InputError
from unskew.base.registry import param, validated
from unskew.core.task import Task
from unskew.measures.base import Figures, Look, Measure, has_projector, measures

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


def separability(features: Tensor, y: Tensor) -> Figures:
    """Distances within classes, between class means, and inter/intra (FLFA, eq. 56-58); L2, not squared."""
    classes = by_class(features, y)
    count = len(classes.means)
    distances = torch.zeros(count, dtype=features.dtype).index_add_(0, classes.number, classes.within.norm(dim=1))
    intra = float((distances / torch.bincount(classes.number, minlength=count)).mean())
    pairs = torch.pdist(classes.means)
    inter = float(pairs.mean()) if len(pairs) else None
    return {"intra": intra, "inter": inter, "separability": inter / intra if inter is not None and intra > 0 else None}


def effective_rank(features: Tensor) -> float:
    """exp(entropy(sigma / sum sigma)) of the singular values of the covariance matrix; 0 if nothing varies.

    The covariance's scale cancels, and the smaller of the two Gram matrices has all of its eigenvalues that are not 0.
    """
    centred = features - features.mean(0)
    gram = centred @ centred.T if len(centred) < centred.shape[1] else centred.T @ centred
    values = torch.linalg.eigvalsh(gram).clamp(min=0)
    total = values.sum()
    if total <= 0:
        return 0.0
    return float(torch.special.entr(values / total).sum().exp())


def correlation_rank(features: Tensor) -> float:
    """The same of the correlation matrix; features that do not vary have no correlation and are left out."""
    spread = features.std(0, correction=0)
    varies = spread > 1e-12 * features.abs().amax(0).clamp(min=torch.finfo(features.dtype).tiny)
    return effective_rank((features / torch.where(varies, spread, 1.0))[:, varies])


def collapse(features: Tensor, y: Tensor) -> Figures:
    """Neural collapse: variability within classes (NC1) and distance of the class means to a simplex ETF (NC2)."""
    classes = by_class(features, y)
    centred, count, samples = classes.centred, len(classes.means), len(features)
    if count < 2:
        return dict.fromkeys(("nc1_trace_pinv", "nc1_trace_ratio", "nc2_gram", "nc2_normalised"))
    # Sigma_B = M^T M / C with M = U S V^T: its pseudo-inverse is V (C / S^2) V^T
    _, s, v = torch.linalg.svd(centred, full_matrices=False)
    kept = s.square() > max(centred.shape) * torch.finfo(s.dtype).eps * s[0].square()
    along = (classes.within @ v[kept].T).square().sum(0) / samples
    between = float(centred.square().sum()) / count
    return {
        "nc1_trace_pinv": float((along * count / s[kept].square()).sum()) / count if between > 0 else None,
        "nc1_trace_ratio": float(classes.within.square().sum()) / samples / between if between > 0 else None,
        **_to_simplex(centred),
    }


def _to_simplex(centred: Tensor) -> Figures:
    """NC2, protocols 5.9: with class means normalised one by one, and with the Gram matrix normalised as a whole."""
    count = len(centred)
    simplex = (torch.eye(count, dtype=centred.dtype) * count - 1) / (count - 1)
    lengths = centred.norm(dim=1, keepdim=True)
    directions = centred / torch.where(lengths > 0, lengths, 1.0)
    gram = centred @ centred.T
    size = gram.norm()
    normalised = gram / size - simplex / simplex.norm()
    return {
        "nc2_gram": float((directions @ directions.T - simplex).norm()),
        "nc2_normalised": float(normalised.norm()) if size > 0 else None,
    }


@validated
class OfFeatures(Measure):
    """A measure of features: of the extractor's (the penultimate ones) and, in heads that project them, of those."""

    samples: int = param(default=2000, ge=2, doc="at most so many test samples (a fixed choice by the run's seed)")
    every: int = param(default=0, ge=0, doc="rounds between measurements; 0: whenever the global model is tested")
    space: Space = param(default="all", doc="extractor: penultimate features; projector: the head's; all there are")

    on_test: ClassVar[bool] = True

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
                found |= {before + name: value for name, value in self.of(values[""], y).items()}
        return found

    def of(self, features: Tensor, y: Tensor) -> Figures:
        """The figures of features [N, D] with labels [N]."""
        raise TypeError(f"{type(self).__name__} must define of(features, y)")


def _finite(measured: Callable[[], Figures], features: Tensor, names: tuple[str, ...]) -> Figures:
    """No figure of a model that diverged: eigenvalues of NaN are errors, not numbers."""
    return measured() if bool(features.isfinite().all()) else dict.fromkeys(names)


@measures.register("separability")
class Separability(OfFeatures):
    """Separability of the global model's features: distances within and between classes, and their ratio (FLFA)."""

    def of(self, features: Tensor, y: Tensor) -> Figures:
        """`intra`, `inter`, `separability`."""
        return _finite(lambda: separability(features, y), features, ("intra", "inter", "separability"))


@measures.register("rank")
class Rank(OfFeatures):
    """Effective rank of the features' covariance matrix and of their correlation matrix (FedBlade, Fig. 4 and 5)."""

    def of(self, features: Tensor, y: Tensor) -> Figures:
        """`rank_covariance` and `rank_correlation`."""

        def measured() -> Figures:
            return {"rank_covariance": effective_rank(features), "rank_correlation": correlation_rank(features)}

        return _finite(measured, features, ("rank_covariance", "rank_correlation"))


@measures.register("collapse")
class Collapse(OfFeatures):
    """Neural collapse, NC1 and NC2, each in two forms (FedBlade; formulas in docs/measures.md)."""

    def of(self, features: Tensor, y: Tensor) -> Figures:
        """`nc1_trace_pinv`, `nc1_trace_ratio`, `nc2_gram`, `nc2_normalised`."""
        names = ("nc1_trace_pinv", "nc1_trace_ratio", "nc2_gram", "nc2_normalised")
        return _finite(lambda: collapse(features, y), features, names)
