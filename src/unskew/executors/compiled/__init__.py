"""Stacked clients whose local steps are compiled; only who builds a run knows of this room."""

from unskew.executors.compiled.executor import CompiledStacked

__all__ = ["CompiledStacked"]
