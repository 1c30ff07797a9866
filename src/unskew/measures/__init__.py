"""Figures of runs; importing this package registers the measures."""

from unskew.measures import features, hessian, models, steps, updates
from unskew.measures.base import measures

__all__ = ["features", "hessian", "measures", "models", "steps", "updates"]
