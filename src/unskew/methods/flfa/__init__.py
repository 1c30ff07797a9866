"""FLFA; the method itself is in method.py."""

from unskew.methods.flfa.method import FLFA

__all__ = ["FLFA"]
