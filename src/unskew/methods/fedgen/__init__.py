"""FedGen; the method itself is in method.py."""

from unskew.methods.fedgen.method import FedGen

__all__ = ["FedGen"]
