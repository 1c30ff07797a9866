"""Worker processes on one machine."""

from unskew.executors.pool.executor import Pool

__all__ = ["Pool"]
