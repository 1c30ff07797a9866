"""Many clients as one batch."""

from unskew.executors.stacked.executor import Stacked

__all__ = ["Stacked"]
