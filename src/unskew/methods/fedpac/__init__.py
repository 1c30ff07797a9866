"""FedPAC; the method itself is in method.py."""

from unskew.methods.fedpac.method import FedPAC

__all__ = ["FedPAC"]
