"""Figures of runs; importing this package registers the measures."""

from unskew.metrics import features, hessian, models, steps, updates
from unskew.metrics.measures import measures

__all__ = ["features", "hessian", "measures", "models", "steps", "updates"]
